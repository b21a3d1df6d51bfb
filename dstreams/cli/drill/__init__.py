"""The drill: a driver is killed again and again, and what it promised is compared with an oracle.

``dstreams drill`` runs it on a job of its own, or on an application of yours.
"""

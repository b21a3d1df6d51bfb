"""The commands of ``dstreams``, one per module."""

"""The commands of ``dstreams``: what each takes, and what of the product it calls; one a module."""

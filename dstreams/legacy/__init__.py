"""Programs written for ``pyspark.streaming``, run as they are: ``dstreams run app.py``."""

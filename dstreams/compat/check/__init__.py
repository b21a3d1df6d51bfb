"""What a program uses of ``pyspark.streaming``, and what that means here: ``dstreams check``."""

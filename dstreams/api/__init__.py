"""The public surface: names, signatures and behaviour of pyspark.streaming."""

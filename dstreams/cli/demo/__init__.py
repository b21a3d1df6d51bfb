"""``dstreams demo``: count the words of a text as a stream, and check the result without Spark."""

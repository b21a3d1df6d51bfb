"""RDDs, shuffles and workers: every contact with Spark internals and the JVM."""

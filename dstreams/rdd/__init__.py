"""What dstreams asks of Spark: small modules, each of use by itself in a notebook.

=============== ===============================================================================
context         a tuned SparkContext
stable_hash     a hash of keys that every process agrees on
partitioner     a partitioner that is equal across processes and restarts
blocks          pairs in columns, as bytes
shuffle         moving blocks to their partitions, and back to pairs
cogroup         a batch meets the state, partition by partition, without a shuffle of the state
rdd_files       RDDs in durable files
failures        what went wrong in a job, in a line
=============== ===============================================================================
"""

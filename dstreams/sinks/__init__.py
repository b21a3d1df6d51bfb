"""Sinks: what an output operation does with the RDD of a batch, one kind a module."""

from dstreams.sinks.output_batch import BatchSink, OutputBatch
from dstreams.sinks.promise import OutputPromise
from dstreams.sinks.transactional import TransactionalSink

__all__ = ["BatchSink", "OutputBatch", "OutputPromise", "TransactionalSink"]

"""Sinks: what an output operation does with the RDD of a batch, one kind a module."""

from dstreams.sinks.output_batch import BatchSink, OutputBatch
from dstreams.sinks.promise import DeliveryGuarantee
from dstreams.sinks.transactional import TransactionalSink

__all__ = ["BatchSink", "DeliveryGuarantee", "OutputBatch", "TransactionalSink"]

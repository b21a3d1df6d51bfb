"""Sinks of streams: each output operation writes the RDD of a batch with one of them."""

from dstreams.sinks.output_batch import BatchSink, DeliveryGuarantee, OutputBatch
from dstreams.sinks.transactional import TransactionalSink

__all__ = ["BatchSink", "DeliveryGuarantee", "OutputBatch", "TransactionalSink"]

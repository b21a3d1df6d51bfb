"""StreamingContext, where ``pyspark.streaming.context`` has it."""

from dstreams.streaming_context import StreamingContext

__all__ = ["StreamingContext"]

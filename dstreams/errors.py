"""The kinds of error that dstreams raises, chosen by what the reader has to do next.

======================== ==============================================================
InvalidStreamError       change the program: a parameter, a function, a stream graph
StreamLifecycleError     change the order of calls: after start, after stop, two contexts
EnvironmentNotReadyError change the machine: Java, Spark or what workers need is missing or too old
BatchFailedError         look at the batch: the cause is the exception of the user's code
DurabilityError          look at the storage, or the output: the batch must not count; the stream
                         stopped
RestartError             look at the checkpoint directory: what is there cannot be taken up
OutputConflictError      look at the output: it has what another history of the checkpoint wrote
SourceError              look at the source: a directory, a socket, a line that is too long
IncompleteStopError      look at the input: a graceful stop could not run all that was received
======================== ==============================================================

The second bases keep programs alive that catch the builtin exceptions PySpark raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstreams.monitoring.events import BatchInfo


class StreamError(Exception):
    """Base of every error that dstreams raises on purpose."""


class InvalidStreamError(StreamError, ValueError):
    """A stream was defined in a way that can never run."""


class StreamLifecycleError(StreamError, RuntimeError):
    """A call came at a time in the life of the context when it cannot be obeyed."""


class EnvironmentNotReadyError(StreamError, RuntimeError):
    """Java, Spark, or the Python here or of the workers, cannot run dstreams."""


class RestartError(StreamError, RuntimeError):
    """An earlier run left state in the checkpoint directory that this one cannot go on from."""


class OutputConflictError(RestartError):
    """An output has a batch that this checkpoint has not begun, so the stream stopped."""


class SourceError(StreamError, RuntimeError):
    """A source could not deliver its records."""


class MissingInputError(SourceError):
    """Files that a batch reads are not there; what is made of them waits until they are."""


class DecodeError(SourceError):
    """A record of a topic could not be decoded.

    Args:
        topic: its topic.
        partition: partition of the topic.
        offset: its place in the partition.
        part: ``key`` or ``value``.
        decoder: what was to decode it.
        reason: why it did not.
        remedy: how to have such records left out.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        part: str,
        decoder: str,
        reason: str,
        remedy: str = "badRecords='DROPMALFORMED'; then deadLetters() has them",
    ) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}, offset {offset}: {decoder} cannot decode the "
            f"{part} ({reason}); mend the decoder or who writes the topic, or have such records "
            f"left out, by {remedy}"
        )
        self.topic, self.partition, self.offset, self.part = topic, partition, offset, part
        self.decoder, self.reason, self.remedy = decoder, reason, remedy

    def __reduce__(self) -> tuple[type[DecodeError], tuple[Any, ...]]:
        return (
            type(self),
            (
                self.topic,
                self.partition,
                self.offset,
                self.part,
                self.decoder,
                self.reason,
                self.remedy,
            ),
        )


class BatchFailedError(StreamError, RuntimeError):
    """A batch failed; ``__cause__`` is what was raised.

    The message names operation, function and the line of the user's program. If a job of Spark
    failed, the cause is PySpark's error, ``Py4JJavaError`` or one of ``pyspark.errors``, which
    prints itself in a few lines here: its attribute ``java`` has the whole text, with the frames of
    workers and JVM.

    Args:
        message: what failed, where, and what to do.
        batch_time_ms: time of the batch in milliseconds, as in ``Time: ...`` of its output.

    Attributes:
        batch_infos: what is known of the batches that ran in the call that raised this, the failed
            one last.
    """

    def __init__(self, message: str, batch_time_ms: int) -> None:
        super().__init__(message)
        self.batch_time_ms = batch_time_ms
        self.batch_infos: tuple[BatchInfo, ...] = ()

    def __reduce__(self) -> tuple[type[BatchFailedError], tuple[str, int]]:
        return (type(self), (str(self), self.batch_time_ms))


class DurabilityError(BatchFailedError):
    """A batch must not count, so the stream stopped; it runs again when that is put right.

    Its state could not be made durable, or an output has the batch from another history of the
    checkpoint: then ``__cause__`` is an :class:`OutputConflictError`.
    """


class IncompleteStopError(StreamError, RuntimeError):
    """A graceful stop ended before all that was received had run; the message says what is left.

    Args:
        message: why, which batches, and how many records of which input.
        batch_times_ms: times of the batches that did not run to their end, in milliseconds.
        lost: how many records of each input no later run has, by the name of the input; None where
            they were not counted.
        again: the same for records that the next start from the checkpoint reads again.
    """

    def __init__(
        self,
        message: str,
        batch_times_ms: tuple[int, ...] = (),
        lost: Mapping[str, int | None] | None = None,
        again: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.batch_times_ms = batch_times_ms
        self.lost = dict(lost or {})
        self.again = dict(again or {})

    def __reduce__(self) -> tuple[type[IncompleteStopError], tuple[Any, ...]]:
        return (type(self), (str(self), self.batch_times_ms, self.lost, self.again))


class NoStateError(StreamError, LookupError):
    """A user's function asked for a state where there is none."""


class InvalidStateCallError(StreamError, RuntimeError):
    """A user's function asked a state for what it cannot do in this call or operation."""

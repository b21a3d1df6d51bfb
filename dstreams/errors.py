"""The errors that dstreams raises, by what the reader has to do next.

======================== ==============================================================
InvalidStreamError       change the program: a parameter, a function, the graph
StreamLifecycleError     change the order of calls: after start, after stop, two contexts
EnvironmentNotReadyError change the machine: Java, Spark or a package is missing or too old
BatchFailedError         fix the code of the batch: its exception is the cause
DurabilityError          fix the storage or the output: the batch is not committed, the stream stops
RestartError             fix the checkpoint directory: the stream cannot resume from it
OutputConflictError      fix the output: another history of the checkpoint wrote there
SourceError              fix the source: a directory, a socket, a line that is too long
IncompleteStopError      check the input: a graceful stop did not process everything received
======================== ==============================================================

The second base classes are the builtin exceptions that PySpark raises, for programs that catch
these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstreams.monitoring.events import BatchInfo


class StreamError(Exception):
    """Base class of the errors of dstreams."""


class InvalidStreamError(StreamError, ValueError):
    """A stream is defined in a way that can never run."""


class StreamLifecycleError(StreamError, RuntimeError):
    """A call is not possible in this state of the context."""


class EnvironmentNotReadyError(StreamError, RuntimeError):
    """Java, Spark, or the Python of the driver or the workers cannot run dstreams."""


class RestartError(StreamError, RuntimeError):
    """The stream cannot resume from the state that an earlier run left in the checkpoint."""


class OutputConflictError(RestartError):
    """An output contains a batch that this checkpoint has not begun, so the stream stopped."""


class SourceError(StreamError, RuntimeError):
    """A source could not deliver its records."""


class MissingInputError(SourceError):
    """Files that a batch reads are missing; states and windows that need them wait for them."""


class DecodeError(SourceError):
    """A record of a topic could not be decoded.

    Args:
        topic: topic of the record.
        partition: partition of the topic.
        offset: offset in the partition.
        part: ``key`` or ``value``.
        decoder: name of the decoder.
        reason: its error.
        remedy: the option that skips such records.
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
        super().__init__(topic, partition, offset, part, decoder, reason, remedy)  # for pickling
        self.topic, self.partition, self.offset, self.part = topic, partition, offset, part
        self.decoder, self.reason, self.remedy = decoder, reason, remedy

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, partition {self.partition}, offset {self.offset}: "
            f"{self.decoder} cannot decode the {self.part} ({self.reason}); correct the decoder or "
            f"the producer, or skip such records with {self.remedy}"
        )


class BatchFailedError(StreamError, RuntimeError):
    """A batch failed; ``__cause__`` is the original exception.

    The message names the operation, the function and the line of the user's program. If a Spark job
    failed, the cause is PySpark's error, ``Py4JJavaError`` or one of ``pyspark.errors``, shortened
    to a few lines: its attribute ``java`` has the full text, with the frames of workers and JVM.

    Args:
        message: the failure, its place, and the remedy.
        batch_time_ms: time of the batch in milliseconds, as in ``Time: ...`` of its output.

    Attributes:
        batch_infos: the batches that ran in the call that raised this, the failed one last.
    """

    def __init__(self, message: str, batch_time_ms: int) -> None:
        super().__init__(message)
        self.batch_time_ms = batch_time_ms
        self.batch_infos: tuple[BatchInfo, ...] = ()

    def __reduce__(self) -> tuple[type[BatchFailedError], tuple[str, int]]:
        return (type(self), (str(self), self.batch_time_ms))


class DurabilityError(BatchFailedError):
    """A batch could not be committed, so the stream stopped; a restart runs it again.

    Its state could not be made durable, or an output has the batch from another history of the
    checkpoint; then ``__cause__`` is an :class:`OutputConflictError`.
    """


class IncompleteStopError(StreamError, RuntimeError):
    """A graceful stop ended before everything received was processed.

    Args:
        message: the reason, the batches, and the number of records of each input.
        batch_times_ms: times of the batches that did not finish, in milliseconds.
        lost: numbers of records that no later run can read, by the name of the input; None if not
            counted.
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
    """A user function read a state that does not exist."""


class InvalidStateCallError(StreamError, RuntimeError):
    """A user function made a call that its state does not allow in this operation."""

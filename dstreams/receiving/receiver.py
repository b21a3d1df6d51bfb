"""The base of receivers that users write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark import StorageLevel

from dstreams.durations import require_duration_ms
from dstreams.errors import StreamLifecycleError
from dstreams.receiving.supervisor import ReceiverSupervisor


class Receiver:
    """Receives records from anywhere; derive from it, and pass it to ``ssc.receiverStream``.

    >>> class Numbers(Receiver):
    ...     def onStart(self):
    ...         self.thread = threading.Thread(target=self.receive)
    ...         self.thread.start()
    ...
    ...     def onStop(self):
    ...         self.thread.join()
    ...
    ...     def receive(self):
    ...         for number in itertools.count():
    ...             if self.isStopped():
    ...                 break
    ...             self.store(number)

    ``onStart`` must not block: it starts threads, which receive and call :meth:`store` or
    :meth:`storeAll`. ``onStop`` lets them end and waits until they have. Both may be called several
    times, by turns, as the receiver is restarted: after an exception in ``onStart``, or when it
    asks for it. What both need is made in ``onStart``: a receiver that runs on an executor is
    pickled first.

    Args:
        storageLevel: taken for compatibility; blocks wait in the driver until they are in a batch.

    Semantics: org.apache.spark.streaming.receiver.Receiver (4.3).
    """

    storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2
    # Of the class, so that a receiver that does not call this constructor works as well.
    _supervisor: ReceiverSupervisor | None = None
    _stream_id: int | None = None

    def __init__(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2) -> None:
        self.storageLevel = storageLevel

    # To be defined by the user ----------------------------------------------------------------

    def onStart(self) -> None:
        """Begin to receive; must not block."""
        raise NotImplementedError(f"{type(self).__name__} must define onStart")

    def onStop(self) -> None:
        """End what :meth:`onStart` began, and wait for its end; what that stores still counts."""
        raise NotImplementedError(f"{type(self).__name__} must define onStop")

    @property
    def preferredLocation(self) -> str | None:
        """The host to run on, None for any; taken for compatibility, Spark chooses."""
        return None

    # To be called by the user -----------------------------------------------------------------

    def store(self, record: Any) -> None:
        """Store one record; it is in a block after ``spark.streaming.blockInterval``.

        Nothing says when it is safe: use :meth:`storeAll` to acknowledge what was received. Waits
        when ``spark.streaming.receiver.maxRate`` says so, and while batches take nothing. The
        record must not be changed afterwards.

        Args:
            record: any object that can be pickled; one that cannot be is left out and reported.

        Raises:
            StreamLifecycleError: the receiver has not been started, or has been stopped.
        """
        self._attached("store").store(record)

    def storeAll(self, records: Iterable[Any]) -> None:
        """Store records and return when they count as received; then they may be acknowledged.

        They are in the driver then, and with ``spark.streaming.receiver.writeAheadLog.enable`` in
        the checkpoint directory. When it raises, some may have been stored: send them all again.

        Args:
            records: the records, in their order; all that are in memory at once.

        Raises:
            InvalidStreamError: a record cannot be pickled, or is larger than 64 MiB; none is
                stored.
            StreamLifecycleError: the receiver has not been started, or has been stopped.
            Exception: the records could not be written or sent.
        """
        self._attached("storeAll").store_all(records)

    def reportError(self, message: str, error: BaseException | None = None) -> None:
        """Tell the driver's log and listeners of an error; the receiver goes on.

        Args:
            message: what happened.
            error: the exception, None if there is none.
        """
        self._attached("reportError").report_error(message, error)

    def restart(
        self, message: str, error: BaseException | None = None, delay: float | None = None
    ) -> None:
        """Call ``onStop``, and ``onStart`` after a while; returns at once.

        Args:
            message: why.
            error: the exception that made it necessary, None if there is none.
            delay: seconds in between. None: ``spark.streaming.receiverRestartDelay``.
        """
        delay_ms = None
        if delay is not None:
            delay_ms = 0 if delay == 0 else require_duration_ms(delay, "delay")
        self._attached("restart").restart(message, error, delay_ms)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Stop for good: ``onStop`` is called, and no restart follows; returns at once.

        Args:
            message: why.
            error: the exception that made it necessary; ``awaitTermination`` raises it then. None
                for an end that was to be expected.
        """
        self._attached("stop").stop(message, error)

    def isStarted(self) -> bool:
        """Whether the receiver was started, and not stopped since."""
        return self._supervisor is not None and self._supervisor.is_started

    def isStopped(self) -> bool:
        """Whether the receiver has to end what it does, also when it will be started again."""
        return self._supervisor is not None and self._supervisor.is_stopped

    @property
    def streamId(self) -> int:
        """Number of the input stream: 0, 1, 2, ... in order of definition.

        Raises:
            StreamLifecycleError: the receiver is in no stream yet.
        """
        if self._stream_id is None:
            raise StreamLifecycleError(
                f"{type(self).__name__} has no streamId; pass it to receiverStream first"
            )
        return self._stream_id

    # Below the surface ------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_supervisor"}

    def _attached(self, method: str) -> ReceiverSupervisor:
        if self._supervisor is None:
            raise StreamLifecycleError(
                f"{type(self).__name__}.{method} was called on a receiver that was not started; "
                "call it from onStart on, where the receiver runs"
            )
        return self._supervisor

"""GroupState: what a user's function sees of the state of one key, and what it asks for.

>>> from dstreams.state.group_state import GroupStateTimeout, TestGroupState
>>> def count(key, values, state):
...     state.update((state.getOption or 0) + len(list(values)))
...     state.setTimeoutDuration("10 minutes")
...     return [(key, state.get)]
>>> state = TestGroupState.create(5, GroupStateTimeout.ProcessingTimeTimeout, 1000)
>>> count("a", ["x", "y"], state)
[('a', 7)]
>>> state.isUpdated, state.getTimeoutTimestampMs
(True, 601000)
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from dstreams.common.durations import event_time_ms, parse_duration_ms
from dstreams.errors import InvalidStateCallError, InvalidStreamError
from dstreams.state.keyed_state import StateValue, require_state, require_storable

G = TypeVar("G", bound="GroupState[Any]")
S = TypeVar("S")

NO_TIMESTAMP: Final = -1
"""Stands for "no timer" and "no watermark"."""


class OutputMode(str, Enum):
    """What reaches the output of a query: rows that are new, or rows that changed, or all."""

    Append = "append"
    Update = "update"
    Complete = "complete"


class GroupStateTimeout(str, Enum):
    """Which clock ends a key that gets no data: none, the batch time, or the watermark."""

    NoTimeout = "NoTimeout"
    ProcessingTimeTimeout = "ProcessingTimeTimeout"
    EventTimeTimeout = "EventTimeTimeout"


class Effect(NamedTuple):
    """What a call asked for: the state afterwards, update or removal, and the timer."""

    state: Any
    is_updated: bool
    is_removed: bool
    timeout_ms: int


class GroupStateContext(NamedTuple):
    """What is the same for all calls of a batch; times are milliseconds since the epoch."""

    timeout: GroupStateTimeout
    processing_time_ms: int
    watermark_ms: int
    has_timed_out: bool

    @classmethod
    def of(
        cls,
        timeout: GroupStateTimeout,
        processing_time_ms: int | None,
        watermark_ms: int | None,
        *,
        has_timed_out: bool,
    ) -> GroupStateContext:
        """Return the context, checked; None stands for no batch time and for no watermark."""
        if processing_time_ms is None:
            processing_time_ms = NO_TIMESTAMP
        elif processing_time_ms < 0:
            raise InvalidStreamError(
                f"the batch processing time must be 0 or positive, got {processing_time_ms} ms"
            )
        if watermark_ms is not None and watermark_ms < 0:
            raise InvalidStreamError(
                f"the event time watermark must be 0 or positive if present, got {watermark_ms} ms"
            )
        if has_timed_out and timeout is GroupStateTimeout.NoTimeout:
            raise InvalidStateCallError("a state cannot time out where there is no timeout")
        shown_ms = NO_TIMESTAMP if watermark_ms is None else watermark_ms
        return cls(timeout, processing_time_ms, shown_ms, has_timed_out)


class GroupState(StateValue[S]):
    """The state of one key during one call of the user's function.

    What the function asks for takes effect when its output has been read to the end. A timer that
    was not set in a call is none afterwards, also if there was one before.

    Semantics: org.apache.spark.sql.streaming.GroupState (4.3), with the properties and methods of
    pyspark.sql.streaming.state.GroupState. Unlike there the state may be any value but None, and
    ``setTimeoutDuration`` and ``setTimeoutTimestamp`` take intervals as text.
    """

    __slots__ = ("_facts", "_is_removed", "_is_updated", "_timeout_ms")

    _require = staticmethod(require_state)  # the store says what else it does not take

    def __init__(self, state: S | None, facts: GroupStateContext) -> None:
        self._value = state  # faster than to ask the base, and made for each key
        self._facts = facts
        self._is_updated = False
        self._is_removed = False
        self._timeout_ms = NO_TIMESTAMP

    @property
    def effect(self) -> Effect:
        """What was asked for so far."""
        return Effect(self._value, self._is_updated, self._is_removed, self._timeout_ms)

    @classmethod
    def for_streaming(
        cls: type[G],
        state: Any,
        timeout: GroupStateTimeout,
        processing_time_ms: int,
        watermark_ms: int | None,
        *,
        has_timed_out: bool = False,
    ) -> G:
        """Return the handle of a call in a batch; the arguments are those of a checked context."""
        return cls(
            state,
            GroupStateContext.of(
                timeout, processing_time_ms, watermark_ms, has_timed_out=has_timed_out
            ),
        )

    @property
    def hasTimedOut(self) -> bool:
        """Whether this call is made because the key's timer was due."""
        return self._facts.has_timed_out

    def update(self, newValue: S) -> None:
        """Set the state.

        Args:
            newValue: the state, anything but None.

        Raises:
            InvalidStreamError: it is None.
        """
        self._require(newValue)
        self._value = newValue
        self._is_updated, self._is_removed = True, False

    def remove(self) -> None:
        """Remove the state; that there is none is fine."""
        self._value = None
        self._is_updated, self._is_removed = False, True

    def setTimeoutDuration(self, durationMs: int | str) -> None:
        """Set the timer to a duration after the batch time.

        Args:
            durationMs: milliseconds, or an interval such as ``"1 hour 30 minutes"``; positive. A
                month is 31 days.

        Raises:
            InvalidStateCallError: the timeout is not ProcessingTimeTimeout.
            InvalidStreamError: *durationMs* is not positive, or no duration.
        """
        duration_ms = parse_duration_ms(durationMs) if isinstance(durationMs, str) else durationMs
        if self._facts.timeout is not GroupStateTimeout.ProcessingTimeTimeout:
            raise InvalidStateCallError(
                "a timeout duration cannot be set without ProcessingTimeTimeout; the timeout of "
                f"this operation is {self._facts.timeout.value}"
            )
        if _whole(duration_ms, "the timeout duration") <= 0:
            raise InvalidStreamError(f"the timeout duration must be positive, got {durationMs!r}")
        self._timeout_ms = self._facts.processing_time_ms + duration_ms

    def setTimeoutTimestamp(
        self, timestampMs: int | datetime, additionalDuration: int | str | None = None
    ) -> None:
        """Set the timer to a time of events.

        Args:
            timestampMs: milliseconds since the epoch, or a datetime (naive: local time); not
                before the watermark.
            additionalDuration: added to it: milliseconds, or an interval such as ``"5 seconds"``.

        Raises:
            InvalidStateCallError: the timeout is not EventTimeTimeout.
            InvalidStreamError: the time is not positive, or before the watermark, or the duration
                is negative.
        """
        if self._facts.timeout is not GroupStateTimeout.EventTimeTimeout:
            raise InvalidStateCallError(
                "a timeout timestamp cannot be set without EventTimeTimeout; the timeout of this "
                f"operation is {self._facts.timeout.value}"
            )
        if isinstance(timestampMs, datetime):
            timestamp_ms = event_time_ms(timestampMs)
        else:
            timestamp_ms = _whole(timestampMs, "the timeout timestamp")
        if additionalDuration is not None:
            timestamp_ms += _additional_ms(additionalDuration)
        if timestamp_ms <= 0:
            raise InvalidStreamError(f"the timeout timestamp must be positive, got {timestamp_ms}")
        watermark_ms = self._facts.watermark_ms
        if watermark_ms != NO_TIMESTAMP and timestamp_ms < watermark_ms:
            raise InvalidStreamError(
                f"the timeout timestamp ({timestamp_ms}) cannot be earlier than the current "
                f"watermark ({watermark_ms})"
            )
        self._timeout_ms = timestamp_ms

    def getCurrentWatermarkMs(self) -> int:
        """Return the watermark of this batch, milliseconds since the epoch.

        Raises:
            InvalidStateCallError: no watermark was set upstream.
        """
        if self._facts.watermark_ms == NO_TIMESTAMP:
            raise InvalidStateCallError(
                "there is no event time watermark; set one upstream, with withWatermark or the "
                "watermark argument of the operation"
            )
        return self._facts.watermark_ms

    def getCurrentProcessingTimeMs(self) -> int:
        """Return the batch time, milliseconds since the epoch; the same if the batch runs again.

        It is -1 if the operator has no batch time, as in an experiment without batches.
        """
        return self._facts.processing_time_ms

    def __repr__(self) -> str:
        return f"GroupState({'<undefined>' if self._value is None else repr(self._value)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GroupState is valid during one call only; keep state.get instead")


class TestGroupState(GroupState[S]):
    """A handle to test functions with, without Spark; it also tells what was asked for.

    It takes the states that a store takes, plain data and classes of data, and refuses others as
    the store does: those of classes that neither the function's module nor that of the test names.

    Semantics: org.apache.spark.sql.streaming.TestGroupState (4.3).
    """

    __test__ = False  # no test class of pytest's

    _require = staticmethod(require_storable)

    @classmethod
    def create(
        cls,
        optionalState: S | None,
        timeoutConf: GroupStateTimeout,
        batchProcessingTimeMs: int,
        eventTimeWatermarkMs: int | None = None,
        hasTimedOut: bool = False,
    ) -> TestGroupState[S]:
        """Return a handle as an operator would make it.

        Args:
            optionalState: the stored state, None for none.
            timeoutConf: which timeout the operator has.
            batchProcessingTimeMs: the batch time, milliseconds since the epoch.
            eventTimeWatermarkMs: the watermark, milliseconds since the epoch; None for none.
            hasTimedOut: whether the call is made because the key's timer is due.

        Raises:
            InvalidStreamError: a time is negative.
            InvalidStateCallError: it timed out although there is no timeout.
            NotStorableError: the state is none that a store takes.
        """
        if optionalState is not None:
            require_storable(optionalState)
        return cls.for_streaming(
            optionalState,
            timeoutConf,
            batchProcessingTimeMs,
            eventTimeWatermarkMs,
            has_timed_out=hasTimedOut,
        )

    @property
    def isUpdated(self) -> bool:
        """Whether the last of the calls to update and remove was an update."""
        return self._is_updated

    @property
    def isRemoved(self) -> bool:
        """Whether the last of the calls to update and remove was a removal."""
        return self._is_removed

    @property
    def getTimeoutTimestampMs(self) -> int | None:
        """The timer that was set, milliseconds since the epoch, or None."""
        return None if self._timeout_ms == NO_TIMESTAMP else self._timeout_ms


def _whole(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidStreamError(
            f"{what} must be a whole number of milliseconds, got {value!r} ({type(value).__name__})"
        )
    return value


def _additional_ms(duration: int | str) -> int:
    duration_ms = parse_duration_ms(duration) if isinstance(duration, str) else duration
    if _whole(duration_ms, "the additional duration") < 0:
        raise InvalidStreamError(f"the additional duration ({duration!r}) is negative")
    return duration_ms

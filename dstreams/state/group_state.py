"""State and GroupState: the state of one key, as a user's function sees and changes it.

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
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from checkpoint.state_store import DataValues, Shapes
from dstreams.common.durations import event_time_ms, parse_duration_ms
from dstreams.errors import InvalidStateCallError, InvalidStreamError, NoStateError
from dstreams.state.function_errors import NotStorableError, refusal
from dstreams.state.state_classes import classes_of_callers

S = TypeVar("S")


class StateValue(Generic[S]):
    """A state during one call of a user's function; None if the key has no state."""

    __slots__ = ("_value",)

    def __init__(self, state: S | None) -> None:
        self._value = state

    @property
    def exists(self) -> bool:
        """True if the key has a state."""
        return self._value is not None

    @property
    def get(self) -> S:
        """The state.

        Raises:
            NoStateError: the key has no state.
        """
        if self._value is None:
            raise NoStateError("the state is not defined or was removed; check state.exists first")
        return self._value

    @property
    def getOption(self) -> S | None:
        """The state, None without one."""
        return self._value


def require_state(value: object) -> None:
    """Raise InvalidStreamError if a state is None."""
    if value is None:
        raise InvalidStreamError(
            "a state must not be None; call state.remove() to remove it, or store a value that "
            "means empty"
        )


def require_storable(value: object) -> None:
    """Raise if the store of a stream does not take a state; for the states that tests make.

    Classes count as known if the modules of the calling functions mention them.
    """
    require_state(value)
    try:
        DataValues(classes_of_callers()).encoder(Shapes())(value)
    except Exception as error:
        text = refusal(error)
        if text is None:
            raise
        raise NotStorableError(f"a state cannot be stored: {text}") from error


class State(StateValue[S]):
    """The state of one key during the call for one record.

    >>> state = State("old")
    >>> state.exists, state.get
    (True, 'old')
    >>> state.remove()
    >>> state.exists, state.getOption
    (False, None)

    In tests it rejects the values that the store of a stream rejects.

    Semantics: org.apache.spark.streaming.State (4.3), with properties instead of methods without
    arguments, as in :class:`~dstreams.GroupState`.

    Args:
        state: the state, None without one.
        is_timing_out: True if the key is idle for longer than its timeout.

    Attributes:
        is_updated: True if the function set a state.
        is_removed: True if the function removed the state.
    """

    __slots__ = ("_is_timing_out", "is_removed", "is_updated")

    _require = staticmethod(require_storable)

    def __init__(self, state: S | None = None, *, is_timing_out: bool = False) -> None:
        self._value = state  # faster than super().__init__, and called for each record
        self._is_timing_out = is_timing_out
        self.is_updated = False
        self.is_removed = False

    @property
    def isTimingOut(self) -> bool:
        """True if the key is removed after this call because it is idle for too long."""
        return self._is_timing_out

    def update(self, newState: S) -> None:
        """Set the state.

        Args:
            newState: the state, anything but None.

        Raises:
            InvalidStateCallError: the state was removed in this call, or is timing out.
            InvalidStreamError: *newState* is None.
            NotStorableError: the store does not take *newState*.
        """
        if self.is_removed:
            raise InvalidStateCallError("the state cannot be updated after it has been removed")
        if self._is_timing_out:
            raise InvalidStateCallError("a state that is timing out cannot be updated")
        self._require(newState)
        self._value = newState
        self.is_updated = True

    def remove(self) -> None:
        """Remove the state, if there is one.

        Raises:
            InvalidStateCallError: it was already removed in this call, or is timing out.
        """
        if self._is_timing_out:
            raise InvalidStateCallError("a state that is timing out is removed anyway")
        if self.is_removed:
            raise InvalidStateCallError("the state has already been removed")
        self._value = None
        self.is_updated = False
        self.is_removed = True

    def __repr__(self) -> str:
        return "<state not set>" if self._value is None else repr(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a State is valid during one call only; keep state.get instead")


class StoredState(State[S]):
    """The state of one key in a stream; the store checks the values."""

    __slots__ = ()

    _require = staticmethod(require_state)


NO_TIMESTAMP: Final = -1
"""The value without a timer or without a watermark."""


class OutputMode(str, Enum):
    """The output of a query: new rows, changed rows, or all rows."""

    Append = "append"
    Update = "update"
    Complete = "complete"


class GroupStateTimeout(str, Enum):
    """The clock of timers: none, the batch time, or the watermark."""

    NoTimeout = "NoTimeout"
    ProcessingTimeTimeout = "ProcessingTimeTimeout"
    EventTimeTimeout = "EventTimeTimeout"


class GroupStateContext(NamedTuple):
    """The facts that all calls of a batch share; times are milliseconds since the epoch."""

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
        """Return the checked context; times are None if the batch lacks them."""
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
            raise InvalidStateCallError("a state cannot time out with GroupStateTimeout.NoTimeout")
        shown_ms = NO_TIMESTAMP if watermark_ms is None else watermark_ms
        return cls(timeout, processing_time_ms, shown_ms, has_timed_out)


class GroupState(StateValue[S]):
    """The state of one key during one call of the user's function.

    Changes take effect when the output of the function has been read to the end. A call that does
    not set a timer clears it.

    Semantics: org.apache.spark.sql.streaming.GroupState (4.3), with the properties and methods of
    pyspark.sql.streaming.state.GroupState. In addition, the state may be any value except None, and
    ``setTimeoutDuration`` and ``setTimeoutTimestamp`` take intervals as text.
    """

    __slots__ = ("_facts", "_is_removed", "_is_updated", "_timeout_ms")

    _require = staticmethod(require_state)  # the store checks the rest

    def __init__(self, state: S | None, facts: GroupStateContext) -> None:
        self._value = state  # faster than super().__init__, and called for each key
        self._facts = facts
        self._is_updated = False
        self._is_removed = False
        self._timeout_ms = NO_TIMESTAMP

    @property
    def effect(self) -> tuple[Any, bool, bool, int]:
        """The changes so far: (state, is updated, is removed, timer in ms)."""
        return self._value, self._is_updated, self._is_removed, self._timeout_ms

    @property
    def hasTimedOut(self) -> bool:
        """True if this call is made because the key's timer is due."""
        return self._facts.has_timed_out

    def update(self, newValue: S) -> None:
        """Set the state.

        Args:
            newValue: the state, any value except None.

        Raises:
            InvalidStreamError: *newValue* is None.
        """
        self._require(newValue)
        self._value = newValue
        self._is_updated, self._is_removed = True, False

    def remove(self) -> None:
        """Remove the state, if there is one."""
        self._value = None
        self._is_updated, self._is_removed = False, True

    def setTimeoutDuration(self, durationMs: int | str) -> None:
        """Set the timer to a duration after the batch time.

        Args:
            durationMs: milliseconds, or an interval such as ``"1 hour 30 minutes"``; positive. A
                month is 31 days.

        Raises:
            InvalidStateCallError: the timeout is not ProcessingTimeTimeout.
            InvalidStreamError: *durationMs* is not a positive duration.
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
        """Set the timer to an event time.

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
                "no event time watermark is defined; set one upstream, with withWatermark or the "
                "watermark argument of the operation"
            )
        return self._facts.watermark_ms

    def getCurrentProcessingTimeMs(self) -> int:
        """Return the batch time, milliseconds since the epoch; the same if the batch runs again.

        It is -1 if the operator has no batch time.
        """
        return self._facts.processing_time_ms

    def __repr__(self) -> str:
        return f"GroupState({'<undefined>' if self._value is None else repr(self._value)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a GroupState is valid during one call only; keep state.get instead")


class TestGroupState(GroupState[S]):
    """A GroupState for tests without Spark, which also shows the changes of the function.

    It takes the states that a store takes: plain data, and classes of data that the module of the
    function or of the test mentions.

    Semantics: org.apache.spark.sql.streaming.TestGroupState (4.3).
    """

    __test__ = False  # pytest must not collect it

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
        """Return the state of a call.

        Args:
            optionalState: the stored state, None without one.
            timeoutConf: the timeout of the operator.
            batchProcessingTimeMs: the batch time, milliseconds since the epoch.
            eventTimeWatermarkMs: the watermark, milliseconds since the epoch; None without one.
            hasTimedOut: True for the call for a key whose timer is due.

        Raises:
            InvalidStreamError: a time is negative.
            InvalidStateCallError: *hasTimedOut* without a timeout.
            NotStorableError: the store does not take the state.
        """
        if optionalState is not None:
            require_storable(optionalState)
        times = batchProcessingTimeMs, eventTimeWatermarkMs
        facts = GroupStateContext.of(timeoutConf, *times, has_timed_out=hasTimedOut)
        return cls(optionalState, facts)

    @property
    def isUpdated(self) -> bool:
        """True if the last change of the state was an update."""
        return self._is_updated

    @property
    def isRemoved(self) -> bool:
        """True if the last change of the state was a removal."""
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

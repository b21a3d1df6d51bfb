"""StatefulProcessor, its state variables and its timers, over the state store of a partition.

A processor written for ``pyspark.sql.streaming`` works as well: nothing requires this base class.

Everything that a key has is an entry of its own in the store, so that a call costs what it uses:

=============== ================================== =====================
entry           key in the store                   value
=============== ================================== =====================
value           ``(name, *key)``                   row
list element    ``(name, *key, batch, number)``    row
map entry       ``(name, *key, *map key)``         row
timer           ``("$timers", *key, expiry)``      True
=============== ================================== =====================

With a time to live (TTL) the value is ``(row, expiry)``. Timers and TTLs are timeouts of the store,
whose index finds those that are due. Both use one clock: a TTL requires processing time.

Semantics: pyspark.sql.streaming.stateful_processor (Spark 4.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from checkpoint.state_store import StateWriter
from dstreams.errors import InvalidStateCallError, InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.state_version import StateMetrics
from dstreams.state.function_errors import raise_refused
from dstreams.state.state_manager import Rows
from dstreams.state.values_ahead import PutsTogether, ValuesAhead

if TYPE_CHECKING:
    from pyspark.sql.types import Row, StructType

TIMERS = "$timers"
"""The first element of a timer's key; names of state variables do not begin with a dollar."""

_DEFAULT = "default"
_SCALARS = {"bool", "bytes", "date", "datetime", "Decimal", "float", "int", "NoneType", "str"}
_INTEGERS = {
    name: range(-(1 << bits - 1), 1 << bits - 1)
    for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
}
_NO_TIME = -1


class TimeMode(str, Enum):
    """The clock of timers: none, the batch time, or the watermark."""

    NoTime = "none"
    ProcessingTime = "processingTime"
    EventTime = "eventTime"

    @classmethod
    def of(cls, name: object) -> TimeMode:
        """Return the mode of a name in any case, as in Spark."""
        for mode in cls:
            if str(getattr(name, "value", name)).lower() == mode.value.lower():
                return mode
        accepted = ", ".join(repr(mode.value) for mode in cls)
        raise InvalidStreamError(
            f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] unknown time mode {name!r}; use one of "
            f"{accepted}"
        )


@dataclass(frozen=True)
class Columns:
    """The columns of rows of state or output.

    It checks types and the range of integers, but not the contents of lists.
    """

    schema: StructType

    @classmethod
    def of(cls, schema: object, where: str) -> Columns:
        """Return the columns of a StructType, or of a DDL text such as ``"count long"``."""
        from pyspark.sql import types  # noqa: PLC0415 - not for programs without processors

        from dstreams.state.ddl import parse_schema  # noqa: PLC0415 - as above

        found = parse_schema(schema) if isinstance(schema, str) else schema
        if not isinstance(found, types.StructType) or not found.fields:
            raise InvalidStreamError(
                f"{where}: a schema must be a StructType or its DDL text, such as 'count long', "
                f"got {schema!r}"
            )
        columns = cls(found)
        for field, value in zip(found.fields, columns._defaults, strict=True):
            if value is not None:
                cls(types.StructType([field])).row((value,), f"{where}: the default")
        return columns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def row(self, values: Any, where: str) -> tuple[Any, ...]:
        """Return the values of a row as a plain tuple, or raise InvalidStreamError."""
        known = self.known(values)
        if known is not None:
            return known
        if not isinstance(values, (tuple, list)) or len(values) != len(self.schema.fields):
            raise InvalidStreamError(
                f"{where} must be a tuple of {len(self.schema.fields)} values "
                f"({self.schema.simpleString()}), got {shorten(values)}"
            )
        row = tuple(map(_plain, values))
        for field, accepted, value in zip(self.schema.fields, self._accepted, row, strict=True):
            if value is not None and accepted and type(value) not in accepted:
                raise InvalidStreamError(
                    f"{where}: column {field.name!r} has type {field.dataType.simpleString()}, got "
                    f"{shorten(value)} ({type(value).__name__})"
                )
        for at, integers in self._ranges.items():
            if row[at] is not None and row[at] not in integers:
                raise self._out_of_range(at, row[at], where)
        kinds = tuple(map(type, values))
        if {kind.__name__ for kind in kinds} <= _SCALARS:
            self._checked[kinds] = tuple(
                (at, integers) for at, integers in self._ranges.items() if kinds[at] is int
            )
        return row

    def known(self, values: Any) -> tuple[Any, ...] | None:
        """Return a row if rows of the same types were right before and its integers are, else None.

        Each row of state comes through here.
        """
        if not isinstance(values, (tuple, list)):
            return None
        ranges = self._checked.get(tuple(map(type, values)))
        if ranges is None:
            return None
        for at, integers in ranges:
            if values[at] not in integers:
                return None
        return tuple(values)

    def named(self, row: tuple[Any, ...]) -> Row:
        """Return a Row with the names of the columns."""
        named: Row = self._row(*row)
        return named

    def described(self, *, is_key: bool) -> list[dict[str, Any]]:
        """Return the columns as JSON."""
        return [
            {
                "name": field.name,
                "type": field.dataType.simpleString(),
                "is_key": is_key,
                **({} if field.nullable or _DEFAULT in field.metadata else {"is_required": True}),
            }
            for field in self.schema.fields
        ]

    def grown(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a stored row with the columns of this program, which may have more or wider ones.

        Columns that the row lacks have their default, the entry ``default`` of their metadata.
        """
        defaults, floats = self._defaults, self._floats
        if len(row) < len(defaults):
            row = (*row, *defaults[len(row) :])
        if floats and any(type(row[at]) is int for at in floats):
            row = tuple(
                float(value) if at in floats and type(value) is int else value
                for at, value in enumerate(row)
            )
        return row

    @cached_property
    def _defaults(self) -> tuple[Any, ...]:
        return tuple(field.metadata.get(_DEFAULT) for field in self.schema.fields)

    @cached_property
    def _floats(self) -> tuple[int, ...]:
        """The places of floats, which may have been integers."""
        kinds = (field.dataType.simpleString() for field in self.schema.fields)
        return tuple(at for at, kind in enumerate(kinds) if kind in ("float", "double"))

    @cached_property
    def _row(self) -> Row:
        from pyspark.sql.types import Row  # noqa: PLC0415 - as above

        return Row(*self.schema.names)

    @cached_property
    def _checked(self) -> dict[tuple[type, ...], tuple[tuple[int, range], ...]]:
        """The ranges to check, by the types of rows that were right."""
        return {}

    @cached_property
    def _ranges(self) -> dict[int, range]:
        """The integers that columns can represent, by the place of the column."""
        kinds = (field.dataType.simpleString() for field in self.schema.fields)
        return {at: _INTEGERS[kind] for at, kind in enumerate(kinds) if kind in _INTEGERS}

    def _out_of_range(self, at: int, value: int, where: str) -> InvalidStreamError:
        field, integers = self.schema.fields[at], self._ranges[at]
        kind = field.dataType.simpleString()
        wider = "decimal(38, 0), for values of Decimal" if kind == "bigint" else "bigint"
        return InvalidStreamError(
            f"{where}: column {field.name!r} has type {kind}, got {shorten(value)}, which is not "
            f"between {integers[0]} and {integers[-1]}; declare the column as {wider}"
        )

    @cached_property
    def _accepted(self) -> list[tuple[type, ...]]:
        from pyspark.sql import types  # noqa: PLC0415 - as above

        nested = (types.StructType, types.ArrayType, types.MapType)
        return [
            () if isinstance(kind, nested) else types._acceptable_types.get(type(kind), ())
            for kind in (field.dataType for field in self.schema.fields)
        ]


def _plain(value: Any) -> Any:
    """Return a scalar of numpy or pandas as one of Python."""
    for convert in ("to_pydatetime", "to_pytimedelta", "tolist"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value


@dataclass(frozen=True)
class StateVariable:
    """The definition of a state variable: a value, list or map; *ttl_ms* is None without a TTL."""

    name: str
    kind: str
    columns: Columns
    key_columns: Columns | None = None
    ttl_ms: int | None = None

    @classmethod
    def of_described(cls, name: str, described: Mapping[str, Any]) -> StateVariable:
        """Return as much of a definition as reading rows needs; their types are not known."""
        from pyspark.sql import types  # noqa: PLC0415 - as above

        names = [column["name"] for column in described["columns"] if not column["is_key"]]
        fields = [types.StructField(each, types.NullType()) for each in names]
        columns = Columns(types.StructType(fields))
        return cls(name, described["kind"], columns, ttl_ms=1 if described["has_ttl"] else None)

    def described(self) -> dict[str, Any]:
        """Return the definition as JSON, by which a restart compares it."""
        keys = () if self.key_columns is None else self.key_columns.described(is_key=True)
        columns = [*keys, *self.columns.described(is_key=False)]
        return {"kind": self.kind, "columns": columns, "has_ttl": self.ttl_ms is not None}


class TimerValues:
    """The times of a batch; the same if the batch runs again."""

    def __init__(
        self, currentProcessingTimeInMs: int = _NO_TIME, currentWatermarkInMs: int = _NO_TIME
    ) -> None:
        self._processing_time_ms = currentProcessingTimeInMs
        self._watermark_ms = currentWatermarkInMs

    def getCurrentProcessingTimeInMs(self) -> int:
        """Return the batch time, milliseconds since the epoch; -1 with time mode ``none``."""
        return self._processing_time_ms

    def getCurrentWatermarkInMs(self) -> int:
        """Return the watermark, milliseconds since the epoch; -1 without one."""
        return self._watermark_ms


class ExpiredTimerInfo:
    """The timer for which ``handleExpiredTimer`` is called."""

    def __init__(self, expiryTimeInMs: int = _NO_TIME) -> None:
        self._expiry_ms = expiryTimeInMs

    def getExpiryTimeInMs(self) -> int:
        """Return the time for which the timer was registered, milliseconds since the epoch."""
        return self._expiry_ms


class StatefulProcessor(ABC):
    """The logic of ``transformWithState``; a copy of it runs for each partition of each batch.

    Keep everything that must outlast a batch in state variables, not in attributes.

    Semantics: pyspark.sql.streaming.StatefulProcessor (4.3), with rows instead of pandas.
    """

    @abstractmethod
    def init(self, handle: StatefulProcessorHandle) -> None:
        """Define the state variables; called first, and once when the query is defined.

        Args:
            handle: access to state variables and timers.
        """

    @abstractmethod
    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterable[Any]:
        """Return output rows for the records of a key in a batch.

        Args:
            key: the grouping key, a tuple.
            rows: the records of the key; a record that is a dict comes as a Row.
            timerValues: the times of the batch.
        """

    def handleExpiredTimer(
        self, key: tuple[Any, ...], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterable[Any]:
        """Return output rows for an expired timer, which is deleted afterwards.

        Args:
            key: the grouping key, a tuple.
            timerValues: the times of the batch.
            expiredTimerInfo: the timer.
        """
        return iter(())

    def handleInitialState(  # noqa: B027 - optional
        self, key: tuple[Any, ...], initialState: Any, timerValues: TimerValues
    ) -> None:
        """Store a row of the initial state of a key; called in the first batch only.

        Args:
            key: the grouping key, a tuple.
            initialState: the row.
            timerValues: the times of the batch.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Release what ``init`` has opened; called last."""


class HandleState(Enum):
    """What a handle is used for at the moment."""

    PRE_INIT = 0
    CREATED = 1
    INITIALIZED = 2
    DATA_PROCESSED = 3
    TIMER_PROCESSED = 4
    CLOSED = 5


class StatefulProcessorHandle:
    """Access to the state variables and timers of one key at a time.

    Args:
        where: the operation, for errors.
        timeMode: the clock of timers.
        store: the store of the partition; None in the driver, where ``init`` only defines.
        variables: the definitions that ``init`` made in the driver.
        now_ms: the batch time, milliseconds since the epoch.
        batch: a number that increases from batch to batch.
        metrics: counts the changes.
    """

    def __init__(
        self,
        where: str,
        timeMode: TimeMode,
        store: StateWriter | None = None,
        variables: Mapping[str, StateVariable] | None = None,
        now_ms: int = _NO_TIME,
        batch: int = 0,
        metrics: StateMetrics | None = None,
    ) -> None:
        self.where = where
        self.now_ms = now_ms
        self.metrics = StateMetrics() if metrics is None else metrics
        self.variables: dict[str, StateVariable] = dict(variables or {})
        self.deleted: list[str] = []
        self.key: tuple[Any, ...] | None = None
        self.state = HandleState.PRE_INIT if store is None else HandleState.CREATED
        self._mode = timeMode
        self._store = store
        self.values = None if store is None else ValuesAhead(store, where)
        self._entries = None if store is None else PutsTogether(store, where)
        self._batch = batch
        self._numbers = count()

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Define a state variable with one row per key.

        Args:
            stateName: its name; it identifies the state across restarts.
            schema: a StructType or its DDL text, such as ``"count long, last string"``.
            ttlDurationMs: milliseconds after its last update at which a row expires, None for
                never; with time mode ``processingTime`` only.

        Raises:
            InvalidStateCallError: called outside of ``init``.
            InvalidStreamError: the name is taken or invalid, or the schema or the TTL is invalid.
        """
        self._require("get_value_state", HandleState.CREATED)
        return ValueState(self, self._defined("value", stateName, schema, None, ttlDurationMs))

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        """Define a state variable with any number of rows per key, which expire one by one.

        Arguments and errors as of :meth:`getValueState`.
        """
        self._require("get_list_state", HandleState.CREATED)
        return ListState(self, self._defined("list", stateName, schema, None, ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Define a state variable with rows by map keys per key, which expire one by one.

        Args:
            stateName: its name.
            userKeySchema: the schema of map keys.
            valueSchema: the schema of rows.
            ttlDurationMs: as of :meth:`getValueState`, which raises the same errors.
        """
        self._require("get_map_state", HandleState.CREATED)
        schemas = valueSchema, userKeySchema
        return MapState(self, self._defined("map", stateName, *schemas, ttlDurationMs))

    def deleteIfExists(self, stateName: str) -> None:
        """Delete all rows of a state variable that ``init`` no longer defines.

        Raises:
            InvalidStateCallError: called outside of ``init``.
            InvalidStreamError: ``init`` defines the variable.
        """
        self._require("delete_if_exists", HandleState.CREATED)
        _require_name(self.where, stateName)
        if stateName in self.variables:
            raise InvalidStreamError(
                f"{self.where}: init defines the state variable {stateName!r} and deletes it; do "
                "one of both"
            )
        self.deleted.append(stateName)
        if self._store is not None:
            self.metrics.numRemovedStateRows += self._store.remove_prefix((stateName,))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the key; without effect if it has one for this time.

        Args:
            expiryTimestampMs: the batch time or the watermark from which on it is due,
                milliseconds since the epoch.

        Raises:
            InvalidStateCallError: the time mode is ``none``, or no key is being processed.
            InvalidStreamError: the time is not a whole number of at least 0.
        """
        place = self._timer("register_timer", expiryTimestampMs)
        if self.store.get(place) is None:
            self.store.put(place, True, expiryTimestampMs)
            self.metrics.numRegisteredTimers += 1

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete the timer of the key for a time, if there is one.

        Arguments and errors as of :meth:`registerTimer`.
        """
        place = self._timer("delete_timer", expiryTimestampMs)
        if self.store.get(place) is not None:
            self.store.remove(place)
            self.metrics.numDeletedTimers += 1

    def listTimers(self) -> Iterator[int]:
        """Iterate over the times of the key's timers, the earliest first."""
        place = self._timer("list_timers", 0)[:-1]
        return (found[-1] for found, _ in self.store.prefix(place))

    @property
    def store(self) -> StateWriter:
        """The store, or InvalidStateCallError in the driver."""
        if self._store is None:
            raise self._invalid("access to state")
        return self._store

    def rows(self, kind: str) -> Rows:
        """Return the rows of state variables of a kind; in the driver there is no key to read."""
        rows: Any = self.values if kind == "value" else self._entries
        return cast(Rows, rows)

    def written(self) -> StateWriter:
        """Return the store, with all entries of lists and maps."""
        store = self.store
        if self._entries is not None:
            self._entries.write()
        return store

    def write(self) -> None:
        """Write all rows and entries to the store."""
        self.written()
        if self.values is not None:
            self.values.write()

    def place(self, name: str) -> tuple[Any, ...]:
        """Return the key of a state variable, or of its first part, in the store."""
        if self.key is None:
            raise self._invalid(f"access to {name}")
        return (name, *self.key)

    def next_number(self) -> tuple[int, int]:
        """Return the last part of the key of the next list element; they increase for ever."""
        return self._batch, next(self._numbers)

    def _timer(self, operation: str, expiry_ms: object) -> tuple[Any, ...]:
        """Return the key of a timer in the store."""
        if self._mode is TimeMode.NoTime:
            raise InvalidStateCallError(
                "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] "
                f"{self.where}: {operation} is not possible with time mode 'none'; use "
                "'processingTime' or 'eventTime'"
            )
        self._require(operation, HandleState.INITIALIZED, HandleState.DATA_PROCESSED)
        if isinstance(expiry_ms, bool) or not isinstance(expiry_ms, int) or expiry_ms < 0:
            raise InvalidStreamError(
                f"{self.where}: the time of a timer must be a whole number of milliseconds of at "
                f"least 0, got {expiry_ms!r}"
            )
        return (*self.place(TIMERS), expiry_ms)

    def _defined(
        self, kind: str, name: object, schema: object, key_schema: object, ttl_ms: object
    ) -> StateVariable:
        """Return the definition of a variable, in the driver after checking it."""
        known = self.variables.get(str(name))
        if self._store is not None:
            if known is None or known.kind != kind:
                raise InvalidStreamError(
                    f"{self.where}: init defined no {kind} state {name!r} in the driver; define "
                    "the same state variables at each call"
                )
            return known
        text = _require_name(self.where, name)
        if known is not None or text in self.deleted:
            raise InvalidStreamError(
                f"[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] {self.where}: init defines "
                f"or deletes the state variable {text!r} already; give each its own name"
            )
        where = f"state {text!r} of {self.where}"
        keys = None if key_schema is None else Columns.of(key_schema, where)
        ttl = self._ttl_ms(text, ttl_ms)
        found = StateVariable(text, kind, Columns.of(schema, where), keys, ttl)
        self.variables[text] = found
        return found

    def _ttl_ms(self, name: str, ttl_ms: object) -> int | None:
        if ttl_ms is None:
            return None
        if self._mode is not TimeMode.ProcessingTime:
            raise InvalidStreamError(
                f"[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] {self.where}: state "
                f"{name!r} cannot have a TTL with time mode {self._mode.value!r}; use "
                "'processingTime'"
            )
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or ttl_ms <= 0:
            raise InvalidStreamError(
                f"[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] {self.where}: the TTL of "
                f"state {name!r} must be a positive number of milliseconds, got {ttl_ms!r}"
            )
        return ttl_ms

    def _require(self, operation: str, *states: HandleState) -> None:
        is_in_driver = self.state is HandleState.PRE_INIT and HandleState.CREATED in states
        if self.state not in states and not is_in_driver:
            raise self._invalid(operation)

    def _invalid(self, operation: str) -> InvalidStateCallError:
        return InvalidStateCallError(
            "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] "
            f"{self.where}: {operation} is not possible in handle state {self.state.name}; define "
            "state variables in init, and use state and timers of a key in the handle... methods"
        )


def _require_name(where: str, name: object) -> str:
    if not isinstance(name, str) or not name or name != name.strip() or name.startswith("$"):
        raise InvalidStreamError(
            "[STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME] "
            f"{where}: the name of a state variable must be a text without spaces around it and "
            f"not begin with '$', got {name!r}"
        )
    return name


class _KeyState:
    """A state variable of the key that is being processed."""

    def __init__(self, handle: StatefulProcessorHandle, variable: StateVariable) -> None:
        self._handle = handle
        self._variable = variable
        self._name = variable.name
        self._columns = variable.columns
        self._ttl_ms = variable.ttl_ms
        self._rows = handle.rows(variable.kind)

    @property
    def _place(self) -> tuple[Any, ...]:
        return self._handle.place(self._name)

    def _row(self, columns: Columns, row: Any, what: str = "a row") -> tuple[Any, ...]:
        known = columns.known(row)
        if known is not None:
            return known
        where = f"{what} of state {self._name!r}"
        if row is None:
            raise self._illegal("NULL_VALUE", f"{where} must not be None")
        return columns.row(row, where)

    def _illegal(self, condition: str, problem: str) -> InvalidStreamError:
        return InvalidStreamError(
            f"[ILLEGAL_STATE_STORE_VALUE.{condition}] {self._handle.where}: {problem}; to remove "
            "what is there, call clear()"
        )

    def _put(self, place: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        handle, ttl_ms = self._handle, self._ttl_ms
        expiry_ms = None if ttl_ms is None else handle.now_ms + ttl_ms
        try:
            self._rows.put(place, row if expiry_ms is None else (row, expiry_ms), expiry_ms)
        except Exception as error:
            what = f"state {self._name!r} of key"
            raise_refused(handle.where, what, handle.key, error)
        handle.metrics.numUpdatedStateRows += 1

    def _remove(self, place: tuple[Any, ...]) -> None:
        rows = self._rows
        if rows.get(place) is not None:
            rows.remove(place)
            self._handle.metrics.numRemovedStateRows += 1

    def _remove_all(self) -> None:
        removed = self._handle.written().remove_prefix(self._place)
        self._handle.metrics.numRemovedStateRows += removed

    def _live(self, stored: Any) -> Any:
        """Return the row of an entry; None if it is missing or has expired."""
        if stored is None or self._ttl_ms is None:
            return None if stored is None else self._columns.grown(stored)
        row, expiry_ms = stored
        return None if expiry_ms <= self._handle.now_ms else self._columns.grown(row)

    def _entries(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Iterate over (last part of the key in the store, row), without expired entries."""
        return self._entries_of(self._place)

    def _entries_of(
        self, place: tuple[Any, ...]
    ) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for found, stored in self._handle.written().prefix(place):
            row = self._live(stored)
            if row is not None:
                yield found[len(place) :], row


class ValueState(_KeyState):
    """A state variable with one row per key.

    Rows of keys that come next are read and written together.
    """

    def exists(self) -> bool:
        """Return whether the key has a row."""
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the row of the key, None if it has none."""
        place = self._handle.place(self._name)
        row: tuple[Any, ...] | None = self._live(self._rows.get(place))
        return row

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the row of the key.

        Raises:
            InvalidStreamError: the row does not fit the schema.
            NotStorableError: the store does not take it.
        """
        self._put(self._handle.place(self._name), self._row(self._columns, newValue))

    def clear(self) -> None:
        """Remove the row of the key, if it has one."""
        self._remove(self._place)


class ListState(_KeyState):
    """A state variable with any number of rows per key, in the order in which they were appended.

    To append costs the new rows only.
    """

    def exists(self) -> bool:
        """Return whether the key has rows."""
        return next(self._entries(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of the key."""
        return (row for _, row in self._entries())

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replace the rows of the key. Raises as :meth:`appendList`."""
        rows = self._checked(newState)
        self._remove_all()
        self._append(rows)

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Append a row. Raises as :meth:`ValueState.update`."""
        self._append([self._row(self._columns, newState)])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Append rows.

        Raises:
            InvalidStreamError: the list is empty, or a row does not fit the schema.
            NotStorableError: the store does not take a row.
        """
        self._append(self._checked(newState))

    def clear(self) -> None:
        """Remove the rows of the key."""
        self._remove_all()

    def _checked(self, rows: Iterable[Any] | None) -> list[tuple[Any, ...]]:
        where = f"the list of rows of state {self._name!r}"
        if rows is None:
            raise self._illegal("NULL_VALUE", f"{where} must not be None")
        found = [self._row(self._columns, row) for row in rows]
        if not found:
            raise self._illegal("EMPTY_LIST_VALUE", f"{where} must not be empty")
        return found

    def _append(self, rows: list[tuple[Any, ...]]) -> None:
        place = self._place
        for row in rows:
            self._put((*place, *self._handle.next_number()), row)


class MapState(_KeyState):
    """A state variable with rows by map keys per key. A change costs one entry."""

    def exists(self) -> bool:
        """Return whether the key has entries."""
        return next(self._entries(), None) is not None

    def getValue(self, key: tuple[Any, ...]) -> Row | None:
        """Return the row of a map key, None if it is missing."""
        row = self._value(key)
        return None if row is None else self._columns.named(row)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Return whether there is a row for a map key."""
        return self._value(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Set the row of a map key. Raises as :meth:`ValueState.update`."""
        self._put(self._entry(key), self._row(self._columns, value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Iterate over pairs of map key and row."""
        return self._entries()

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over map keys."""
        return (key for key, _ in self._entries())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows."""
        return (row for _, row in self._entries())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove the row of a map key, if there is one."""
        self._remove(self._entry(key))

    def clear(self) -> None:
        """Remove all entries of the key."""
        self._remove_all()

    def _value(self, key: Any) -> Any:
        place = self._entry(key)
        return self._live(self._rows.get(place))

    def _entry(self, key: Any) -> tuple[Any, ...]:
        columns = self._variable.key_columns
        assert columns is not None, "a map has a schema of keys"
        return (*self._place, *self._row(columns, key, "a map key"))

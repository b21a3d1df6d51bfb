"""Logical operators: the steps of a query, before it is planned.

Each is a frozen value with its children. The rows of a query:

=========================== ====================================================
aggregation                 a ``NamedRow`` of the keys, the window first, and the results
join                        ``(left, right)``; None for a side without a match
other steps                 the results of the user's functions
=========================== ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from pyspark import RDD

from dstreams.common.durations import event_time_us
from dstreams.errors import InvalidStreamError
from dstreams.sources.source import Source
from dstreams.spark.selectors import Field, Spec, fields_of_results, selector, show
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.state.stateful_processor import Columns, StateVariable, TimeMode
from dstreams.structured.named_rows import ResultRows, Window
from dstreams.structured.plan.result_names import each_once, name_of_aggregate, name_of_key
from dstreams.structured.sinks.sink import Sink
from dstreams.structured.sources.static_rows import StaticRows
from dstreams.structured.trees import tree_lines
from dstreams.structured.window_function import SessionWindow, TimeWindow, time_spec

ElementKind = Literal["map", "flatMap", "filter"]
JoinType = Literal["inner", "left_outer", "right_outer", "full_outer", "left_semi", "left_anti"]


@dataclass(frozen=True, eq=False)
class LogicalPlan:
    """A step of a query."""

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        """The steps that this one reads rows from."""
        return ()

    @property
    def is_streaming(self) -> bool:
        """True if rows come from a stream, False in a batch dataset."""
        return any(child.is_streaming for child in self.children)

    @property
    def keeps_state(self) -> bool:
        """True if the step keeps state from batch to batch."""
        return False

    @property
    def event_time(self) -> Spec | None:
        """The field or function with the event time of the rows; None without event time."""
        return None

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        """The function from a record to its event time; None after a map, which changes records."""
        return None

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The names of the fields of a row; None if unknown."""
        return None

    @property
    def windows(self) -> frozenset[str]:
        """The fields that are windows of an aggregation."""
        return frozenset()

    @property
    def label(self) -> str:
        """The name of the step in messages."""
        return type(self).__name__

    def walk(self) -> Iterator[LogicalPlan]:
        """Iterate over the steps, from the sources to this one."""
        for child in self.children:
            yield from child.walk()
        yield self

    def tree(self) -> str:
        """Return the plan as text, the last step first."""
        return "\n".join(tree_lines(self, lambda step: step.label))


@dataclass(frozen=True, eq=False)
class StreamingRelation(LogicalPlan):
    """The records of a source."""

    source: Source

    is_streaming: ClassVar[bool] = True

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.source.fields

    @property
    def label(self) -> str:
        return f"StreamingRelation {self.source.name}"


@dataclass(frozen=True, eq=False)
class BatchRelation(LogicalPlan):
    """Rows that do not come from a stream."""

    rows: StaticRows

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.rows.fields

    @property
    def label(self) -> str:
        return f"BatchRelation {self.rows.name}"


@dataclass(frozen=True, eq=False)
class Unary(LogicalPlan):
    """A step with one child, some of whose rows it may emit unchanged."""

    child: LogicalPlan

    @property
    def emits_rows_of_child(self) -> bool:
        return False

    @property
    def event_time(self) -> Spec | None:
        return self.child.event_time if self.emits_rows_of_child else None

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        return self.child.time_of_record if self.emits_rows_of_child else None

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.child.fields if self.emits_rows_of_child else None

    @property
    def windows(self) -> frozenset[str]:
        return self.child.windows if self.emits_rows_of_child else frozenset()

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        return (self.child,)


@dataclass(frozen=True, eq=False)
class Elements(Unary):
    """A function of each record; results keep the event time of their record.

    Records for which it fails fail the batch or, with *on_error*, are skipped and go to that sink.
    """

    func: Callable[[Any], Any]
    kind: ElementKind
    on_error: Sink | Literal["fail", "skip"] = "fail"

    @property
    def emits_rows_of_child(self) -> bool:
        return self.kind == "filter"

    @property
    def event_time(self) -> Spec | None:
        return self.child.event_time

    @property
    def fields(self) -> tuple[str, ...] | None:
        if self.kind == "filter":
            return self.child.fields
        return fields_of_results(self.func, are_many=self.kind == "flatMap")

    @property
    def label(self) -> str:
        return f"{self.kind} {show(self.func)}"


@dataclass(frozen=True, eq=False)
class Tried(Unary):
    """The records for which functions of the next step do not fail; the others are skipped.

    With a sink as *on_error* they go there.
    """

    functions: tuple[Callable[[Any], Any], ...]
    where: str
    on_error: Sink | Literal["fail", "skip"]

    @property
    def emits_rows_of_child(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return f"Try {self.where}"


@dataclass(frozen=True, eq=False)
class Observe(Unary):
    """Aggregates over the rows of each batch, which the progress reports under a name."""

    name: str
    metrics: tuple[str, ...]
    aggregates: tuple[Any, ...]

    @property
    def emits_rows_of_child(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return f"Observe {self.name} [{', '.join(self.metrics)}]"


@dataclass(frozen=True, eq=False)
class Binary(LogicalPlan):
    """A step with two children."""

    left: LogicalPlan
    right: LogicalPlan

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Union(Binary):
    """The rows of two steps."""

    @property
    def event_time(self) -> Spec | None:
        left = self.left.event_time
        return self.right.event_time if left is None else left

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        left = self.left.time_of_record
        return left if left == self.right.time_of_record else None

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.left.fields if self.left.fields == self.right.fields else None

    @property
    def windows(self) -> frozenset[str]:
        return self.left.windows & self.right.windows


@dataclass(frozen=True, eq=False)
class EventTimeWatermark(Unary):
    """The event time of records, and how late they may be.

    After *idle_ms* without records it no longer holds other watermarks back; None disables this.
    Late records go to *late_output*, if there is one.
    """

    spec: Spec
    func: Callable[[Any], Any]
    delay_ms: int
    idle_ms: int | None = None
    late_output: Sink | None = None

    @property
    def emits_rows_of_child(self) -> bool:
        return True

    @property
    def event_time(self) -> Spec | None:
        return self.spec

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        return self.func

    @property
    def label(self) -> str:
        return f"EventTimeWatermark {show(self.spec)}, {self.delay_ms} ms"


@dataclass(frozen=True, eq=False)
class Stateful(Unary):
    """A step that keeps state; *name* identifies it, None for its position in the plan."""

    name: str | None

    def __post_init__(self) -> None:
        _require_name(self.name, self.label)

    @property
    def keeps_state(self) -> bool:
        return self.is_streaming


def _require_name(name: object, label: str) -> None:
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InvalidStreamError(f"name of {label} must be a text that is not empty, got {name!r}")


@dataclass(frozen=True, eq=False)
class FlatMapGroupsWithState(Stateful):
    """A function of the records and the state of each key."""

    key: Callable[[Any], Any]
    key_text: str
    func: Callable[..., Any]
    mode: OutputMode
    timeout: GroupStateTimeout
    is_map: bool = False
    initial: RDD[Any] | tuple[Any, ...] | None = None
    keep_timer: bool = False

    @property
    def label(self) -> str:
        operation = "mapGroupsWithState" if self.is_map else "flatMapGroupsWithState"
        return f"{operation} {show(self.func)}"


@dataclass(frozen=True, eq=False)
class TransformWithState(Stateful):
    """A stateful processor for the records of each key; *key* returns tuples.

    *output* are the declared columns of its rows, *time_column* the one with their event time.
    """

    key: Callable[[Any], Any]
    key_text: str
    processor: Any
    mode: OutputMode
    time_mode: TimeMode
    variables: Mapping[str, StateVariable]
    deleted: tuple[str, ...] = ()
    output: Columns | None = None
    time_column: str | None = None
    initial: RDD[Any] | tuple[Any, ...] | None = None

    @property
    def event_time(self) -> Spec | None:
        return self.time_column

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        return None if self.time_column is None else Field(self.time_column, self.label)

    @property
    def fields(self) -> tuple[str, ...] | None:
        return None if self.output is None else self.output.names

    @property
    def label(self) -> str:
        return f"transformWithState {type(self.processor).__name__}"


GroupKey = Spec | TimeWindow | SessionWindow


@dataclass(frozen=True, eq=False)
class Aggregate(Stateful):
    """Results over all records of a key; without keys all records are one group.

    *names* are those of the results; None stands for the name of the aggregate itself.
    """

    keys: tuple[GroupKey, ...]
    aggregates: tuple[Any, ...]
    names: tuple[str | None, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        marked = self.child.event_time
        if marked is not None and marked in self.keys and self.child.time_of_record is None:
            raise InvalidStreamError(
                f"groupByKey({show(marked)}) after {self.child.label}: the event time cannot be a "
                "key, because the step makes other records; group by a window of it, or call "
                "withWatermark after that step"
            )

    @property
    def window(self) -> TimeWindow | None:
        """The time window among the keys."""
        return next((key for key in self.keys if isinstance(key, TimeWindow)), None)

    @property
    def session(self) -> SessionWindow | None:
        """The session window among the keys."""
        return next((key for key in self.keys if isinstance(key, SessionWindow)), None)

    @property
    def has_event_time_key(self) -> bool:
        """True if the watermark ends keys."""
        marked = self.child.event_time
        if marked is None:
            return False
        return any(time_spec(key) == marked for key in self.keys)

    @property
    def result(self) -> ResultRows:
        """The fields of the rows, the window first."""
        window = self.window or self.session
        others = [key for key in self.keys if key is not window]
        parts = others if window is None else [window, *others]
        given = [name_of_key(part) for part in parts]
        given += [
            name or name_of_aggregate(one)
            for name, one in zip(self.names, self.aggregates, strict=True)
        ]
        names, count = each_once(given), len(parts)
        windows = tuple(place for place, part in enumerate(parts) if part in self.child.windows)
        return ResultRows(names[:count], names[count:], windows, window is not None)

    @property
    def fields(self) -> tuple[str, ...]:
        return self.result.names

    @property
    def windows(self) -> frozenset[str]:
        result = self.result
        places = (0, *result.windows) if result.has_window else result.windows
        return frozenset(result.keys[place] for place in places)

    @property
    def _time_place(self) -> int | None:
        """The place of the event time in a row; None if it has no event time."""
        if not self.has_event_time_key:
            return None
        is_window = self.window is not None or self.session is not None
        return 0 if is_window else self.keys.index(self.child.event_time)

    @property
    def event_time(self) -> Spec | None:
        place = self._time_place
        return None if place is None else self.fields[place]

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        place = self._time_place
        return None if place is None else TimeOfRow(place)

    @property
    def label(self) -> str:
        return f"Aggregate [{', '.join(map(show, self.keys))}]"


@dataclass(frozen=True)
class TimeOfRow:
    """Function: the event time of a row of an aggregation, in one of its fields.

    The event time of a window is its last millisecond.
    """

    place: int

    def __call__(self, row: Any) -> Any:
        moment = row[self.place]
        return moment.end_ms - 1 if isinstance(moment, Window) else moment


def event_time_of(plan: LogicalPlan, spec: Spec, where: str) -> Callable[[Any], Any]:
    """Return the function for an event time in the rows of a step, which may be a window."""
    if spec in plan.windows and plan.fields is not None:
        return TimeOfRow(plan.fields.index(str(spec)))
    return selector(spec, where, plan.fields)


@dataclass(frozen=True, eq=False)
class Deduplicate(Stateful):
    """The first record of each key; without *specs* the whole record is the key.

    *key* returns the key without the event time; None for the record itself.
    """

    specs: tuple[Spec, ...]
    key: Callable[[Any], Any] | None
    within_watermark: bool = False

    @property
    def emits_rows_of_child(self) -> bool:
        return True

    @property
    def has_event_time_key(self) -> bool:
        """True if the watermark ends keys, because they contain the event time."""
        if not self.specs:
            return self.child.time_of_record is not None
        return self.child.event_time is not None and self.child.event_time in self.specs

    @property
    def label(self) -> str:
        name = "dropDuplicatesWithinWatermark" if self.within_watermark else "dropDuplicates"
        return f"{name} [{', '.join(map(show, self.specs))}]"


@dataclass(frozen=True, eq=False)
class Join(Binary):
    """Pairs of rows with one key and close event times, of streams, batch datasets or one of each.

    Static rows are read again after *refresh_ms*, or once if it is None.

    *within_ms* is ``(least, most)`` of the right event time minus the left one; None if unbounded,
    as may be one of the two. *left_time* and *right_time* return the event time of the records of a
    side that has no watermark.
    """

    left_key: Callable[[Any], Any]
    right_key: Callable[[Any], Any]
    how: JoinType = "inner"
    within_ms: tuple[int | None, int | None] | None = None
    matches: Callable[[Any, Any], bool] | None = None
    name: str | None = None
    left_time: Callable[[Any], Any] | None = None
    right_time: Callable[[Any], Any] | None = None
    refresh_ms: int | None = None

    def __post_init__(self) -> None:
        _require_name(self.name, self.label)

    @property
    def keeps_state(self) -> bool:
        return self.left.is_streaming and self.right.is_streaming

    @property
    def stream(self) -> int | None:
        """The side that is a stream, 0 or 1, if the other is static; else None."""
        if self.left.is_streaming is self.right.is_streaming:
            return None
        return int(self.right.is_streaming)

    @property
    def event_time(self) -> Spec | None:
        if self.stream is not None:
            return self.children[self.stream].event_time
        return self.left.event_time if self.right.event_time is not None else None

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        left, right = self.left.time_of_record, self.right.time_of_record
        if self.stream is not None:
            time = self.children[self.stream].time_of_record
            is_pair = self.how not in ("left_semi", "left_anti")
            return TimeOfSide(self.stream, time) if is_pair and time is not None else time
        if left is None or right is None:
            return None
        return left if self.how in ("left_semi", "left_anti") else LaterTime(left, right)

    @property
    def label(self) -> str:
        return f"{self.how} join"


@dataclass(frozen=True)
class TimeOfSide:
    """Function: the event time of one of the two records of a pair."""

    side: int
    time: Callable[[Any], Any]

    def __call__(self, pair: Any) -> Any:
        return self.time(pair[self.side])


@dataclass(frozen=True)
class LaterTime:
    """Function: the later event time of the two records of a pair."""

    left: Callable[[Any], Any]
    right: Callable[[Any], Any]

    def __call__(self, pair: Any) -> Any:
        sides = zip((self.left, self.right), pair, strict=True)
        moments = [time(record) for time, record in sides if record is not None]
        return max((one for one in moments if one is not None), key=_in_us, default=None)


def _in_us(moment: datetime | int) -> int:
    return event_time_us(moment) if isinstance(moment, datetime) else moment * 1000


@dataclass(frozen=True, eq=False)
class Sort(Unary):
    """All rows of a complete result, in order."""

    key: Callable[[Any], Any]
    ascending: bool = True


@dataclass(frozen=True, eq=False)
class Limit(Stateful):
    """The first rows: of a complete result, or of all batches together."""

    count: int


def side_outputs(plan: LogicalPlan) -> tuple[Sink, ...]:
    """Return the sinks of late records and of records whose function failed, each once."""
    found: list[Sink] = []
    for step in plan.walk():
        given = getattr(step, "late_output", None) or getattr(step, "on_error", None)
        if isinstance(given, Sink):
            found.append(given)
    return tuple(dict.fromkeys(found))


def late_output(plan: LogicalPlan) -> Sink | None:
    """Return the sink of the late records among the rows of a step, None without one."""
    found = tuple(dict.fromkeys(_late_outputs(plan)))
    if len(found) > 1:
        raise InvalidStreamError(
            f"{plan.label}: records of one stream have {len(found)} different lateOutputs; give "
            "all of its watermarks the same"
        )
    return found[0] if found else None


def _late_outputs(plan: LogicalPlan) -> Iterator[Sink]:
    if isinstance(plan, EventTimeWatermark):
        if plan.late_output is not None:
            yield plan.late_output
    elif plan.event_time is not None:
        for child in plan.children:
            yield from _late_outputs(child)

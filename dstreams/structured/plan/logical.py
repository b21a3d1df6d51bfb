"""Logical operators: what a query is, before anybody decides how to run it.

Each is a frozen value with its children. What a query's rows are:

=========================== ====================================================
aggregation                 ``(key, result)``, or ``(key, result, result, ...)``
grouping by several keys    the key is a tuple
grouping by a window        the window is a ``Window`` among the keys
join                        ``(left, right)``; None for a side without a match
everything else             what the user's functions return
=========================== ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pyspark import RDD

from dstreams.common.durations import event_time_us
from dstreams.errors import InvalidStreamError
from dstreams.sources.source import Source
from dstreams.spark.selectors import Spec, show
from dstreams.state.group_state import GroupStateTimeout, OutputMode
from dstreams.structured.operators.time_windows import Window
from dstreams.structured.trees import tree_lines
from dstreams.structured.window_function import SessionWindow, TimeWindow, time_spec

ElementKind = Literal["map", "flatMap", "filter"]
JoinType = Literal["inner", "left_outer", "right_outer", "full_outer", "left_semi"]


@dataclass(frozen=True, eq=False)
class LogicalPlan:
    """A step of a query."""

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        """The steps whose rows this one takes."""
        return ()

    @property
    def event_time(self) -> Spec | None:
        """The field or function that is the rows' event time, None where they have none."""
        return None

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        """The function that gives a row's event time from the record itself.

        None where a map has made another record of it.
        """
        return None

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Names of the fields of a row, None where only the rows know."""
        return None

    @property
    def label(self) -> str:
        """What messages call it."""
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

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.source.fields

    @property
    def label(self) -> str:
        return f"StreamingRelation {self.source.name}"


@dataclass(frozen=True, eq=False)
class Unary(LogicalPlan):
    """A step with one child."""

    child: LogicalPlan

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        return (self.child,)


@dataclass(frozen=True, eq=False)
class Elements(Unary):
    """A function of each record; what comes of a record has its event time."""

    func: Callable[[Any], Any]
    kind: ElementKind

    @property
    def event_time(self) -> Spec | None:
        return self.child.event_time

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        return self.child.time_of_record if self.kind == "filter" else None

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.child.fields if self.kind == "filter" else None

    @property
    def label(self) -> str:
        return f"{self.kind} {show(self.func)}"


@dataclass(frozen=True, eq=False)
class Union(LogicalPlan):
    """The rows of both."""

    left: LogicalPlan
    right: LogicalPlan

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        return (self.left, self.right)

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


@dataclass(frozen=True, eq=False)
class EventTimeWatermark(Unary):
    """Says when records happened, and how late they may be.

    After *idle_ms* without records it holds other watermarks back no more, None for never.
    """

    spec: Spec
    func: Callable[[Any], Any]
    delay_ms: int
    idle_ms: int | None = None

    @property
    def event_time(self) -> Spec | None:
        return self.spec

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        return self.func

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.child.fields

    @property
    def label(self) -> str:
        return f"EventTimeWatermark {show(self.spec)}, {self.delay_ms} ms"


@dataclass(frozen=True, eq=False)
class Stateful(Unary):
    """A step that keeps state; *name* is its identity, None for its place in the plan."""

    name: str | None

    def __post_init__(self) -> None:
        _require_name(self.name, self.label)


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


GroupKey = Spec | TimeWindow | SessionWindow


@dataclass(frozen=True, eq=False)
class Aggregate(Stateful):
    """Results over all records of a key; without keys all records are one group."""

    keys: tuple[GroupKey, ...]
    aggregates: tuple[Any, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        marked = self.child.event_time
        if marked is not None and marked in self.keys and self.child.time_of_record is None:
            raise InvalidStreamError(
                f"groupByKey({show(marked)}) behind {self.child.label}: the event time travels "
                "beside the record, which need not have it any more, so it can be no key; group by "
                "a window of it, or call withWatermark behind that step instead"
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
        """Whether a key ends when the watermark passes it."""
        marked = self.child.event_time
        if marked is None:
            return False
        return any(time_spec(key) == marked for key in self.keys)

    @property
    def event_time(self) -> Spec | None:
        return WINDOW_TIME if self.has_event_time_key else None

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        if not self.has_event_time_key:
            return None
        if self.window is not None or self.session is not None:
            return TimeOfRow(None if len(self.keys) == 1 else 0)
        marked = self.child.event_time
        return TimeOfRow(None if len(self.keys) == 1 else self.keys.index(marked))

    @property
    def label(self) -> str:
        return f"Aggregate [{', '.join(map(show, self.keys))}]"


WINDOW_TIME = "window"
"""The event time of the rows of a windowed aggregation: the last millisecond of the window."""


@dataclass(frozen=True)
class TimeOfRow:
    """Function: the event time in the key of an aggregation's row, where it stands at *place*.

    Of a window it is the last millisecond; without a place it is the key.
    """

    place: int | None

    def __call__(self, row: Any) -> Any:
        moment = row[0] if self.place is None else row[0][self.place]
        return moment.end_ms - 1 if isinstance(moment, Window) else moment


@dataclass(frozen=True, eq=False)
class Deduplicate(Stateful):
    """The first record of each key; without *specs* the whole record counts.

    *key* is a function for the specs without the event time, None for the record itself.
    """

    specs: tuple[Spec, ...]
    key: Callable[[Any], Any] | None
    within_watermark: bool = False

    @property
    def event_time(self) -> Spec | None:
        return self.child.event_time

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        return self.child.time_of_record

    @property
    def fields(self) -> tuple[str, ...] | None:
        return self.child.fields

    @property
    def has_event_time_key(self) -> bool:
        """Whether the watermark ends keys, which needs the event time in them."""
        if not self.specs:
            return self.child.time_of_record is not None
        return self.child.event_time is not None and self.child.event_time in self.specs

    @property
    def label(self) -> str:
        name = "dropDuplicatesWithinWatermark" if self.within_watermark else "dropDuplicates"
        return f"{name} [{', '.join(map(show, self.specs))}]"


@dataclass(frozen=True, eq=False)
class Join(LogicalPlan):
    """Pairs of rows of two streams with one key and close event times.

    *within_ms* is ``(least, most)`` of the right event time minus the left one; None for no bound.
    """

    left: LogicalPlan
    right: LogicalPlan
    left_key: Callable[[Any], Any]
    right_key: Callable[[Any], Any]
    how: JoinType = "inner"
    within_ms: tuple[int, int] | None = None
    matches: Callable[[Any, Any], bool] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _require_name(self.name, self.label)

    @property
    def children(self) -> tuple[LogicalPlan, ...]:
        return (self.left, self.right)

    @property
    def event_time(self) -> Spec | None:
        return self.left.event_time if self.right.event_time is not None else None

    @property
    def time_of_record(self) -> Callable[[Any], Any] | None:
        left, right = self.left.time_of_record, self.right.time_of_record
        if left is None or right is None:
            return None
        return left if self.how == "left_semi" else LaterTime(left, right)

    @property
    def label(self) -> str:
        return f"{self.how} join"


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
    """All rows in order; of a complete result only."""

    key: Callable[[Any], Any]
    ascending: bool = True


@dataclass(frozen=True, eq=False)
class Limit(Stateful):
    """The first rows: of a complete result, or of all batches together."""

    count: int


def stateful(plan: LogicalPlan) -> list[LogicalPlan]:
    """Return the steps that keep state, in the order of the plan."""
    return [step for step in plan.walk() if isinstance(step, (Stateful, Join))]

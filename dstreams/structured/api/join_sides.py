"""The sides of a join: their keys, their event times, and the range between these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from dstreams.common.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import Fields, Spec, key_selector, selector, show
from dstreams.state.flat_map_groups import EventTime
from dstreams.structured.operators.time_windows import TimeWindows, WindowOfRecord
from dstreams.structured.plan.logical import (
    BatchRelation,
    Join,
    JoinType,
    LogicalPlan,
    event_time_of,
)
from dstreams.structured.window_function import TimeWindow, time_spec

_SYNONYMS = {
    "left": "left_outer",
    "leftouter": "left_outer",
    "right": "right_outer",
    "rightouter": "right_outer",
    "full": "full_outer",
    "outer": "full_outer",
    "fullouter": "full_outer",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "anti": "left_anti",
    "leftanti": "left_anti",
}

JoinKey = Spec | TimeWindow
"""A part of the key of a join."""


@dataclass(frozen=True)
class _JoinKey(Fields):
    """The parts of a record as a tuple; None, which matches no key, if a part is None."""

    def __call__(self, record: Any) -> Any:
        key = super().__call__(record)
        return None if any(part is None for part in key) else key


@dataclass(frozen=True)
class JoinSide:
    """The specs of the key of a side, and the function of its event time without a watermark."""

    plan: LogicalPlan
    on: Sequence[Any]
    spec: Spec | None
    time: Callable[[Any], Any] | None

    @classmethod
    def of(cls, plan: LogicalPlan, on: Any, spec: Spec | None, where: str) -> JoinSide:
        time = None
        if spec is not None:
            if plan.event_time is not None:
                raise InvalidStreamError(
                    f"{where} of join: the records already have the event time "
                    f"{show(plan.event_time)}, and its watermark; omit {where}"
                )
            time = event_time_of(plan, spec, f"{where} of join")
        return cls(plan, on if isinstance(on, (list, tuple)) else [on], spec, time)

    def like(self, other: JoinSide) -> JoinSide:
        """Return the side with the event time that *other* has in its key, if it has none."""
        places = [place for place in other.times if place < len(self.on)]
        if self.spec is self.plan.event_time is None and places:
            spec = time_spec(self.on[min(places)])
            time = event_time_of(self.plan, spec, "event time of join")
            return replace(self, spec=spec, time=time)
        return self

    @property
    def times(self) -> set[int]:
        """The places of the event time among the parts of the key."""
        marked = self.spec if self.plan.time_of_record is None else self.plan.event_time
        return {place for place, spec in enumerate(self.on) if time_spec(spec) == marked}

    def require_windows_of(self, other: JoinSide) -> None:
        """Raise InvalidStreamError for windows of both sides that are never equal."""
        for one, two in zip(self.on, other.on, strict=False):
            if not (isinstance(one, TimeWindow) and isinstance(two, TimeWindow)):
                continue
            if (one.size_ms, one.start_ms) != (two.size_ms, two.start_ms):
                raise InvalidStreamError(
                    f"join on {one!r} and {two!r}: their windows are never equal; use windows of "
                    "one size and one start on both sides"
                )

    def range_ms(self, other: JoinSide) -> tuple[int, int] | None:
        """Return the range of event times that follows from equal keys, None without one."""
        ranges = []
        for place in self.times & other.times:
            windows = [on for on in (self.on[place], other.on[place]) if _is_window(on)]
            ranges.append(max((window.size_ms for window in windows), default=0))
        return (-min(ranges), min(ranges)) if ranges else None

    def key(self, where: str) -> Callable[[Any], Any]:
        """Return the function of the key of a record."""
        specs = [self._window_of(spec) if _is_window(spec) else spec for spec in self.on]
        key = key_selector(specs, where, self.plan.fields)
        return _JoinKey(key.parts) if isinstance(key, Fields) else key

    def _window_of(self, window: TimeWindow) -> WindowOfRecord:
        if window.slide_ms < window.size_ms:
            raise InvalidStreamError(
                f"join takes windows that do not overlap, got {window!r}; omit slide, or repeat "
                "each record for its windows with flatMap(f)"
            )
        windows = TimeWindows(window.size_ms, None, window.start_ms)
        where = f"window({show(window.spec)})"
        time = EventTime(selector(window.spec, "window", self.plan.fields), where)
        return WindowOfRecord(windows, time)


def join_of(
    left: JoinSide,
    right: JoinSide,
    how: str,
    within: tuple[str | None, str | None] | None,
    matches: Callable[[Any, Any], bool] | None,
    refresh: str | None,
    name: str | None,
) -> Join:
    """Return the plan of a join with the arguments of StreamingDataset.join."""
    within_ms = _range_ms(within)
    left.require_windows_of(right)
    if within_ms is None:
        left, right = left.like(right), right.like(left)
        within_ms = left.range_ms(right)
    return Join(
        left.plan,
        right.plan,
        left.key("left key of join"),
        right.key("right key of join"),
        _join_type(how),
        within_ms,
        matches,
        name,
        left.time,
        right.time,
        None if refresh is None else _refresh_ms(refresh, left.plan, right.plan),
    )


def _join_type(how: str) -> JoinType:
    """Return the join type for one of pyspark's names."""
    name = str(how).lower()
    name = _SYNONYMS.get(name, name)
    for known in get_args(JoinType):
        if name == known:
            return known  # type: ignore[no-any-return]
    known = ", ".join(get_args(JoinType))
    raise InvalidStreamError(f"argument how of join must be one of {known}, got {how!r}")


def _is_window(on: object) -> bool:
    return isinstance(on, TimeWindow)


def _refresh_ms(refresh: str, left: LogicalPlan, right: LogicalPlan) -> int:
    """Return the interval after which static rows are read again, in milliseconds."""
    refresh_ms = parse_duration_ms(refresh, "refresh of join")
    if refresh_ms <= 0:
        raise InvalidStreamError(f"refresh of join must be positive, got {refresh!r}")
    static = [side for side in (left, right) if not side.is_streaming]
    if not static:
        raise InvalidStreamError("refresh of join needs static data, got two streams; remove it")
    rows = [step.rows for side in static for step in side.walk() if isinstance(step, BatchRelation)]
    if not any(one.can_reload for one in rows):
        names = ", ".join(one.name for one in rows)
        raise InvalidStreamError(
            f"refresh of join needs data that can be read again, got {names}; pass a function that "
            "returns it, or session.read"
        )
    return refresh_ms


def _range_ms(
    within: tuple[str | None, str | None] | None,
) -> tuple[int | None, int | None] | None:
    if within is None:
        return None
    if not isinstance(within, (list, tuple)) or len(within) != 2:
        raise InvalidStreamError(
            f"within of join must be two intervals, such as ('0 seconds', '1 hour'), got {within!r}"
        )
    least_ms, most_ms = (
        None if text is None else parse_duration_ms(text, "within of join") for text in within
    )
    if least_ms is most_ms is None:
        return None
    if least_ms is not None and most_ms is not None and least_ms > most_ms:
        raise InvalidStreamError(
            f"within of join must be a minimum and a maximum, got {within[0]!r} and {within[1]!r}; "
            "swap them"
        )
    return least_ms, most_ms

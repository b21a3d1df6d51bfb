"""The arguments of a join, checked where they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from dstreams.common.callables import require_function
from dstreams.common.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.selectors import Fields, key_selector
from dstreams.structured.plan.logical import Join, JoinType, LogicalPlan

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
}


def join_plan(
    left: LogicalPlan,
    right: LogicalPlan,
    left_on: Any,
    right_on: Any,
    how: str,
    within: tuple[str, str] | None,
    matches: Any,
    name: str | None,
) -> Join:
    """Return the step of a join."""
    if matches is not None:
        require_function(matches, "join", "matches(left, right)", 2)
    return Join(
        left,
        right,
        _key_of(left_on, left.fields),
        _key_of(right_on, right.fields),
        join_type(how),
        _range_ms(within),
        matches,
        name,
    )


def join_type(how: str) -> JoinType:
    """Return the kind of join of that name, as pyspark spells it."""
    name = str(how).lower()
    name = _SYNONYMS.get(name, name)
    for known in get_args(JoinType):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise InvalidStreamError(f"how of join is {how!r}; use one of {', '.join(get_args(JoinType))}")


@dataclass(frozen=True)
class JoinKey(Fields):
    """Function: parts of a record as a tuple, or None, which matches nothing, if one is None."""

    def __call__(self, record: Any) -> Any:
        key = super().__call__(record)
        return None if any(part is None for part in key) else key


def _key_of(on: Any, fields: tuple[str, ...] | None) -> Callable[[Any], Any]:
    key = key_selector(on if isinstance(on, (list, tuple)) else [on], "join", fields)
    return JoinKey(key.parts) if isinstance(key, Fields) else key


def _range_ms(within: tuple[str, str] | None) -> tuple[int, int] | None:
    if within is None:
        return None
    if not isinstance(within, (list, tuple)) or len(within) != 2:
        raise InvalidStreamError(
            f"within of join must be two intervals, such as ('0 seconds', '1 hour'), got {within!r}"
        )
    least_ms, most_ms = (parse_duration_ms(text, "within of join") for text in within)
    if least_ms > most_ms:
        raise InvalidStreamError(
            f"within of join goes from {within[0]!r} to {within[1]!r}, which is backwards"
        )
    return least_ms, most_ms

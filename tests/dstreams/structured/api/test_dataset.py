"""Keys of joins, as in SQL."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.spark.selectors import Spec
from dstreams.structured import StreamingDataset, StreamSession
from tests.dstreams.structured.runs import QueryRun

ROWS: list[dict[str, Any]] = [
    {"a": 1, "b": 2, "t": 1},
    {"a": 1, "b": None, "t": 2},
    {"a": None, "b": None, "t": 3},
]


def both(row: dict[str, Any]) -> Any:
    return row["a"], row["b"]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("on", "met"),
    [
        (["a", "b"], [(1, 1)]),
        (["a", lambda row: row["b"]], [(1, 1)]),
        ("b", [(1, 1)]),
        (both, [(1, 1), (2, 2), (3, 3)]),
    ],
)
def test_none_in_a_key(
    session: StreamSession, on: Spec | list[Spec], met: list[tuple[int, int]]
) -> None:
    """A key of several parts has no match if one part is None; a tuple is one part."""

    def build(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
        return left.join(right, on).map(lambda pair: (pair[0]["t"], pair[1]["t"]))

    run = QueryRun(session, build, "append", inputs=2)
    run.streams[0].addAll(ROWS)
    assert run.add_to(1, *ROWS) == met


def test_none_in_a_key_of_an_outer_join(session: StreamSession) -> None:
    """A row without a whole key goes out alone, as one that has no key."""

    def seconds(row: dict[str, Any]) -> int:
        return 1000 * int(row["t"])

    def build(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
        first, second = (each.withWatermark(seconds, "1 second") for each in (left, right))
        within = ("0 seconds", "5 seconds")
        joined = first.join(second, ["a", "b"], "left_outer", within=within)
        return joined.map(lambda pair: (pair[0]["t"], pair[1] and pair[1]["t"]))

    run = QueryRun(session, build, "append", inputs=2)
    run.streams[1].addAll(ROWS)
    assert run.add_to(0, *ROWS) == [(1, 1), (2, None), (3, None)]

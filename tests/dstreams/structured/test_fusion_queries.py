"""Random queries, with and without fused operators: rows, states and metrics are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dstreams.structured import (
    GroupState,
    GroupStateTimeout,
    StreamingDataset,
    StreamSession,
    session_window,
    window,
)
from dstreams.structured.api.aggregates import Count, Sum
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun

Event = tuple[int, str, int]
Step = Callable[[StreamingDataset], StreamingDataset]

FUSED = "spark.sql.codegen.wholeStage"
FORMATS = [
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
]
COUNTS = [
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "numRowsDroppedByWatermark",
    "numShufflePartitions",
]


def time_of(event: Event) -> int:
    return event[0] * 1000


def letter(event: Event) -> str:
    return event[1]


def number(event: Event) -> int:
    return event[2]


def visits(key: str, values: Iterator[Event], state: GroupState[int]) -> Iterator[Any]:
    if state.hasTimedOut:
        yield key, "left", state.get
        state.remove()
        return
    state.update((state.getOption or 0) + len(list(values)))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 8_000)
    yield key, "has", state.get


def tumbling(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey(window(time_of, "10 seconds"), letter).agg(Count(), Sum(number))


def sliding(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey(window(time_of, "10 seconds", "5 seconds")).count()


def by_letter(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey(letter).agg(Sum(number))


def in_all(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey().count()


def sessions(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey(session_window(time_of, "4 seconds"), letter).count()


def distinct_windows(events: StreamingDataset) -> StreamingDataset:
    return tumbling(events.dropDuplicates([letter, time_of]))


def groups(events: StreamingDataset) -> StreamingDataset:
    timeout = GroupStateTimeout.EventTimeTimeout
    return events.groupByKey(letter).flatMapGroupsWithState(visits, "update", timeout)


QUERIES: list[tuple[Step, list[str]]] = [
    (tumbling, ["append", "update", "complete"]),
    (sliding, ["append", "update", "complete"]),
    (by_letter, ["update", "complete"]),
    (in_all, ["update", "complete"]),
    (sessions, ["append", "complete"]),
    (distinct_windows, ["append"]),
    (groups, ["update"]),
]


def drawn_batches(random: Random) -> list[list[Event]]:
    """Draw batches of events that move on in time, some of them late."""
    return [
        [
            (
                max(0, step * 9 + random.randrange(-15, 12)),
                random.choice("abc"),
                random.randrange(9),
            )
            for _ in range(random.randrange(7))
        ]
        for step in range(1, 6)
    ]


def run(
    session: StreamSession, step: Step, mode: str, batches: list[list[Event]], directory: Path
) -> dict[str, Any]:
    """Run a query with a restart in the middle; return its rows, counts and states."""

    def build(events: StreamingDataset) -> StreamingDataset:
        return step(events.withWatermark(time_of, "5 seconds"))

    query = QueryRun(session, build, mode, directory)
    rows: list[Any] = []
    counts: list[Any] = []
    for place, batch in enumerate(batches):
        if place == len(batches) // 2:
            query.restart()
        rows.append(query.add(*batch))
        counts += [
            [{name: operator[name] for name in COUNTS} for operator in progress["stateOperators"]]
            for progress in query.query.recentProgress
        ]
    operators = range(len(counts[-1]))
    states = [
        sorted(map(repr, session.readState(str(directory)).rows(operatorId=number).collect()))
        for number in operators
    ]
    query.query.stop()
    return {"rows": rows, "counts": counts, "states": states}


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(6))
def test_random_queries(make_session: MakeSession, tmp_path: Path, seed: int) -> None:
    """Output, state and progress of a query do not depend on the rule."""
    random = Random(seed)
    step, modes = QUERIES[seed % len(QUERIES)] if seed < 3 else random.choice(QUERIES)
    mode = random.choice(modes)
    formats = {name: str(random.choice([1, 2])) for name in FORMATS}
    batches = drawn_batches(random)
    found = [
        run(make_session(**formats, **{FUSED: fused}), step, mode, batches, tmp_path / fused)
        for fused in ("true", "false")
    ]
    assert found[0] == found[1], f"{step.__name__} in mode {mode}, {formats}, {batches}"
    assert any(found[0]["rows"])

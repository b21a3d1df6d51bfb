"""State that is moved into another number of partitions: nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dstreams.common import faults
from dstreams.errors import InvalidStreamError, RestartError, StreamLifecycleError
from dstreams.structured import (
    GroupState,
    StatefulProcessor,
    StreamingDataset,
    StreamSession,
    session_window,
    window,
)
from tests.dstreams.structured.runs import QueryRun

Event = tuple[str, int]

KEYS = "abcdefgh"
STEPS: list[list[Event]] = [
    [(key, second) for key in KEYS for second in (1, 8)],
    [(key, second) for key in KEYS[::2] for second in (9, 17)],
    [(key, second) for key in (*KEYS[:3], "new") for second in (18, 30)],
    [("a", 60)],
]
"""The events of each batch: key, second."""


def word(event: Event) -> str:
    return event[0]


def moment_ms(event: Event) -> int:
    return event[1] * 1000


def marked(events: StreamingDataset) -> StreamingDataset:
    return events.withWatermark(moment_ms, "5 seconds")


def counts(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey(word).count()


def total(events: StreamingDataset) -> StreamingDataset:
    return events.groupByKey().count()


def windows(events: StreamingDataset) -> StreamingDataset:
    return marked(events).groupByKey(word, window(moment_ms, "10 seconds", "5 seconds")).count()


def sessions(events: StreamingDataset) -> StreamingDataset:
    return marked(events).groupByKey(word, session_window(moment_ms, "5 seconds")).count()


def distinct(events: StreamingDataset) -> StreamingDataset:
    return events.dropDuplicates(word)


def distinct_events(events: StreamingDataset) -> StreamingDataset:
    return marked(events).dropDuplicates()


def distinct_for_a_while(events: StreamingDataset) -> StreamingDataset:
    return marked(events).dropDuplicatesWithinWatermark(word)


def limited(events: StreamingDataset) -> StreamingDataset:
    return events.limit(20)


def joined(events: StreamingDataset) -> StreamingDataset:
    left, right = marked(events), marked(events)
    return left.join(right, on=word, how="left_outer", within=("1 second", "9 seconds"))


def count_or_end(key: str, events: Iterator[Event], state: GroupState[int]) -> Iterator[Any]:
    if state.hasTimedOut:
        found = state.get
        state.remove()
        return iter([(key, "ended", found)])
    state.update((state.getOption or 0) + sum(1 for _ in events))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 15_000)
    return iter([(key, state.get)])


def groups(events: StreamingDataset) -> StreamingDataset:
    grouped = marked(events).groupByKey(word)
    return grouped.flatMapGroupsWithState(count_or_end, "append", "EventTimeTimeout")


class Everything(StatefulProcessor):
    """Has a value, a list, a map and timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "count long")
        self.seconds = handle.getListState("seconds", "second long")
        self.last = handle.getMapState("last", "parity long", "second long")

    def handleInputRows(self, key: Any, rows: Iterator[Event], timerValues: Any) -> Iterator[Any]:
        total = self.count.get()[0] if self.count.exists() else 0
        for _, second in rows:
            total += 1
            self.seconds.appendValue((second,))
            self.last.updateValue((second % 2,), (second,))
            self.handle.registerTimer((second + 10) * 1000)
        self.count.update((total,))
        seconds = [second for (second,) in self.seconds.get()]
        yield key, total, seconds, sorted(map(str, self.last.iterator()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expired: Any) -> Iterator[Any]:
        yield key, "due", expired.getExpiryTimeInMs()

    def close(self) -> None:
        pass


def processed(events: StreamingDataset) -> StreamingDataset:
    grouped = marked(events).groupByKey(word)
    return grouped.transformWithState(Everything(), None, "append", "eventTime", name="everything")


def chained(events: StreamingDataset) -> StreamingDataset:
    first = marked(events).dropDuplicatesWithinWatermark(word)
    counted = first.groupByKey(word, window(moment_ms, "5 seconds")).count()
    return counted.groupByKey(window("window", "20 seconds")).count()


BUILDS: dict[Callable[..., StreamingDataset], str] = {
    counts: "update",
    total: "complete",
    windows: "append",
    sessions: "append",
    distinct: "append",
    distinct_events: "append",
    distinct_for_a_while: "append",
    limited: "append",
    joined: "append",
    groups: "append",
    processed: "append",
    chained: "append",
}


@pytest.mark.deep
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_results_stay_the_same(
    session: StreamSession, tmp_path: Path, build: Callable[..., StreamingDataset]
) -> None:
    """From two partitions to three, then to one."""
    undisturbed = QueryRun(session, build, BUILDS[build])
    expected = [undisturbed.add(*events) for events in STEPS]
    undisturbed.query.stop()
    undisturbed.forget()

    run, found, location = QueryRun(session, build, BUILDS[build], tmp_path), [], str(tmp_path)
    for events, partitions in zip(STEPS, (3, 1, 1, 1), strict=True):
        found.append(run.add(*events))
        run.query.stop()
        session.repartitionState(location, partitions)
        known = session.readState(location).operators()
        assert {operator.numPartitions for operator in known} == {partitions}
        run.restart()
    run.query.stop()
    assert found == expected


@pytest.mark.deep
@pytest.mark.parametrize("step", ["rec.fence", "begin.start", "begin.done", "commit.start"])
def test_interrupted(session: StreamSession, tmp_path: Path, step: str) -> None:
    """Another call completes it; before that, no query goes on with half of it."""
    run = QueryRun(session, counts, "update", tmp_path)
    run.add(("a", 1), ("b", 1))
    run.query.stop()
    faults._faults[step] = faults.Fault(None, "raise")
    with pytest.raises(RuntimeError, match="fault at"):
        session.repartitionState(str(tmp_path), 3)
    if step in ("begin.done", "commit.start"):
        message = "repartitionState of .* was interrupted"
        with pytest.raises(RestartError, match=message):
            run.restart()
        with pytest.raises(RestartError, match=f"{message}: complete it with numPartitions=3"):
            session.repartitionState(str(tmp_path), 5)
        (problem,) = session.checkRestart(counts(run.streams[0].toDS()), "update", str(tmp_path))
        assert "complete it with numPartitions=3" in problem
    session.repartitionState(str(tmp_path), 3)
    run.restart()
    assert sorted(tuple(row) for row in run.add(("a", 2), ("c", 2))) == [("a", 2), ("c", 1)]
    run.query.stop()


def test_what_is_refused(session: StreamSession, tmp_path: Path) -> None:
    """A running query, a wrong number, no query, and changes over the batch of a move."""
    location = str(tmp_path / "checkpoint")
    with pytest.raises(InvalidStreamError, match=r"numPartitions .* at least 1, got 0"):
        session.repartitionState(location, 0)
    with pytest.raises(RestartError, match="has no committed batch of a query"):
        session.repartitionState(location, 3)
    run = QueryRun(session, counts, "update", tmp_path / "checkpoint")
    run.add(("a", 1))
    with pytest.raises(StreamLifecycleError, match="already running"):
        session.repartitionState(location, 3)
    run.query.stop()
    session.repartitionState(location, 3)
    with pytest.raises(InvalidStreamError, match=r"batch 1 .* moved the state"):
        session.readState(location).changes(0)


@pytest.mark.deep
def test_an_unfinished_batch_comes_first(session: StreamSession, tmp_path: Path) -> None:
    """State is moved only after the last batch that has begun is committed."""
    run = QueryRun(session, counts, "update", tmp_path)
    run.add(("a", 1))
    faults._faults["commit.start"] = faults.Fault(None, "raise")
    run.streams[0].addAll([("b", 1)])
    with pytest.raises(RuntimeError, match="fault at"):
        run.query.processAllAvailable()
    with pytest.raises(RestartError, match=r"batch 1 of .* has begun and is not committed"):
        session.repartitionState(str(tmp_path), 3)

"""Records, states and keys of classes of data: stored by default, in every front."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import SparkContext
from pyspark.sql import Row

from dstreams import State, StateSpec
from dstreams.errors import BatchFailedError, RestartError
from dstreams.structured import (
    GroupState,
    StreamingDataset,
    StreamingQueryException,
    StreamSession,
    window,
)
from dstreams.structured.sources.rate_source import RateRow
from dstreams.testing import BatchDriver, ManualClock
from tests.dstreams.structured.runs import QueryRun


class Status(Enum):
    OPEN = 1
    CLOSED = 2


class Click(NamedTuple):
    user: str
    at_ms: int


@dataclass(frozen=True)
class User:
    name: str
    status: Status = Status.OPEN


@dataclass
class Session:
    clicks: list[Click] = field(default_factory=list)
    pages: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    last: Row | None = None


def itself(record: Any) -> Any:
    return record


def user(record: Any) -> str:
    return str(record.user)


def name(record: Any) -> Any:
    return record[0]


def sessions(key: Any, clicks: Iterator[Click], state: GroupState[Session]) -> list[Any]:
    session = state.getOption or Session()
    for click in clicks:
        session.clicks.append(click)
        session.pages[click.user] += 1
        session.last = Row(at=click.at_ms)
    state.update(session)
    return [(type(key).__name__, key, len(session.clicks), session.last)]


@pytest.mark.deep
def test_join_of_classes(session: StreamSession, tmp_path: Path) -> None:
    """Rows, named tuples and dataclasses wait in a join for the other side, and meet as such."""
    wanted = [Row(k=1, v=2), Click("a", 1), User("a", Status.CLOSED)]
    for number, record in enumerate(wanted):
        by_key = name if isinstance(record, tuple) else itself

        def build(left: StreamingDataset, right: StreamingDataset, by: Any = by_key) -> Any:
            return left.join(right, (by, by))

        run = QueryRun(session, build, "append", tmp_path / str(number), inputs=2)
        assert run.add(record) == []
        run.restart()
        ((left, right),) = run.add_to(1, record)
        assert (type(left), left, right) == (type(record), record, record)
        run.query.stop()


def test_join_of_rate_rows(session: StreamSession, clock: ManualClock) -> None:
    """Two streams of the rate source are joined as they are."""

    def rate() -> StreamingDataset:
        return session.readStream.format("rate").option("rowsPerSecond", 2).load()

    query = rate().join(rate(), "value").writeStream.format("memory").queryName("rates").start()
    clock.advance(2000)
    query.processAllAvailable()
    pairs = sorted(session.table("rates"))
    assert [left.value for left, _ in pairs] == [0, 1, 2, 3]
    assert all(isinstance(row, RateRow) for pair in pairs for row in pair)
    query.stop()


@pytest.mark.deep
def test_state_and_keys_of_classes(session: StreamSession, tmp_path: Path) -> None:
    """A dataclass with all that may be in it is state, and classes of data are keys, over restarts.

    A key comes to the function as what it is.
    """
    for number, key in enumerate((itself, lambda click: User(click.user), lambda _: Status.OPEN)):

        def build(clicks: StreamingDataset, by: Any = key) -> StreamingDataset:
            return clicks.groupByKey(by).flatMapGroupsWithState(sessions, "update")

        run = QueryRun(session, build, "update", tmp_path / str(number))
        click = Click("a", 5)
        made = key(click)
        assert run.add(click) == [(type(made).__name__, made, 1, Row(at=5))]
        run.restart()
        assert run.add(click) == [(type(made).__name__, made, 2, Row(at=5))]
        (row,) = session.readState(str(tmp_path / str(number))).rows().collect()
        assert (type(row.key), row.key) == (type(made), made)
        assert row.value == Session([click, click], defaultdict(int, a=2), Row(at=5))
        run.query.stop()


def test_windows_and_counters_as_state(session: StreamSession, tmp_path: Path) -> None:
    """The rows of windows are records of a further state; counters are buffers and states."""

    def keep(key: Any, rows: Iterator[Any], state: GroupState[Any]) -> list[Any]:
        found = state.getOption or Counter()
        found.update(rows)
        state.update(found)
        return [found]

    def build(clicks: StreamingDataset) -> StreamingDataset:
        timed = clicks.withWatermark("at_ms", "0 seconds")
        return (
            timed.groupByKey(window("at_ms", "10 seconds"))
            .count()
            .groupByKey(lambda _: "all")
            .flatMapGroupsWithState(keep, "append")
        )

    run = QueryRun(session, build, "append", tmp_path / "checkpoint")
    run.add(Click("a", 1000), Click("b", 2000))
    (found,) = run.add(Click("a", 30_000))
    ((row, times),) = found.items()
    assert (type(row[0]).__name__, row[1], times) == ("Window", 2, 1)


@pytest.mark.deep
def test_unnamed_class_says_how_to_name_it(session: StreamSession, tmp_path: Path) -> None:
    """An error names a class that only a value has, with remedies; each of them works."""

    def keep(key: Any, rows: Iterator[Any], state: GroupState[Any]) -> list[Any]:
        state.update((1, [_hidden_class()(*range(6))]))
        return [key]

    def build(words: StreamingDataset) -> StreamingDataset:
        return words.groupByKey(itself).flatMapGroupsWithState(keep, "update")

    run = QueryRun(session, build, "update", tmp_path / "checkpoint")
    with pytest.raises(
        StreamingQueryException,
        match=r"the state of key 'a' cannot be stored: it holds a sched.Event "
        r"\(in state\[1\]\[0\]\), which is of a class of data that the program does not register; "
        r"name it .* or by stateClasses\(...\) of the StreamingContext, the StreamSession or",
    ):
        run.add("a")
    session.stateClasses(_hidden_class())
    run.restart()
    assert run.add() == ["a"]


def _hidden_class() -> Any:
    """Return a named tuple of a module that no module of the program imports."""
    return import_module("sched").Event


def seen(key: User, value: int, state: State[Session]) -> tuple[User, int]:
    session = state.getOption or Session()
    session.clicks.append(Click(key.name, value))
    state.update(session)
    return key, len(session.clicks)


def test_classes_in_map_with_state(sc: SparkContext) -> None:
    """Dataclasses are keys and states of mapWithState, and in its snapshots, as they are."""
    with BatchDriver(sc) as driver:
        given = driver.input([[(User("a"), 1), (User("b"), 1)], [(User("a"), 2)]])
        mapped = given.mapWithState(StateSpec.function(seen))
        rows, states = driver.output(mapped), driver.output(mapped.stateSnapshots())
        driver.run(2)
        assert rows[1] == [(User("a"), 2)]
        assert dict(states[1] or ()) == {
            User("a"): Session([Click("a", 1), Click("a", 2)]),
            User("b"): Session([Click("b", 1)]),
        }


def keep_hidden(key: str, value: Any, state: State[Any]) -> None:
    state.update(_hidden_class()(*range(6)))


@pytest.mark.deep
def test_spec_lists_classes(sc: SparkContext) -> None:
    """A class that the program names nowhere else is listed by the StateSpec."""
    spec = StateSpec.function(keep_hidden)
    with BatchDriver(sc) as driver:
        driver.output(driver.input([[("a", 1)]]).mapWithState(spec))
        with pytest.raises(BatchFailedError, match=r"sched.Event"):
            driver.run(1)
    with BatchDriver(sc) as driver:
        mapped = driver.input([[("a", 1)]]).mapWithState(spec.stateClasses(_hidden_class()))
        states = driver.output(mapped.stateSnapshots())
        driver.run(1)
        assert [state.priority for _, state in states[0] or ()] == [1]


def updated(values: list[Click], state: User | None) -> User:
    return User(values[-1].user, Status.CLOSED) if values else state or User("none")


@pytest.mark.deep
def test_any_class_in_update_state_by_key(sc: SparkContext) -> None:
    """States of updateStateByKey and records in windows take classes of any kind, enums too."""
    with BatchDriver(sc) as driver:
        given = driver.input([[(Status.OPEN, Click("a", 1))], [], [(Status.OPEN, Click("b", 1))]])
        states = driver.output(given.updateStateByKey(updated))
        windows = driver.output(given.reduceByKeyAndWindow(max, None, 2, 1))
        driver.run(3)
        assert [batch and batch[0] for batch in states] == [
            (Status.OPEN, User("a", Status.CLOSED)),
            (Status.OPEN, User("a", Status.CLOSED)),
            (Status.OPEN, User("b", Status.CLOSED)),
        ]
        assert windows[0] == [(Status.OPEN, Click("a", 1))]


@pytest.mark.deep
def test_changed_class_after_a_restart(
    session: StreamSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of the program's own file that lost a field is refused, or goes to a function."""
    main = sys.modules["__main__"]

    def define(*names: str) -> Any:
        kind = type("Total", (), {"__annotations__": dict.fromkeys(names, int)})
        kind.__module__ = "__main__"
        made = dataclass(kind)
        monkeypatch.setattr(main, "Total", made, raising=False)
        return made

    def build_for(kind: Any) -> Any:
        def keep(key: Any, rows: Iterator[Any], state: GroupState[Any]) -> list[Any]:
            first = state.getOption or kind(0)
            state.update(kind(next(iter(vars(first).values())) + len(list(rows))))
            return [repr(state.get)]

        return lambda words: words.groupByKey(itself).flatMapGroupsWithState(keep, "update")

    run = QueryRun(session, build_for(define("count")), "update", tmp_path / "checkpoint")
    assert run.add("a") == ["Total(count=1)"]
    renamed = define("total")
    problem = (
        r"the state of 'flatMapGroupsWithState.*': a stored dataclass __main__\.Total has the "
        r"fields count, but the field 'count' is gone, .*'total' is new .* now; restore"
    )
    with pytest.raises(RestartError, match=problem):
        run.restart(build_for(renamed))
    changed = build_for(renamed)(session.memoryStream().toDS())
    (found,) = session.checkRestart(changed, "update", str(tmp_path / "checkpoint"))
    assert re.search(problem, found)
    session.stateClasses(upgrade=lambda name, fields: renamed(fields["count"]))
    run.restart()
    assert run.add("a") == ["Total(total=2)"]

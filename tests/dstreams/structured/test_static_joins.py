"""Joins of a stream with static data, as tables of input batches to output batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from checkpoint import open_files
from checkpoint.cli.savepoint import needed_files
from checkpoint.cli.verify import verify_stream
from dstreams.errors import InvalidStreamError
from dstreams.spark.failures import UserFunctionError
from dstreams.state.function_errors import NotStorableError
from dstreams.structured import StreamingDataset, StreamSession, window
from dstreams.structured.execution import micro_batch
from dstreams.testing import ManualClock
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun
from tests.dstreams.structured.test_recovery import die_at
from tests.support.waiting import wait_for

Dataset = StreamingDataset[Any]
Build = Callable[..., Dataset]

SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1"}

USERS = [("ann", "A"), ("bob", "B"), ("bob", "C"), (None, "N"), ("eve", "E")]
BATCHES = [[("ann", 1), ("bob", 2)], [("zoe", 3), (None, 4)], [("ann", 5)]]


def first(row: Any) -> Any:
    return row[0]


def pair(user: Any, number: int, letter: str | None) -> tuple[Any, Any]:
    return (user, number), None if letter is None else (user, letter)


MATCHES = [
    [pair("ann", 1, "A"), pair("bob", 2, "B"), pair("bob", 2, "C")],
    [],
    [pair("ann", 5, "A")],
]
ALONE = [pair("zoe", 3, None), pair(None, 4, None)]

JOINS: dict[str, list[list[Any]]] = {
    "inner": MATCHES,
    "left_outer": [MATCHES[0], ALONE, MATCHES[2]],
    "left_semi": [BATCHES[0], [], BATCHES[2]],
    "left_anti": [[], BATCHES[1], []],
}
"""The rows of each batch with the stream on the left."""


def is_b_or_small(left: Any, right: Any) -> bool:
    """Match some of the pairs of a key."""
    return bool(right[1] == "B" or left[1] < 2)


@pytest.mark.parametrize("conf", [{}, SHUFFLED], ids=["broadcast", "shuffled"])
@pytest.mark.parametrize("how", JOINS)
def test_stream_on_the_left(make_session: MakeSession, how: str, conf: dict[str, str]) -> None:
    """Each record meets the static rows of its key; None meets nothing; batches do not matter."""
    run = QueryRun(make_session(**conf), lambda numbers: numbers.join(USERS, first, how), "append")
    for batch, rows in zip(BATCHES, JOINS[how], strict=True):
        assert run.add(*batch) == sorted(rows, key=repr)
    way = "shuffle into 2 partitions" if conf else "broadcast of 5 rows"
    assert way in run.query.explanation()


@pytest.mark.parametrize("conf", [{}, SHUFFLED], ids=["broadcast", "shuffled"])
def test_stream_on_the_right(make_session: MakeSession, conf: dict[str, str]) -> None:
    """The static side may be on the left of an inner or right outer join, with other keys."""
    session = make_session(**conf)

    def build(numbers: Dataset) -> Dataset:
        names = session.createDataset(USERS).map(lambda row: {"name": row[0], "letter": row[1]})
        return names.join(
            numbers,
            "name",
            "right_outer",
            otherOn=first,
            matches=lambda name, number: number[1] != 2,
        ).map(lambda row: (row[0] and row[0]["letter"], row[1]))

    run = QueryRun(session, build, "append")
    assert run.add(*BATCHES[0]) == [("A", ("ann", 1)), (None, ("bob", 2))]
    assert run.add(*BATCHES[1]) == [(None, ("zoe", 3)), (None, (None, 4))]


def test_kinds_of_static_data(session: StreamSession, sc: SparkContext) -> None:
    """A list, an RDD, a function and a batch dataset join alike, in update mode too."""
    kinds: list[Any] = [
        [("ann", "A")],
        sc.parallelize([("ann", "A")], 3),
        lambda: [("ann", "A")],
        session.createDataset([("ann", 1), ("ann", 2)])
        .groupByKey(first)
        .count()
        .map(lambda row: (row[0], "AB"[row[1] - 2])),
    ]

    def build(numbers: Dataset) -> Dataset:
        joined = numbers
        for data in kinds:
            joined = joined.join(data, first).map(lambda row: (row[0][0], row[0][1] + row[1][1]))
        return joined.groupByKey(first).reduceGroups(max)

    run = QueryRun(session, build, "update")
    assert run.add(("ann", ""), ("bob", "")) == [("ann", ("ann", "AAAA"))]


@pytest.mark.deep
def test_a_data_frame(session: StreamSession, sc: SparkContext) -> None:
    """Its rows are Rows, whose columns are the fields of the static side."""
    frame = SparkSession(sc).createDataFrame([("ann", "A")], "user string, letter string")
    run = QueryRun(session, lambda s: s.join(frame, first, "left", otherOn="user"), "append")
    (matched,) = run.add(("ann", 1))
    assert matched[1].letter == "A"
    with pytest.raises(
        InvalidStreamError, match=r"right key of join: unknown field 'name'.*user, letter"
    ):
        session.memoryStream().toDS().join(frame, first, otherOn="name")


def test_event_times_stay(session: StreamSession) -> None:
    """Windows after the join end with the watermark of the stream, and within is a condition."""
    sizes = [{"shop": "a", "from": 0, "size": 1}, {"shop": "a", "from": 15_000, "size": 2}]

    def build(sales: Dataset) -> Dataset:
        return (
            sales.withWatermark("at", "5 seconds")
            .join(sizes, "shop", within=(None, "0 seconds"), otherEventTime="from")
            .filter(lambda row: row[1]["size"] < 3)
            .groupByKey(window("at", "10 seconds"), lambda row: row[1]["size"])
            .count()
            .map(lambda row: (row.window.start_ms, row.key, row.count))
        )

    run = QueryRun(session, build, "append")
    assert run.add({"shop": "a", "at": 1_000}, {"shop": "a", "at": 16_000}) == [(0, 1, 1)]
    assert run.add({"shop": "a", "at": 26_000}) == [(10_000, 1, 1), (10_000, 2, 1)]
    assert run.query.explanation().count("StaticJoin") == 1


UNMATCHED = [(None, ("eve", "E")), (None, (None, "N"))]

BATCH_JOINS: dict[str, list[Any]] = {
    **{how: [row for rows in batches for row in rows] for how, batches in JOINS.items()},
    "right_outer": [*MATCHES[0], *MATCHES[2], *UNMATCHED],
    "full_outer": [*MATCHES[0], *ALONE, *MATCHES[2], *UNMATCHED],
}
"""The rows of the joins of streams, and of the types that only batch datasets have."""


@pytest.mark.parametrize("how", BATCH_JOINS)
def test_two_batch_datasets(session: StreamSession, how: str) -> None:
    """All types of joins are possible, and those of streams have the same rows."""
    numbers = session.createDataset([row for batch in BATCHES for row in batch])
    joined = numbers.join(USERS, first, how)
    assert sorted(joined.collect(), key=repr) == sorted(BATCH_JOINS[how], key=repr)


def test_condition_of_an_outer_join(session: StreamSession) -> None:
    """A row whose matches all fail the condition is alone, on both sides."""
    numbers = session.createDataset([("ann", 1), ("ann", 7), ("bob", 2)])
    joined = numbers.join(USERS[:3], first, "full", matches=is_b_or_small)
    assert sorted(joined.collect(), key=repr) == sorted(
        [
            *(pair("ann", 1, "A"), pair("ann", 7, None), pair("bob", 2, "B")),
            (None, ("bob", "C")),
        ],
        key=repr,
    )


REFUSED: dict[str, tuple[Build, str]] = {
    "right outer": (lambda s: s.join(USERS, first, "right"), "stream on the left.*use inner, left"),
    "full outer": (lambda s: s.join(USERS, first, "full"), "a full_outer join with a stream"),
    "anti of streams": (
        lambda s: s.join(s, first, "anti"),
        "left_anti join of streams",
    ),
    "within without times": (
        lambda s: s.join(USERS, first, within=("0 s", None)),
        "needs event times on both sides",
    ),
    "text": (lambda s: s.join("users", first), "join takes a list.*got str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(session: StreamSession, case: str) -> None:
    """Joins for which a static row would wait for the end of the stream are refused."""
    build, message = REFUSED[case]
    with pytest.raises(InvalidStreamError, match=message):
        QueryRun(session, build, "append")


def test_left_outer_with_the_stream_on_the_right(session: StreamSession) -> None:
    """It is refused, with the joins that are possible."""
    with pytest.raises(InvalidStreamError, match=r"stream on the right.*use inner, right"):
        QueryRun(session, lambda s: session.createDataset(USERS).join(s, first, "left"), "append")


def test_errors_of_keys(session: StreamSession, clock: ManualClock) -> None:
    """A key that cannot be looked up, or a key function that fails, names the join and the key."""
    with pytest.raises(UserFunctionError, match=r"inner join.*division"):
        QueryRun(session, lambda s: s.join([1], lambda n: 1 // (n - 1)), "append")
    run = QueryRun(session, lambda s: s.join([(1, 2)], first), "append")
    with pytest.raises(Exception, match=r"inner join: the key \[1\] cannot be placed"):
        run.add(([1], 2))


class Letters:
    """Static data that changes, joined in a query with a checkpoint."""

    def __init__(
        self,
        make_session: MakeSession,
        directory: Path,
        refresh: str | None = "10 seconds",
        **conf: str,
    ) -> None:
        self.letter = "A"
        self.directory = directory
        self.refresh = refresh
        self.run = QueryRun(make_session(**conf), self.joined, "append", directory)

    def joined(self, numbers: Dataset) -> Dataset:
        joined = numbers.join(lambda: [("ann", self.letter)], first, refresh=self.refresh)
        return joined.map(lambda row: row[1][1])

    def add(self) -> list[Any]:
        return self.run.add(("ann", 1))

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("rdds/static/state/*/*"))


def test_refresh(make_session: MakeSession, clock: ManualClock, tmp_path: Path) -> None:
    """The driver's clock decides when rows are read again; equal rows are written once."""
    letters = Letters(make_session, tmp_path / "checkpoint")
    assert letters.add() == ["A"]
    letters.letter = "B"
    clock.advance(9_999)
    assert letters.add() == ["A"]
    clock.advance(1)
    assert letters.add() == ["B"]
    clock.advance(10_000)
    assert letters.add() == ["B"]
    assert len(letters.files()) == 2
    letters.letter = "C"
    clock.advance(9_999)
    assert letters.add() == ["B"]


@pytest.mark.parametrize("step", ["begin.done", "out.start"])
@pytest.mark.parametrize("refresh", ["10 seconds", None])
def test_a_batch_that_runs_again(
    make_session: MakeSession, clock: ManualClock, tmp_path: Path, step: str, refresh: str | None
) -> None:
    """It sees the rows that it has seen before the crash, the next batch those of the restart."""
    letters = Letters(make_session, tmp_path / "checkpoint", refresh)
    assert letters.add() == ["A"]
    die_at(step)
    with pytest.raises(RuntimeError, match="fault at"):
        letters.add()
    letters.letter = "B"
    clock.advance(60_000)
    letters.run.restart()
    assert letters.run.outputs() == ["A"]
    assert letters.add() == ["B"]
    files = open_files(str(letters.directory))
    assert verify_stream(files).problems == []
    kept = {str(path.relative_to(letters.directory)) for path in letters.files()}
    assert kept <= set(needed_files(files))
    letters.files()[0].unlink()
    (problem,) = verify_stream(files).problems
    assert "rdds/static/" in str(problem)


def test_many_rows_are_not_kept(
    make_session: MakeSession, clock: ManualClock, tmp_path: Path
) -> None:
    """A batch that runs again sees the rows that the restart has read; refresh is refused."""
    with pytest.raises(InvalidStreamError, match=r"refresh must fit into memory.*remove"):
        Letters(make_session, tmp_path / "refused", **SHUFFLED)
    letters = Letters(make_session, tmp_path / "checkpoint", None, **SHUFFLED)
    die_at("out.start")
    with pytest.raises(RuntimeError, match="fault at"):
        letters.add()
    letters.letter = "B"
    letters.run.restart()
    assert letters.run.outputs() == ["B"]
    assert letters.files() == []


def test_files_that_no_batch_needs(
    make_session: MakeSession,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file of a version is deleted when the last begin record that names it is."""
    monkeypatch.setattr(micro_batch, "_CLEAN_EVERY", 1)
    keeps = {"spark.sql.streaming.minBatchesToRetain": "1"}
    letters = Letters(make_session, tmp_path / "checkpoint", **keeps)
    first_file = letters.files()
    for letter in "ABBBB":
        letters.letter = letter
        assert letters.add() == [letter]
        clock.advance(10_000)
    wait_for(lambda: not first_file[0].exists())
    assert len(letters.files()) == 1


STATIC_REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "rows without a function": (USERS, {"refresh": "1 s"}, "refresh of join.*got 5 rows; pass"),
    "no interval": (lambda: USERS, {"refresh": "0 s"}, "refresh of join must be positive"),
    "rows that cannot be stored": (lambda: [("a", object())], {}, "static rows cannot be stored"),
}


@pytest.mark.parametrize("case", STATIC_REFUSED)
def test_static_rows_refused(session: StreamSession, tmp_path: Path, case: str) -> None:
    """Rows that cannot be read again or kept are refused before the first batch."""
    data, arguments, message = STATIC_REFUSED[case]
    with pytest.raises((InvalidStreamError, NotStorableError), match=message):
        QueryRun(session, lambda s: s.join(data, first, **arguments), "append", tmp_path / "c")


def test_refresh_of_two_streams(session: StreamSession) -> None:
    """It is refused, as nothing is static; two batch datasets are read once."""
    stream = session.memoryStream().toDS()
    with pytest.raises(InvalidStreamError, match="refresh of join needs static data"):
        stream.join(stream, first, refresh="1 minute")
    numbers = session.createDataset([("ann", 1)])
    joined = numbers.join(lambda: [("ann", "A")], first, refresh="1 minute")
    assert joined.collect() == [pair("ann", 1, "A")]

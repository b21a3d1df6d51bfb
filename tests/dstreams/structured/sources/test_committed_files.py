"""Manifests of a file sink: few, complete at any moment, and the same for every reader."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CheckpointError
from dstreams.errors import RestartError
from dstreams.sinks.committed_directory import Manifest
from dstreams.sinks.output_batch import OutputBatch
from dstreams.structured.sources import committed_files as module
from dstreams.structured.sources.committed_files import (
    CommittedFiles,
    VisibleFiles,
    committed_files,
)
from tests.support.faults import FAULTS, Effect, FaultyFiles, Interrupted, SimulatedCrash, fault_ids

NO_SPARK: Any = None


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a power loss."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def name(batch_id: int, by: str = "") -> str:
    return f"part-{batch_id}{by}.txt"


def own(batch_id: int) -> OutputBatch:
    return OutputBatch("query", batch_id, 0, "aa")


def wanted(last: int) -> dict[int, list[str]]:
    return {batch_id: [name(batch_id)] for batch_id in range(last + 1)}


def run(committed: CommittedFiles, first: int, last: int, by: str = "") -> None:
    """Write batches, as a sink does."""
    for batch_id in range(first, last + 1):
        if not committed.has(own(batch_id)):
            committed.add(own(batch_id), [name(batch_id, by)])


def sink(directory: Path) -> CommittedFiles:
    return CommittedFiles(str(directory), "query")


def records(directory: Path) -> list[int]:
    """The numbers of the records that are there."""
    return sorted(int(path.name) for path in (directory / "_committed").glob("0*"))


@pytest.mark.deep
def test_records_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches there are, few records are there, and fewer are read at a restart."""
    committed, most = sink(tmp_path), 0
    for batch_id in range(1200):
        run(committed, batch_id, batch_id)
        most = max(most, len(records(tmp_path)))
    assert most <= 202
    assert committed_files(str(tmp_path)) == wanted(1199)
    opened = FaultyFiles(committed.directory.files, at=-1)
    monkeypatch.setattr(module, "open_output", lambda directory: opened)
    again = sink(tmp_path)
    assert sum(call.startswith("read") for call in opened.calls) <= 102
    assert all(again.has(own(batch_id)) for batch_id in range(1200))
    assert not again.has(own(1200))


def test_few_batches_have_a_record_each(tmp_path: Path) -> None:
    """The tenth manifest lists all batches; the next one of its kind deletes the obsolete ones."""
    committed = sink(tmp_path)
    run(committed, 0, 18)
    assert records(tmp_path) == list(range(19))
    told = json.loads((tmp_path / "_committed" / "0000000009").read_bytes())["before"]
    assert [one["batch_id"] for one in told] == list(range(9))
    run(committed, 19, 19)
    assert records(tmp_path) == list(range(9, 20))
    assert committed_files(str(tmp_path)) == wanted(19)


def test_going_back_writes_nothing_anew(tmp_path: Path) -> None:
    """A rewound query finds an early batch written, whichever manifest lists it."""
    run(sink(tmp_path), 0, 35)
    run(sink(tmp_path), 3, 36, "again")
    assert committed_files(str(tmp_path)) == {**wanted(35), 36: [name(36, "again")]}
    with pytest.raises(RestartError, match="written by query query, not by other"):
        CommittedFiles(str(tmp_path), "other")


def test_a_late_record_changes_nothing(tmp_path: Path) -> None:
    """A replaced run's manifest of a batch whose manifest was deleted is ignored, and deleted."""
    late = sink(tmp_path)
    run(late, 0, 4)
    assert not late.has(own(5))
    run(sink(tmp_path), 5, 29)
    late.add(own(5), [name(5, "late")])
    assert 5 in records(tmp_path)
    reader = VisibleFiles(f"file://{tmp_path}", NO_SPARK)
    for batch_id in range(30):
        (tmp_path / name(batch_id)).touch()
    (tmp_path / name(5, "late")).touch()
    for last in (29, 45):
        assert committed_files(str(tmp_path)) == wanted(last)
        found = [stamp.path.rpartition("/")[2] for stamp in reader.files() or ()]
        assert found == [name(batch_id) for batch_id in range(30)]
        run(sink(tmp_path), 30, 45)
    assert 5 not in records(tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize(("effect", "error"), FAULTS, ids=fault_ids(FAULTS))
def test_a_fault_at_any_operation_loses_nothing(
    tmp_path: Path, effect: Effect, error: type[BaseException]
) -> None:
    """After any fault each batch is visible as written, and the next run continues."""
    for at in itertools.count(1):
        directory = tmp_path / str(at)
        committed = sink(directory)
        run(committed, 0, 18)
        faulty = FaultyFiles(committed.directory.files, at, effect, error)
        committed.directory.files = faulty
        with suppress(SimulatedCrash, CheckpointError):
            run(committed, 19, 21)
        found = committed_files(str(directory))
        assert 18 <= max(found) <= 21
        assert found == wanted(max(found))
        run(sink(directory), max(found), 50)
        assert committed_files(str(directory)) == wanted(50)
        assert len(records(directory)) < 22
        if len(faulty.calls) < at:
            break
    assert at > 25


@pytest.mark.deep
def test_an_older_run_that_goes_on_damages_nothing(tmp_path: Path) -> None:
    """Whenever in a batch it is replaced, each batch is of one of the two, for good."""
    for at in itertools.count(1):
        directory = tmp_path / str(at)
        older = sink(directory)
        run(older, 0, 18)

        def newer(directory: Path = directory) -> None:
            run(sink(directory), 19, 52, "newer")

        interrupted = Interrupted(older.directory.files, at, newer)
        older.directory.files = interrupted
        run(older, 19, 19)
        before = committed_files(str(directory))
        assert before[19] in ([name(19)], [name(19, "newer")])
        assert {number: before[number] for number in range(19)} == wanted(18)
        run(sink(directory), 53, 90)
        after = committed_files(str(directory))
        assert list(after) == list(range(20 if not interrupted.fired else 53)) + list(range(53, 91))
        assert {number: after[number] for number in before} == before
        if not interrupted.fired:
            break
    assert at > 20


class WatchedListing:
    """A listing in which something happens before operation number *at*."""

    def __init__(self, inner: Any, at: int, meanwhile: Callable[[], None]) -> None:
        self._inner, self._at, self._meanwhile, self.calls = inner, at, meanwhile, 0

    def files(self) -> Any:
        self._count()
        return self._inner.files()

    def read(self, path: str) -> Any:
        self._count()
        return self._inner.read(path)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            self._meanwhile()


def test_who_reads_while_records_go_misses_nothing(tmp_path: Path) -> None:
    """Whenever a reader is overtaken by many batches, it sees each file that was there before."""
    for at in itertools.count(1):
        directory = tmp_path / str(at)
        committed = sink(directory)
        run(committed, 0, 17)
        for batch_id in range(18):
            (directory / name(batch_id)).touch()
        reader = VisibleFiles(f"file://{directory}", NO_SPARK)
        overtake = functools.partial(run, committed, 18, 41)
        watched = WatchedListing(reader._records, at, overtake)
        reader._records = watched
        found = [stamp.path.rpartition("/")[2] for stamp in reader.files() or ()]
        assert found == [name(batch_id) for batch_id in range(18)]
        if watched.calls < at:
            break
    assert at > 9


def test_a_listing_that_goes_on_meanwhile_misses_nothing(tmp_path: Path) -> None:
    """A manifest is deleted only when two later ones list its batch."""
    committed = sink(tmp_path)
    run(committed, 0, 18)
    there = set(records(tmp_path))
    run(committed, 19, 19)
    # A listing that began before, and saw of the last batch what was deleted, but not its record.
    left = there.intersection(records(tmp_path))
    found = module._newest_first(
        left, lambda number: Manifest.required(_content(tmp_path, number), "here")
    )
    assert {number: list(manifest.files) for number, manifest in found.items()} == wanted(18)


def _content(directory: Path, number: int) -> bytes:
    return (directory / "_committed" / f"{number:010d}").read_bytes()

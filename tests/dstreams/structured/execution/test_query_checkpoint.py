"""The checkpoint of a query, and the rule of one query per checkpoint in a process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    CommitLog,
    CommitRecord,
    ConcurrentWriterError,
    StoreCommit,
    UntrustedFileError,
)
from checkpoint.cli.main import SUCCEEDED, main
from checkpoint.log.batch_records import BatchLog
from checkpoint.state_store import EMPTY, LmdbBackend, SnapshotRule, StateStore, StoreId
from checkpoint.state_store.maintenance import snapshot_if_due
from dstreams.engine.inputs import InputOffsets
from dstreams.errors import RestartError, StreamLifecycleError
from dstreams.sources.source import PlannedInput
from dstreams.state.store_maintenance import require_trusted_values
from dstreams.structured import StreamingDataset, StreamSession
from dstreams.structured.api import manager
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.micro_batch import retire
from dstreams.structured.execution.query_checkpoint import (
    QueryCheckpoint,
    Recovered,
    claim_checkpoint,
)
from dstreams.structured.execution.query_records import batch_end, batch_start
from dstreams.structured.execution.watermarks import Watermarks
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun
from tests.support.request_clock import counting_requests
from tests.support.surroundings import reads

STORE = StoreId("query", "count", "default", 0, 1)
NOTHING, NO_END = batch_start(0, 0, 0, ()), batch_end(Watermarks.start(0))


class OpenedQuery:
    """A query that has taken its checkpoint over, and runs nothing."""

    def __init__(self, location: Path) -> None:
        self.checkpoint = QueryCheckpoint(str(location), "query", "run")
        self.log = self.checkpoint.take_over(0, {})
        self.files = self.checkpoint.files
        self._times: dict[int, int] = {
            begun.batch_id: begun.batch_time_ms for begun in self.log.plan.in_flight
        }

    @property
    def recovered(self) -> Recovered:
        return self.checkpoint.recovered()

    def begin(self, number: int, start: dict[str, Any] = NOTHING, now_ms: int = 0) -> None:
        self._times[number] = self.log.time_of_next(now_ms)
        self.log.begin(number, self._times[number], **start)

    def commit(
        self, number: int, stores: tuple[StoreCommit, ...] = (), end: dict[str, Any] = NO_END
    ) -> None:
        self.log.commit(number, self._times[number], stores=stores, **end)
        self.log.fence.wait()


def opened(directory: Path) -> OpenedQuery:
    return OpenedQuery(directory / "checkpoint")


class Batches:
    """Makes batches of one store, without Spark."""

    def __init__(self, directory: Path, retained: int, snapshot_every: int | None) -> None:
        self.query = opened(directory)
        self._retained = retained
        self._snapshot_every = snapshot_every
        log = self.query.log
        self.backend = LmdbBackend(log.files, str(directory / "local"), log.epoch)
        self.version_ids = {-1: EMPTY}
        self.ends = InputOffsets({}, {}, 0)

    def run(self, number: int, **said: Any) -> None:
        before = self.version_ids[number - 1]
        with StateStore(self.backend).writer(STORE, before) as writer:
            writer.put("batch", number)
            writer.put(number, number)
            committed = writer.commit()
        self.version_ids[number] = committed.version_id
        if self._snapshot_every and number % self._snapshot_every == 0:
            snapshot_if_due(self.backend, STORE, committed.version_id, SnapshotRule(1))
            self.query.log.expect_snapshots()
        start = batch_start(0, 0, 0, [PlannedInput(0, number - 1, number, said)])
        self.query.begin(number, start)
        self.ends.begun(self.query.log.newest_ms, {"source-0": number})
        store = StoreCommit("count", "default", "stable", (committed,))
        self.query.commit(number, (store,))
        if number % 10 == 0:
            retire(self.query.log, self._retained, self.ends)

    def read(self, number: int, directory: Path) -> object:
        """Return what the state of a batch says its number is, on another host."""
        elsewhere = replace(self.backend, root=str(directory / f"elsewhere{number}"))
        with StateStore(elsewhere).reader(STORE, self.version_ids[number]) as reader:
            return reader.get("batch")


@pytest.mark.parametrize("snapshot_every", [None, 5])
def test_clean(tmp_path: Path, snapshot_every: int | None) -> None:
    """Old records go; all batches that are to be kept can be read by any host."""
    batches = Batches(tmp_path, 3, snapshot_every)
    for number in range(41):
        batches.run(number)
    checkpoint = batches.query
    for number in range(37, 41):
        assert batches.read(number, tmp_path) == number
    kept = CommitLog(checkpoint.files).times()
    assert BatchLog(checkpoint.files).times() == kept
    assert kept[-4:] == [38, 39, 40, 41]
    if snapshot_every is None:
        assert kept[0] == 1  # the changes of all batches are needed while there is no snapshot
    else:
        assert kept[0] > 20
        changes = list((tmp_path / "checkpoint" / "stores").rglob("*.changes"))
        assert len(changes) < 25
    recovered = opened(tmp_path).recovered
    assert recovered.committed is not None
    assert recovered.committed.batch_id == 40
    assert recovered.unfinished == ()


def test_nothing_is_cleaned_that_is_kept(tmp_path: Path) -> None:
    """Until there are more batches than are to be kept, nothing is deleted."""
    batches = Batches(tmp_path, 100, 1)
    for number in range(21):
        batches.run(number)
    assert BatchLog(batches.query.files).times() == list(range(1, 22))
    assert CommitLog(batches.query.files).times() == list(range(1, 22))
    assert batches.read(0, tmp_path) == 0


@pytest.mark.deep
def test_a_restart_makes_ten_requests_in_a_row(tmp_path: Path) -> None:
    """With 100 batches that are kept, from the start to the first new batch."""
    batches = Batches(tmp_path, 100, 10)
    for number in range(100):
        batches.run(number)
    with counting_requests(at_once=128) as clock:
        query = opened(tmp_path)
        assert query.recovered.committed is not None
        query.log.past("source-0")
        query.log.begin_inputs(batches.ends)
        assert clock.now <= 10
    assert len(query.log.plan.begins) == 100


def test_older_run_cleans_nothing(tmp_path: Path) -> None:
    """A run whose checkpoint was taken over neither runs its sink, commits nor deletes."""
    batches = Batches(tmp_path, 3, None)
    for number in range(5):
        batches.run(number)
    batches.query.begin(5)
    opened(tmp_path)
    for act in (
        batches.query.log.require_newest,
        lambda: batches.query.commit(5),
        lambda: retire(batches.query.log, 3, batches.ends),
    ):
        with pytest.raises(ConcurrentWriterError, match=f"process {os.getpid()} on host"):
            act()


def test_pickles_of_others(tmp_path: Path) -> None:
    """State that reading can run code of is refused where others can write it."""
    files = opened(tmp_path).files
    pickled = QueryConf(state_values="pickle")
    require_trusted_values(files, pickled)
    (tmp_path / "checkpoint").chmod(0o777)
    require_trusted_values(files, QueryConf())
    with pytest.raises(UntrustedFileError, match="can be written by others"):
        require_trusted_values(files, pickled)


def test_temporary(tmp_path: Path) -> None:
    """A checkpoint without a location is gone with its run."""
    checkpoint = QueryCheckpoint(None, "query", "run")
    assert Path(checkpoint.location).is_dir()
    checkpoint.close()
    assert not Path(checkpoint.location).exists()


def test_reference_is_kept(tmp_path: Path) -> None:
    """A commit record names the exact content that a restart opens."""
    batches = Batches(tmp_path, 3, None)
    batches.run(0)
    commit = opened(tmp_path).recovered.commit
    assert commit is not None
    (stored,) = commit.committed.stores[0].partitions
    assert stored.version_id == batches.version_ids[0]


def test_clock_goes_back(tmp_path: Path) -> None:
    """A batch is after the one before it, also where the clock says an earlier time."""
    checkpoint = opened(tmp_path)
    for number, timestamp_ms in enumerate((5000, 3000, 5001, 9000)):
        checkpoint.begin(number, batch_start(timestamp_ms, 0, 0, ()), timestamp_ms)
        checkpoint.commit(number)
    assert CommitLog(checkpoint.files).times() == [5000, 5001, 5002, 9000]
    again = opened(tmp_path)
    committed = again.recovered.committed
    assert committed is not None
    assert committed.timestamp_ms == 9000
    again.begin(4, batch_start(1000, 0, 0, ()), 1000)
    assert BatchLog(checkpoint.files).times()[-1] == 9001


def test_older_run_adds_nothing(tmp_path: Path) -> None:
    """Writes of a run after another has taken over are ignored, however late."""
    older = opened(tmp_path)
    older.begin(0, batch_start(0, 0, 0, reads(1)))
    newer = opened(tmp_path)
    commit = CommitRecord("query", 0, 1, older.log.epoch, {}, {}, **NO_END)
    CommitLog(older.files).commit(commit)  # stopped between its look for a newer run and its write
    again = opened(tmp_path).recovered
    assert again.committed is None
    assert [record.ends for record in again.unfinished] == [(1,)]
    with pytest.raises(ConcurrentWriterError):
        newer.commit(0)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("epochs/*", "is missing; expected the takeover of epoch"),
        ("epochs/*.takeover", "is missing; expected the takeover"),
        ("batches/*", "batch 1 doesn't exist"),
        ("batches/*2-*", "batch 1 doesn't exist"),
    ],
)
def test_lost(tmp_path: Path, lost: str, message: str) -> None:
    """A checkpoint that lacks what a restart needs is refused, and the message says what."""
    checkpoint = opened(tmp_path)
    for number in range(2):
        checkpoint.begin(number)
        checkpoint.commit(number)
    for path in (tmp_path / "checkpoint").glob(lost):
        path.unlink()
    with pytest.raises(RestartError, match=message):
        _ = opened(tmp_path).recovered


def test_gap(tmp_path: Path) -> None:
    """Batches that were begun run again one after the other; where one is lost, none does."""
    checkpoint = opened(tmp_path)
    for number in range(3):
        checkpoint.begin(number)
    (begun,) = (tmp_path / "checkpoint" / "batches").glob("*2-*")
    begun.unlink()
    with pytest.raises(RestartError, match="batch 1 doesn't exist"):
        _ = opened(tmp_path).recovered


def counts(words: StreamingDataset) -> StreamingDataset:
    return words.groupByKey(lambda word: word).count()


def test_places(tmp_path: Path) -> None:
    """A directory is one place in every spelling; a released place is free."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    first = claim_checkpoint(str(tmp_path / "real"), "query first")
    for same in (f"{tmp_path}/real/", f"file://{tmp_path}/real", f"{tmp_path}/x/../link"):
        with pytest.raises(
            StreamLifecycleError, match=f"query first is already running on {same};"
        ):
            claim_checkpoint(same, "query second")
    others = [
        claim_checkpoint(place, "other") for place in (str(tmp_path), None, None, "s3://a/real")
    ]
    with pytest.raises(StreamLifecycleError, match="other is already running on s3://a/real/;"):
        claim_checkpoint("s3://a/real/", "query second")
    first.claim_id("id")
    with pytest.raises(
        StreamLifecycleError,
        match=f"already running on {tmp_path}/real, and {tmp_path} is a copy of it",
    ):
        others[0].claim_id("id")
    first.release()
    first.release()
    others[0].claim_id("id")
    others.append(claim_checkpoint(str(tmp_path / "real"), "query second"))
    for other in others:
        other.release()


def test_two_sessions(make_session: MakeSession, tmp_path: Path) -> None:
    """The second session is refused, the first query continues; then the place is free."""
    run = QueryRun(make_session(), counts, "update", tmp_path)
    assert run.add("a") == [("a", 1)]
    with pytest.raises(
        StreamLifecycleError, match=f"query run is already running on {tmp_path}; stop"
    ):
        QueryRun(make_session(), counts, "update", tmp_path)
    assert run.add("a") == [("a", 2)]
    run.query.stop()
    with pytest.raises(RestartError, match="has 0 additions"):  # of its own memory stream
        QueryRun(make_session(), counts, "update", tmp_path)
    run.restart()
    assert run.add("a") == [("a", 3)]


def test_two_threads(
    make_session: MakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two simultaneous starts is refused, by name or by place, without side effects."""
    opens, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> QueryCheckpoint:
        opens.set()
        assert goes_on.wait(300)
        return QueryCheckpoint(*arguments)

    monkeypatch.setattr(manager, "QueryCheckpoint", slow)
    session: StreamSession = make_session()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(QueryRun, session, counts, "update", tmp_path)
        try:
            assert opens.wait(300)
            with pytest.raises(
                StreamLifecycleError, match="a query named 'run' is already running"
            ):
                QueryRun(session, counts, "update", tmp_path / "elsewhere")
            with pytest.raises(StreamLifecycleError, match=f"is already running on {tmp_path};"):
                QueryRun(make_session(), counts, "update", tmp_path)
        finally:
            goes_on.set()
        run = starting.result(60)
    assert run.add("a") == [("a", 1)]
    assert run.restart().isActive
    assert run.add("a") == [("a", 2)]


def test_a_start_that_fails_leaves_the_place_free(
    make_session: MakeSession, tmp_path: Path
) -> None:
    """After a failed start, a corrected query can start in the same process."""
    session = make_session()
    unset: Any = session.memoryStream().toDS().writeStream.format("text").queryName("run")
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file"):
        unset.start(str(tmp_path / "file"), checkpointLocation=str(tmp_path / "checkpoint"))
    run = QueryRun(session, counts, "update", tmp_path / "checkpoint")
    assert run.add("a") == [("a", 1)]


def test_a_copy_beside_its_original(make_session: MakeSession, tmp_path: Path) -> None:
    """In one process a copy of a checkpoint is refused while the original runs."""
    run = QueryRun(make_session(), counts, "update", tmp_path / "original")
    assert run.add("a") == [("a", 1)]
    assert main(["export", str(tmp_path / "original"), str(tmp_path / "file")]) == SUCCEEDED
    copy = tmp_path / "copy"
    assert main(["import", str(tmp_path / "file"), str(copy), "--here"]) == SUCCEEDED
    message = f"query run is already running on {tmp_path}/original, and {copy} is a copy of it"
    with pytest.raises(StreamLifecycleError, match=message):
        QueryRun(make_session(), counts, "update", copy)

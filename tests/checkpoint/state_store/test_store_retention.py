"""Retention of stores: what is needed stays, what no record names goes when it is settled."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from checkpoint import (
    BeginRecord,
    CommitLog,
    CommitRecord,
    ConcurrentWriterError,
    DriverProcess,
    Files,
    RecordId,
    StorageRefusedError,
    open_files,
    take_over,
)
from checkpoint.log.record_retention import RetentionPlan, apply_retention
from checkpoint.log.version_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.store_files import (
    STORE_PREFIX,
    StoredKind,
    new_uid,
    parse_file_name,
    write_changelog,
    write_state_snapshot,
)
from checkpoint.state_store.store_retention import (
    StreamRetention,
    plan_store_retention,
)
from tests.support.faults import Effect, FaultyFiles, SimulatedCrash
from tests.support.memory_backend import MemoryBackend
from tests.support.stores import changes, commit_up_to, record, require_files, store_of

pytestmark = pytest.mark.usefixtures("no_sync")

STORES = (store_of(0, 2), store_of(1, 2))


def name_of(written: PartitionCommit) -> str:
    assert written.file is not None
    return written.file.name


class History:
    """Two partitions committed in every batch, with snapshots where they are asked for."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.log = CommitLog(files)
        self.version_ids: dict[StoreId, list[VersionId]] = {store: [EMPTY] for store in STORES}

    def batch(self, epoch: int = 1) -> None:
        done = [self.changelog(store, epoch) for store in STORES]
        for store, committed in zip(STORES, done, strict=True):
            self.version_ids[store].append(committed.version_id)
        version = len(self.version_ids[STORES[0]]) - 1
        self.log.commit(record(version * 1000, done, epoch))

    def changelog(
        self, store: StoreId, epoch: int = 1, version: int | None = None
    ) -> PartitionCommit:
        base = self.version_ids[store][-1 if version is None else version - 1]
        parts = changes(base.version + 1)
        return write_changelog(self.files, store, base, new_uid(epoch), parts, {})

    def snapshot(self, store: StoreId, version: int) -> None:
        backend = MemoryBackend()
        base = backend.open(store, commit_up_to(backend, store, version)[version])
        base.version_id = self.version_ids[store][version]
        write_state_snapshot(self.files, store, base, {})

    def records(self) -> list[CommitRecord]:
        return [self.log.read(time_ms) for time_ms in self.log.times()]

    def names(self) -> list[str]:
        return self.files.list(STORE_PREFIX)

    def retain(self, oldest_needed: int, epoch: int = 1, log: CommitLog | None = None) -> list[str]:
        plan = plan_store_retention(self.records(), self.names(), oldest_needed * 1000, epoch)
        return apply_retention(log or self.log, plan, epoch)

    def versions(self, kind: StoredKind, store: StoreId = STORES[0]) -> list[int]:
        """Versions that have a file of a kind."""
        found = (parse_file_name(name) for name in self.names())
        part = f"/p{store.partition:05d}/"
        return [ref.version for where, ref, k in filter(None, found) if k is kind and part in where]

    def require_readable(self, oldest: int) -> None:
        """Assert that every content from a version on can be had."""
        for store in STORES:
            for version_id in self.version_ids[store][oldest:]:
                require_files(self.files, store, version_id)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(open_files(tmp_path))


def test_without_two_snapshots_everything_stays(history: History) -> None:
    """A chain that begins with the first batch is needed whole."""
    for _ in range(6):
        history.batch()
    for store in STORES:
        history.snapshot(store, 3)
    before = history.names()
    assert history.retain(6) == []
    assert history.names() == before
    assert history.log.times() == [1000, 2000, 3000, 4000, 5000, 6000]


def test_what_lies_before_the_last_but_one_snapshot_goes(history: History) -> None:
    """Everything from the oldest needed version on stays readable without the newest snapshot."""
    for _ in range(9):
        history.batch()
    for store in STORES:
        for version in (2, 4, 7, 9):
            history.snapshot(store, version)
    assert history.retain(8) == []
    assert history.versions(StoredKind.SNAPSHOT) == [4, 7, 9]
    assert history.versions(StoredKind.CHANGES) == [4, 5, 6, 7, 8, 9]
    assert history.log.times() == [4000, 5000, 6000, 7000, 8000, 9000]
    history.require_readable(4)
    for store in STORES:
        history.files.delete(
            next(
                n
                for n in history.names()
                if f"p{store.partition:05d}/{7:016d}" in n and "snap" in n
            )
        )
    history.require_readable(4)
    assert history.retain(8) == []


def test_the_partition_that_is_furthest_behind_decides(history: History) -> None:
    """Records are dropped whole, so one partition with old snapshots keeps them."""
    for _ in range(8):
        history.batch()
    for version in (3, 6):
        history.snapshot(STORES[0], version)
    for version in (2, 7):
        history.snapshot(STORES[1], version)
    history.retain(8)
    assert history.log.times()[0] == 2000
    assert history.versions(StoredKind.SNAPSHOT) == [3, 6]
    history.require_readable(3)


def test_attempts_that_lost_go_when_their_batch_is_long_committed(history: History) -> None:
    """Not those of the newest batches, not those of a later epoch, and no file of the chain."""
    losers = {}
    for version in range(1, 6):
        losers[version] = name_of(history.changelog(STORES[0]))
        history.batch()
    later = name_of(history.changelog(STORES[0], epoch=2, version=2))
    ahead = name_of(history.changelog(STORES[0]))
    history.retain(5)
    left = history.names()
    assert [version for version, name in losers.items() if name in left] == [4, 5]
    assert later in left
    assert ahead in left
    history.require_readable(1)
    history.retain(5, epoch=2)
    assert later not in history.names()


def test_a_lost_record_makes_no_orphan(history: History) -> None:
    """A file that no record names stays if no other attempt is named for its version."""
    for _ in range(6):
        history.batch()
    history.log.delete(RecordId(3000, 1))
    history.retain(6)
    history.require_readable(1)


def test_other_files_are_left_alone(history: History) -> None:
    """Those of operators that no record knows, and what is no file of a store."""
    for _ in range(5):
        history.batch()
    other = StoreId("stream-1", "removed", "default", 0, 1)
    stranger = name_of(write_changelog(history.files, other, EMPTY, new_uid(1), changes(1), {}))
    history.files.create(f"{STORE_PREFIX}notes", [b"hello"])
    history.retain(5)
    assert {stranger, f"{STORE_PREFIX}notes"} <= set(history.names())


def test_a_driver_that_was_replaced_deletes_nothing(history: History) -> None:
    """Its plan may be of a history that is none."""
    for _ in range(3):
        history.batch()
        history.changelog(STORES[0])
    history.batch(epoch=2)
    before = history.names()
    with pytest.raises(ConcurrentWriterError, match="nothing is deleted"):
        history.retain(4)
    assert history.names() == before


@pytest.mark.parametrize("effect", ["before", "after"])
@pytest.mark.parametrize("error", [SimulatedCrash, StorageRefusedError])
def test_a_fault_anywhere_is_made_up_for_by_the_next_run(
    tmp_path: Path, effect: Effect, error: type[BaseException]
) -> None:
    """What is needed is readable at every moment, and in the end the same is left."""
    if effect == "after" and error is StorageRefusedError:
        return
    left = set()
    for at in itertools.count(1):
        history = History(open_files(tmp_path / str(at)))
        for _ in range(7):
            history.changelog(STORES[1])
            history.batch()
        for store, version in itertools.product(STORES, (2, 4, 6)):
            history.snapshot(store, version)
        faulty = FaultyFiles(history.files, at, effect, error)
        try:
            history.retain(7, log=CommitLog(faulty))
        except (SimulatedCrash, StorageRefusedError):
            assert faulty.fired
        history.require_readable(4)
        assert history.log.times()[-4:] == [4000, 5000, 6000, 7000]
        assert history.retain(7) == []
        history.require_readable(4)
        # p0 from 4 on, p1 the same and the attempts that lost and are not settled
        left.add((tuple(history.log.times()), len(history.names())))
        if not faulty.fired:
            break
    assert at > 15
    assert len(left) == 1


def test_a_plan_of_nothing_deletes_nothing(history: History) -> None:
    """No records, no snapshots, or nothing that is old enough."""
    plan = plan_store_retention([], ["stores/a/b/p00000/x"], 5000, 1)
    assert plan == RetentionPlan((), ())
    history.batch()
    assert history.retain(0) == []
    assert history.log.times() == [1000]
    with pytest.raises(ValueError, match="kept_snapshots must be at least 1"):
        plan_store_retention([], [], 0, 1, kept_snapshots=0)


def test_a_driver_deletes_by_what_it_has_read_and_written(tmp_path: Path) -> None:
    """It lists at a start, for new snapshots and now and then; it reads no record that it wrote."""
    files = FaultyFiles(open_files(tmp_path), 0)
    driver = DriverProcess.of_this_process(0)
    history = History(files)
    for _ in range(2):
        owned = take_over(files, "stream-1", driver)
        history.log, epoch = owned.commits, owned.epoch
        retention = StreamRetention(owned)
        for number in range(15):
            version = len(history.version_ids[STORES[0]])
            owned.begins.begin(BeginRecord("stream-1", version, version * 1000, epoch, {}))
            if number == 7:
                history.changelog(STORES[0], epoch)  # of an attempt that loses
            history.batch(epoch)
            if number % 4 == 1:
                for store in STORES:
                    history.snapshot(store, version)
                retention.expect_snapshots()
            files.calls.clear()
            assert retention.retire(version * 1000) == []
            asked = {call for call in files.calls if not call.startswith("delete ")}
            if number in (0, 10):
                assert {"list epochs/", "list stores/", "list batches/", "list state/"} <= asked
                assert number == 0 or not {call for call in asked if "read commits/" in call}
            else:
                assert asked == {"list epochs/", *(["list stores/"] if number % 4 == 1 else ())}
    times = owned.commits.times()
    assert times == owned.begins.times() == CommitLog(files).times()
    assert times == [version * 1000 for version in range(25, 31)]
    assert history.versions(StoredKind.SNAPSHOT) == [25, 29]
    assert history.versions(StoredKind.CHANGES) == [25, 26, 27, 28, 29, 30]
    history.require_readable(25)

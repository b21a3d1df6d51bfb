"""Retention: what is dropped is not needed, and what is needed is kept."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import (
    BeginRecord,
    CommitLog,
    CommitRecord,
    ConcurrentWriterError,
    DriverProcess,
    FileRef,
    Files,
    InputSnapshots,
    LocalFiles,
    OperatorSnapshot,
    RecordId,
    StorageRefusedError,
    open_files,
    take_over,
)
from checkpoint.log.batch_records import EMPTY, STORE_PREFIX, PartitionCommit, StoreId, VersionId
from checkpoint.log.fencing import Takeover
from checkpoint.log.lineage import Lineage
from checkpoint.state_store import MemoryBackend
from checkpoint.state_store.retention import (
    RetentionPlan,
    StreamRetention,
    apply_retention,
    plan_leftovers,
    plan_retention,
    plan_store_retention,
)
from checkpoint.state_store.store_files import (
    StoredKind,
    new_uid,
    parse_file_name,
    write_changelog,
    write_state_snapshot,
)
from tests.support.faults import Effect, FaultyFiles, SimulatedCrash
from tests.support.stores import changes, commit_up_to, record, require_files, store_of


def record_at(time_ms: int, *names: str, epoch: int = 1) -> CommitRecord:
    """Return a record of one operator with a partition for each of *names*."""
    refs = tuple(FileRef(f"state/{name}", 1, "0" * 32, 1) for name in names or [str(time_ms)])
    operators = {"counts": OperatorSnapshot("stable", refs)}
    return CommitRecord("stream-1", 0, time_ms, epoch, operators, {})


def ids(*times: int) -> tuple[RecordId, ...]:
    return tuple(RecordId(time_ms, 1) for time_ms in times)


@pytest.mark.parametrize(
    ("times", "oldest_needed_ms", "dropped"),
    [
        ([], 0, []),
        ([1], 0, []),
        ([1], 9, []),
        ([1, 2, 3], 0, []),
        ([1, 2, 3], 1, []),
        ([1, 2, 3], 2, [1]),
        ([1, 3, 5], 4, [1]),
        ([1, 3, 5], 2, []),
        ([1, 2, 3], 3, [1, 2]),
        ([1, 2, 3], 99, [1, 2]),
        ([3, 1, 2], 99, [1, 2]),
    ],
)
def test_the_newest_that_is_old_enough_and_all_after_it_are_kept(
    times: list[int], oldest_needed_ms: int, dropped: list[int]
) -> None:
    """Older records are dropped with their files; the newest record stays."""
    plan = plan_retention([record_at(time_ms) for time_ms in times], oldest_needed_ms)
    assert plan == RetentionPlan(ids(*dropped), tuple(f"state/{time}" for time in dropped))


def test_a_file_that_a_kept_record_names_is_kept() -> None:
    """Later records may name the same file of an unchanged state."""
    records = [record_at(1, "a", "b"), record_at(2, "a", "c"), record_at(3, "a", "d")]
    assert plan_retention(records, 2) == RetentionPlan(ids(1), ("state/b",))
    assert plan_retention(records, 3) == RetentionPlan(ids(1, 2), ("state/b", "state/c"))


@given(
    st.dictionaries(st.integers(0, 30), st.sets(st.sampled_from("abcdef"), min_size=1)),
    st.integers(0, 30),
)
def test_no_plan_touches_what_is_needed(names: dict[int, set[str]], oldest_needed_ms: int) -> None:
    """Records that a restart at or after the oldest needed time reads are kept."""
    records = [record_at(time_ms, *sorted(files)) for time_ms, files in names.items()]
    plan = plan_retention(records, oldest_needed_ms)
    kept = [each for each in records if each.batch_time_ms not in plan.batch_times_ms]
    for needed_ms in range(oldest_needed_ms, 31):
        usable = [each.batch_time_ms for each in records if each.batch_time_ms <= needed_ms]
        if usable:
            assert max(usable) not in plan.batch_times_ms
    assert not any(each.file_names() & set(plan.files) for each in kept)
    assert bool(kept) == bool(records)
    dropped = {each.batch_time_ms for each in records} - {each.batch_time_ms for each in kept}
    assert dropped == set(plan.batch_times_ms)


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    log = CommitLog(LocalFiles(str(tmp_path)))
    for time_ms in (1000, 2000, 3000):
        log.files.create(f"state/{time_ms}", [b"x"])
        log.commit(record_at(time_ms))
    return log


def records_of(log: CommitLog) -> list[CommitRecord]:
    return [log.read(time_ms) for time_ms in log.times()]


def test_a_plan_deletes_what_it_says_and_can_be_applied_again(log: CommitLog) -> None:
    """Only the planned files are deleted, and a repetition has no effect."""
    plan = plan_retention(records_of(log), 2500)
    for _ in range(2):
        apply_retention(log, plan, epoch=1)
        assert log.times() == [2000, 3000]
        assert log.files.list("state/") == ["state/2000", "state/3000"]


def test_state_files_go_before_the_record_that_names_them(log: CommitLog) -> None:
    """A record exists as long as one of its files does."""
    plan = plan_retention(records_of(log), 9999)
    recorded = FaultyFiles(log.files, at=0)
    apply_retention(CommitLog(recorded), plan, epoch=1)
    deletes = [call for call in recorded.calls if call.startswith("delete")]
    assert [call.split("/")[0] for call in deletes] == ["delete state"] * 2 + ["delete commits"] * 2


def test_an_older_driver_deletes_nothing(log: CommitLog) -> None:
    """A driver that does not know yet that it is fenced deletes nothing."""
    plan = plan_retention(records_of(log), 9999)
    log.commit(record_at(4000, epoch=2))
    before = log.files.list("")
    with pytest.raises(ConcurrentWriterError, match="epoch 2 has taken over") as raised:
        apply_retention(log, plan, epoch=1)
    assert (raised.value.epoch, raised.value.other_epoch) == (1, 2)
    assert log.files.list("") == before
    apply_retention(log, plan, epoch=2)
    assert log.times() == [3000, 4000]


def test_what_cannot_be_deleted_stops_the_rest(log: CommitLog) -> None:
    """A refusal is reported, and the records are kept."""
    plan = plan_retention(records_of(log), 9999)
    faulty = FaultyFiles(log.files, 5, "before", StorageRefusedError)
    assert apply_retention(CommitLog(faulty), plan, epoch=1) == ["state/2000"]
    assert log.times() == [1000, 2000, 3000]
    assert log.files.list("state/") == ["state/2000", "state/3000"]


# Operators that are copied at other times, and what goes with records ----------------------------


def commit(time_ms: int, *copied: str, without_state: tuple[str, ...] = ()) -> CommitRecord:
    """Return a record with the snapshots of some operators."""
    operators = {
        uid: OperatorSnapshot("stable", (FileRef(f"state/{uid}{time_ms}", 1, "0" * 32, 1),))
        for uid in copied
    }
    return CommitRecord("stream-1", 0, time_ms, 1, operators, {}, without_state=without_state)


@pytest.mark.parametrize(
    ("copies", "oldest_needed_ms", "operators", "oldest_kept"),
    [
        ({1: "a", 2: "b", 3: "a", 4: "", 5: "a", 6: "b"}, 4, None, 2),
        ({1: "a", 2: "b", 3: "a", 4: "", 5: "a", 6: "b"}, 6, None, 5),
        ({1: "a", 2: "b", 3: "a", 4: "", 5: "a", 6: "b"}, 1, None, 1),
        # A removed operator keeps nothing.
        ({1: "a", 2: "b", 3: "a", 4: "", 5: "a", 6: ""}, 6, {"a"}, 5),
        ({1: "a", 2: "b", 3: "a", 4: "", 5: "a", 6: ""}, 6, None, 2),
        # Without any copy the last record is enough.
        ({1: "", 2: "", 3: ""}, 3, None, 3),
        ({1: "", 2: "", 3: ""}, 2, None, 2),
        ({}, 9, None, None),
    ],
)
def test_of_each_operator_the_newest_snapshot_is_kept(
    copies: dict[int, str],
    oldest_needed_ms: int,
    operators: set[str] | None,
    oldest_kept: int | None,
) -> None:
    """So is every record since the oldest of these, with its files."""
    records = [commit(time_ms, *uids) for time_ms, uids in copies.items()]
    plan = plan_retention(records, oldest_needed_ms, operators)
    kept = sorted(set(copies) - set(plan.batch_times_ms))
    assert kept == [time_ms for time_ms in copies if oldest_kept and time_ms >= oldest_kept]


def test_that_there_is_no_state_is_as_good_as_a_snapshot() -> None:
    """Nothing before it is needed for that operator."""
    records = [commit(1, "a"), commit(2, without_state=("a",)), commit(3)]
    assert plan_retention(records, 3).batch_times_ms == (1,)


def leftovers(
    names: list[str], dropped: int, oldest_input_ms: int | None = None, head: int = 3
) -> list[str]:
    """Plan the leftovers of the first *dropped* of five records; epoch 2 begins at 3000."""
    upto = [None, 2000, 2000, *[9000] * head][:head]
    takeovers = [Takeover("stream-1", n + 1, n or None, upto_ms) for n, upto_ms in enumerate(upto)]
    records = [record_at(time_ms) for time_ms in (1000, 2000)]
    records += [record_at(time_ms, epoch=2) for time_ms in (3000, 4000, 5000)]
    ids_of = tuple(each.record_id for each in records[:dropped])
    plan = RetentionPlan(ids_of, ())
    lineage = Lineage(tuple(reversed(takeovers)))
    return list(plan_leftovers(lineage, names, records, plan, oldest_input_ms))


def test_begin_records_go_with_the_commits() -> None:
    """Unless windows need earlier input."""
    names = [f"batches/{time_ms:016d}-e1.begin" for time_ms in (1000, 2000, 3000)]
    assert leftovers(names, dropped=0) == []
    assert leftovers(names, dropped=2) == names[:2]
    assert leftovers(names, dropped=2, oldest_input_ms=2000) == names[:1]
    assert leftovers(names, dropped=2, oldest_input_ms=9000) == names[:2]


def test_a_few_graphs_are_kept() -> None:
    """The newest graphs, and that of the oldest kept batch."""
    names = [f"graph/{time_ms:016d}-e1.graph" for time_ms in (0, 500, 1000, 1500, 1600, 1700)]
    assert leftovers(names, dropped=1) == names[:3]
    assert leftovers(names[:3], dropped=1) == []


def test_the_rdds_of_a_graph_go_with_it() -> None:
    """So do those of failed starts, but never those of newer drivers."""
    graphs = [
        f"graph/{time_ms:016d}-e{epoch}.graph"
        for epoch, time_ms in enumerate((0, 500, 1000, 2000, 3000), 1)
    ]
    rdds = [f"rdds/state/rdd-0/{0:016d}-p00000-e{epoch}-x.state" for epoch in range(1, 9)]
    assert leftovers([*graphs, *rdds], dropped=3, head=7) == [
        graphs[0], graphs[1], rdds[0], rdds[1], rdds[5], rdds[6]
    ]  # fmt: skip


def test_orphans_of_past_batches_go() -> None:
    """State files without a record, of this and older drivers, but not of newer ones."""
    orphan, named, later, newer = (
        "state/a/0000000000001000-p00000-e1-x.state",
        "state/1000",
        "state/a/0000000000005000-p00000-e1-x.state",
        "state/a/0000000000001000-p00000-e9-x.state",
    )
    assert leftovers([orphan, named, later, newer], dropped=2) == [orphan]


def test_epochs_go_when_nothing_of_them_is_left() -> None:
    """The oldest are deleted first, and never the newest."""
    names = [
        f"epochs/000000000{n}.{kind}"
        for n in (1, 2, 3)
        for kind in ("claim", "released", "takeover")
    ]
    assert leftovers(names, dropped=1) == []
    assert leftovers(names, dropped=2) == names[:3]
    assert leftovers([*names, "batches/0000000000002000-e1.begin"], 2, 2000) == []


def test_snapshots_of_inputs_go_when_a_newer_one_stands_for_the_same() -> None:
    """A newer one before the oldest kept begin record replaces them."""
    epochs = [f"epochs/000000000{n}.claim" for n in (1, 2, 3)]
    older, standing, later = (
        f"inputs/{time_ms:016d}-e{epoch}.inputs"
        for time_ms, epoch in ((500, 1), (1500, 2), (3500, 3))
    )
    assert leftovers([*epochs, older], dropped=2) == []
    assert leftovers([*epochs, older, standing, later], dropped=2) == [older, epochs[0]]


def test_a_stream_of_files_goes_on_after_many_short_lives(tmp_path: Path) -> None:
    """The snapshot of the first driver remains when its other files are gone."""
    files = LocalFiles(str(tmp_path))
    for number in range(6):
        owned = take_over(files, "stream-1", DriverProcess("host", 1, "", number, {}))
        inputs = InputSnapshots(owned, "stream-1")
        past = inputs.past("lines")
        if past.facts is None:
            inputs.write(0, {"lines": {"files": []}})
        else:
            assert past.batches == {
                1000 * earlier: {"files": [f"/{earlier}"]} for earlier in range(1, number + 1)
            }
        time_ms = 1000 * (number + 1)
        begun = BeginRecord(
            "stream-1", number, time_ms, owned.epoch, {"lines": {"files": [f"/{number + 1}"]}}
        )
        owned.begins.begin(begun)
        commits = owned.commits
        commits.commit(record_at(time_ms, f"{time_ms}", epoch=owned.epoch))
        retention = StreamRetention(owned)
        retention.retire(time_ms, retire_inputs=lambda *_, inputs=inputs: inputs.newest)
    assert len(files.list("commits/")) == 1


pytestmark = pytest.mark.usefixtures("no_sync")

STORES = (store_of(0, 2), store_of(1, 2))


def name_of(written: PartitionCommit) -> str:
    assert written.file is not None
    return written.file.name


class History:
    """Two partitions committed in every batch, with snapshots on request."""

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
        """Return the versions that have a file of a kind."""
        found = (parse_file_name(name) for name in self.names())
        part = f"/p{store.partition:05d}/"
        return [ref.version for where, ref, k in filter(None, found) if k is kind and part in where]

    def require_readable(self, oldest: int) -> None:
        """Assert that every version from one on can be opened."""
        for store in STORES:
            for version_id in self.version_ids[store][oldest:]:
                require_files(self.files, store, version_id)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(open_files(tmp_path))


def test_without_two_snapshots_everything_stays(history: History) -> None:
    """A chain that begins with the first batch is kept completely."""
    for _ in range(6):
        history.batch()
    for store in STORES:
        history.snapshot(store, 3)
    before = history.names()
    assert history.retain(6) == []
    assert history.names() == before
    assert history.log.times() == [1000, 2000, 3000, 4000, 5000, 6000]


def test_what_lies_before_the_last_but_one_snapshot_goes(history: History) -> None:
    """Needed versions stay readable without the newest snapshot."""
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
    """Records are dropped as a whole, so a partition with old snapshots keeps them."""
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
    """Not those of the newest batches or of later epochs, nor files of the chain."""
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
    """A file without a record is kept if no other attempt has its version."""
    for _ in range(6):
        history.batch()
    history.log.delete(RecordId(3000, 1))
    history.retain(6)
    history.require_readable(1)


def test_other_files_are_left_alone(history: History) -> None:
    """Files of unknown operators, and files that are not of a store, are kept."""
    for _ in range(5):
        history.batch()
    other = StoreId("stream-1", "removed", "default", 0, 1)
    stranger = name_of(write_changelog(history.files, other, EMPTY, new_uid(1), changes(1), {}))
    history.files.create(f"{STORE_PREFIX}notes", [b"hello"])
    history.retain(5)
    assert {stranger, f"{STORE_PREFIX}notes"} <= set(history.names())


def test_a_driver_that_was_replaced_deletes_nothing(history: History) -> None:
    """The plan of a fenced driver may be outdated."""
    for _ in range(3):
        history.batch()
        history.changelog(STORES[0])
    history.batch(epoch=2)
    before = history.names()
    with pytest.raises(ConcurrentWriterError, match="nothing is deleted"):
        history.retain(4)
    assert history.names() == before


@pytest.mark.deep
@pytest.mark.parametrize("effect", ["before", "after"])
@pytest.mark.parametrize("error", [SimulatedCrash, StorageRefusedError])
def test_a_fault_anywhere_is_made_up_for_by_the_next_run(
    tmp_path: Path, effect: Effect, error: type[BaseException]
) -> None:
    """Needed versions are always readable, and the next run completes the deletion."""
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
    """Without records, snapshots or old versions nothing is deleted."""
    plan = plan_store_retention([], ["stores/a/b/p00000/x"], 5000, 1)
    assert plan == RetentionPlan((), ())
    history.batch()
    assert history.retain(0) == []
    assert history.log.times() == [1000]
    with pytest.raises(ValueError, match="kept_snapshots must be at least 1"):
        plan_store_retention([], [], 0, 1, kept_snapshots=0)


def test_a_driver_deletes_by_what_it_has_read_and_written(tmp_path: Path) -> None:
    """It lists at the start, after snapshots and regularly; it reads none of its own records."""
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

"""Recovery: the state and batches that a restart begins with; missing files are detected."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from checkpoint import (
    BeginRecord,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    FileRef,
    Files,
    GraphSnapshot,
    OperatorSnapshot,
    OwnedStream,
    RecordId,
    StoreCommit,
    open_files,
    plan_recovery,
    read_log,
    read_newest_graph,
    read_plan,
    take_over,
    write_graph,
)
from checkpoint.cli.rewind import plan_rewind
from checkpoint.log.fencing import claim_epoch
from tests.support.faults import FaultyFiles

pytestmark = pytest.mark.usefixtures("no_sync")

DRIVER = DriverProcess.of_this_process(0)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(tmp_path)


def start(files: Files) -> OwnedStream:
    return take_over(files, "stream-1", DRIVER)


def begun(time_ms: int, epoch: int = 1) -> BeginRecord:
    return BeginRecord("stream-1", time_ms // 1000 - 1, time_ms, epoch, {"in": [time_ms]})


def copy_of(uid: str, time_ms: int) -> OperatorSnapshot:
    return OperatorSnapshot("stable", (FileRef(f"state/{uid}/{time_ms}", 1, "0" * 32, 1),))


def record(time_ms: int, *copied: str, epoch: int = 1) -> CommitRecord:
    operators = {uid: copy_of(uid, time_ms) for uid in copied}
    return CommitRecord("stream-1", time_ms // 1000 - 1, time_ms, epoch, operators, {})


def run(owned: OwnedStream, *batches: CommitRecord, then: int = 0) -> None:
    """Begin and commit batches, and begin some more."""
    begins, commits = owned.begins, owned.commits
    last_ms = 0
    for batch in batches:
        begins.begin(begun(batch.batch_time_ms, owned.epoch))
        commits.commit(batch)
        last_ms = batch.batch_time_ms
    for number in range(then):
        begins.begin(begun(last_ms + 1000 * (number + 1), owned.epoch))


def test_a_new_stream_begins_with_nothing(files: Files) -> None:
    """A new stream has no plan, and can be taken over."""
    assert read_plan(files).stream_id is None
    owned = start(files)
    assert (owned.epoch, owned.plan.last_ms, owned.plan.in_flight) == (1, None, ())
    assert read_plan(files).stream_id == "stream-1"


def test_a_restart_knows_snapshots_progress_and_what_was_in_flight(files: Files) -> None:
    """Each operator has its newest snapshot; one without state needs none."""
    last = replace(
        record(4000),
        stores=(StoreCommit("s", "default", "stable", ()),),
        watermarks={"w": 3500},
    )
    third = replace(record(3000, "b"), without_state=("idle",))
    run(start(files), record(1000, "a", "b"), record(2000, "a"), third, last, then=2)
    plan = start(files).plan
    assert plan == read_plan(files)
    assert (plan.last_ms, plan.committed_ms) == (4000, (1000, 2000, 3000, 4000))
    assert {uid: copy.time_ms for uid, copy in plan.snapshots.items()} == {
        "a": 2000, "b": 3000, "idle": 3000
    }  # fmt: skip
    assert plan.snapshots["a"].snapshot == copy_of("a", 2000)
    assert plan.snapshots["idle"].snapshot is None
    assert [each.batch_time_ms for each in plan.in_flight] == [5000, 6000]
    assert plan.in_flight[0] == replace(begun(5000), previous=RecordId(4000, 1))
    assert (plan.stores, plan.watermarks) == (last.stores, {"w": 3500})
    assert plan.begins[2000] == replace(begun(2000), previous=RecordId(1000, 1))


def test_batches_in_flight_stay_so_over_restarts(files: Files) -> None:
    """A driver that dies before it repeats them leaves them to the next one."""
    run(start(files), record(1000, "a"), then=2)
    for _ in range(3):
        plan = start(files).plan
        assert [each.epoch for each in plan.in_flight] == [1, 1]
    owned = start(files)
    owned.commits.commit(record(2000, epoch=owned.epoch))
    assert [each.batch_time_ms for each in start(files).plan.in_flight] == [3000]


def test_a_batch_that_was_given_up_is_not_in_flight(files: Files) -> None:
    """It was begun and never committed, and later batches were committed."""
    owned = start(files)
    owned.begins.begin(begun(1000))
    run(owned, record(2000, "a"))
    plan = start(files).plan
    assert plan.in_flight == ()
    assert plan.committed_ms == (2000,)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("commits/0000000000003000-e1.commit", "3000-e1.commit is missing"),
        ("commits/0000000000002000-e1.commit", "names the newest snapshot of the state of 'a'"),
        ("batches/0000000000003000-e1.begin", "the begin record of the committed batch at 3000 ms"),
        ("commits/0000000000005000-e2.commit", "the commit record of 5000 ms, which epoch 3"),
        ("batches/0000000000006000-e2.begin", "6000 ms of epoch 2, which epoch 3 took over"),
        ("epochs/0000000001.takeover", "names the newest snapshot"),
        (
            "epochs/0000000003.takeover",
            "the takeover of epoch 3, which has records in batches/",
        ),
    ],
)
def test_what_is_missing_is_found_missing(files: Files, gone: str, said: str) -> None:
    """A restart never begins with less than was committed; nothing is claimed."""
    run(start(files), record(1000, "a"), record(2000, "a"), record(3000, "b"))
    run(start(files), record(4000, epoch=2), record(5000, epoch=2), then=1)
    third = start(files)
    third.begins.begin(begun(7000, 3))
    files.delete(gone)
    with pytest.raises(CorruptCheckpointError, match="is missing; expected") as raised:
        start(files)
    assert said in str(raised.value)
    assert len(files.list("epochs/0000000004")) == 0


def test_a_restart_reads_each_record_once(files: Files) -> None:
    """A restart reads only needed records, each once, including those read before."""
    first = start(files)
    run(first, *(record(1000 * number, "a") for number in range(1, 21)), then=1)
    graph = GraphSnapshot("stream-1", 0, 1, {"operators": []}, b"")
    write_graph(first.lease, graph)
    counted = FaultyFiles(files, 0)
    found = read_log(counted)
    assert read_newest_graph(counted, None, found.lineage) == graph
    owned = take_over(counted, "stream-1", DRIVER, found)
    asked = [call.partition("/")[0] for call in counted.calls]
    assert asked.count("read commits") == 1  # it has the copy that the next batch builds on
    for _ in range(2):
        assert [r.batch_time_ms for r in owned.commits.records()] == list(owned.plan.committed_ms)
    reads = Counter(call for call in counted.calls if call.startswith("read "))
    assert set(reads.values()) == {1}
    assert len(reads) == 20 + 21 + 1 + 1  # commits, begins, the graph, the takeover
    assert sum(call.startswith("list ") for call in counted.calls) == 9
    counted.calls.clear()
    owned.begins.begin(begun(21000, 2))
    owned.commits.commit(record(21000, "a", epoch=2))
    assert len(owned.commits.records()) == 21
    assert counted.calls == [
        "create batches/0000000000021000-e2.begin",
        "create commits/0000000000021000-e2.commit",
    ]


def test_of_an_operator_that_was_removed_no_snapshot_is_named(files: Files) -> None:
    """Its record may be deleted, and no later epoch needs it."""
    run(start(files), record(1000, "a", "b"))
    owned = start(files)
    log = owned.commits
    log.operators = {"a", "c"}
    for time_ms in (2000, 3000):
        owned.begins.begin(begun(time_ms, 2))
        written = log.commit(record(time_ms, "a", epoch=2))
        assert written.newest_snapshots == {"a": RecordId(time_ms, 2)}
        assert log.commit(record(time_ms, "a", epoch=2)) == written
    files.delete("commits/0000000000001000-e1.commit")
    assert list(start(files).plan.snapshots) == ["a"]


@pytest.mark.parametrize(
    ("with_state", "is_needed"), [(("a",), False), ((), False), (("a", "b"), True), (None, True)]
)
def test_a_snapshot_that_is_gone_is_needed_if_the_newest_graph_has_its_operator(
    files: Files, with_state: tuple[str, ...] | None, is_needed: bool
) -> None:
    """A rewind may return to a batch with the removed operator, whose snapshots are deleted."""
    owned = start(files)
    if with_state is not None:
        for time_ms, uids in enumerate([("b",), with_state]):
            graph = GraphSnapshot("stream-1", time_ms, 1, {}, b"", uids)
            write_graph(owned.lease, graph)
    run(owned, record(1000, "b"), record(2000, "a"), record(3000))
    files.delete("commits/0000000000001000-e1.commit")
    if is_needed:
        with pytest.raises(CorruptCheckpointError, match="newest snapshot of the state of 'b'"):
            start(files)
    else:
        assert list(start(files).plan.snapshots) == ["a"]
        with pytest.raises(CorruptCheckpointError, match="state/a/2000 is missing"):
            plan_rewind(files, 3000)  # which looks at all that is needed


def test_what_is_not_needed_may_be_missing(files: Files) -> None:
    """Records before the oldest snapshot may be deleted in any order."""
    run(
        start(files), record(1000, "a"), record(2000), record(3000), record(4000, "a"), record(5000)
    )
    files.delete("commits/0000000000002000-e1.commit")
    files.delete("batches/0000000000003000-e1.begin")
    assert start(files).plan.last_ms == 5000


def test_the_directory_of_another_stream_is_refused(files: Files) -> None:
    """Nothing is claimed in it, nor in a directory with two streams."""
    run(start(files), record(1000, "a"))
    with pytest.raises(CorruptCheckpointError, match="is the directory of stream stream-1"):
        take_over(files, "stream-2", DRIVER)
    assert len(files.list("epochs/")) == 2
    log = read_log(files)
    other = replace(next(iter(log.begins.values())), stream_id="stream-2")
    mixed = dataclasses.replace(log, begins={RecordId(1000, 1): other})
    with pytest.raises(CorruptCheckpointError, match="records of the streams stream-1, stream-2"):
        plan_recovery(mixed)


def test_of_two_that_take_over_the_older_is_told(files: Files) -> None:
    """Also if the newer one finishes before the older one reads anything."""
    run(start(files), record(1000, "a"))
    lease = claim_epoch(files, "stream-1", DRIVER)
    third = start(files)
    assert third.epoch == 3
    with pytest.raises(ConcurrentWriterError):
        lease.check()
    third.lease.check()


def test_a_snapshot_that_its_record_does_not_name_is_an_error(files: Files) -> None:
    """Contradicting links between records are detected."""
    run(start(files), record(1000, "a"), record(2000))
    log = read_log(files)
    last = log.commits[RecordId(2000, 1)]
    wrong = replace(last, newest_snapshots={"a": RecordId(1000, 1), "x": RecordId(1000, 1)})
    with pytest.raises(CorruptCheckpointError, match="names no snapshot of the state of 'x'"):
        plan_recovery(dataclasses.replace(log, commits={**log.commits, RecordId(2000, 1): wrong}))

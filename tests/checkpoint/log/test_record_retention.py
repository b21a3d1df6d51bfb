"""Retention: what is dropped is never needed, and what is needed is never dropped."""

from __future__ import annotations

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
    InputSnapshots,
    LocalFiles,
    OperatorSnapshot,
    RecordId,
    StorageRefusedError,
    take_over,
)
from checkpoint.log.fencing import Takeover
from checkpoint.log.lineage import Lineage
from checkpoint.log.record_retention import (
    RetentionPlan,
    apply_retention,
    plan_leftovers,
    plan_retention,
)
from checkpoint.state_store import StreamRetention
from tests.support.faults import FaultyFiles


def record(time_ms: int, *names: str, epoch: int = 1) -> CommitRecord:
    """A record of one operator with a partition for each of *names*, by default its own one."""
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
    """All older records go with their files; the newest record always stays."""
    plan = plan_retention([record(time_ms) for time_ms in times], oldest_needed_ms)
    assert plan == RetentionPlan(ids(*dropped), tuple(f"state/{time}" for time in dropped))


def test_a_file_that_a_kept_record_names_is_kept() -> None:
    """An operator whose state did not change may be named again by later records."""
    records = [record(1, "a", "b"), record(2, "a", "c"), record(3, "a", "d")]
    assert plan_retention(records, 2) == RetentionPlan(ids(1), ("state/b",))
    assert plan_retention(records, 3) == RetentionPlan(ids(1, 2), ("state/b", "state/c"))


@given(
    st.dictionaries(st.integers(0, 30), st.sets(st.sampled_from("abcdef"), min_size=1)),
    st.integers(0, 30),
)
def test_no_plan_touches_what_is_needed(names: dict[int, set[str]], oldest_needed_ms: int) -> None:
    """Every record that a restart at or after the oldest needed time reads stays whole."""
    records = [record(time_ms, *sorted(files)) for time_ms, files in names.items()]
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
        log.commit(record(time_ms))
    return log


def records_of(log: CommitLog) -> list[CommitRecord]:
    return [log.read(time_ms) for time_ms in log.times()]


def test_a_plan_deletes_what_it_says_and_can_be_applied_again(log: CommitLog) -> None:
    """Records and files go, the others stay, and the second time there is nothing to do."""
    plan = plan_retention(records_of(log), 2500)
    for _ in range(2):
        apply_retention(log, plan, epoch=1)
        assert log.times() == [2000, 3000]
        assert log.files.list("state/") == ["state/2000", "state/3000"]


def test_state_files_go_before_the_record_that_names_them(log: CommitLog) -> None:
    """As long as a file of it may be there, a record is there that knows its name."""
    plan = plan_retention(records_of(log), 9999)
    recorded = FaultyFiles(log.files, at=0)
    apply_retention(CommitLog(recorded), plan, epoch=1)
    deletes = [call for call in recorded.calls if call.startswith("delete")]
    assert [call.split("/")[0] for call in deletes] == ["delete state"] * 2 + ["delete commits"] * 2


def test_an_older_driver_deletes_nothing(log: CommitLog) -> None:
    """A driver that was replaced and does not know it yet may not clean up."""
    plan = plan_retention(records_of(log), 9999)
    log.commit(record(4000, epoch=2))
    before = log.files.list("")
    with pytest.raises(ConcurrentWriterError, match="epoch 2 has taken over") as raised:
        apply_retention(log, plan, epoch=1)
    assert (raised.value.epoch, raised.value.other_epoch) == (1, 2)
    assert log.files.list("") == before
    apply_retention(log, plan, epoch=2)
    assert log.times() == [3000, 4000]


def test_what_cannot_be_deleted_stops_the_rest(log: CommitLog) -> None:
    """A refusal is reported, and the records that know the names stay."""
    plan = plan_retention(records_of(log), 9999)
    faulty = FaultyFiles(log.files, 5, "before", StorageRefusedError)
    assert apply_retention(CommitLog(faulty), plan, epoch=1) == ["state/2000"]
    assert log.times() == [1000, 2000, 3000]
    assert log.files.list("state/") == ["state/2000", "state/3000"]


# Operators that are copied at other times, and what goes with records ----------------------------


def commit(time_ms: int, *copied: str, without_state: tuple[str, ...] = ()) -> CommitRecord:
    """A record of the snapshots of some operators."""
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
    """And every record since the oldest of these, with all its files."""
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
    """What goes with the first *dropped* of five records, of which epoch 2 begins at 3000."""
    upto = [None, 2000, 2000, *[9000] * head][:head]
    takeovers = [Takeover("stream-1", n + 1, n or None, upto_ms) for n, upto_ms in enumerate(upto)]
    records = [record(time_ms) for time_ms in (1000, 2000)]
    records += [record(time_ms, epoch=2) for time_ms in (3000, 4000, 5000)]
    ids_of = tuple(each.record_id for each in records[:dropped])
    plan = RetentionPlan(ids_of, ())
    lineage = Lineage(tuple(reversed(takeovers)))
    return list(plan_leftovers(lineage, names, records, plan, oldest_input_ms))


def test_begin_records_go_with_the_commits() -> None:
    """Unless their input is wanted by windows that reach further back."""
    names = [f"batches/{time_ms:016d}-e1.begin" for time_ms in (1000, 2000, 3000)]
    assert leftovers(names, dropped=0) == []
    assert leftovers(names, dropped=2) == names[:2]
    assert leftovers(names, dropped=2, oldest_input_ms=2000) == names[:1]
    assert leftovers(names, dropped=2, oldest_input_ms=9000) == names[:2]


def test_a_few_graphs_are_kept() -> None:
    """The newest ones, and the one that the oldest kept batch ran with."""
    names = [f"graph/{time_ms:016d}-e1.graph" for time_ms in (0, 500, 1000, 1500, 1600, 1700)]
    assert leftovers(names, dropped=1) == names[:3]
    assert leftovers(names[:3], dropped=1) == []


def test_the_rdds_of_a_graph_go_with_it() -> None:
    """And those of a start that failed before it had a graph; never those of newer drivers."""
    graphs = [
        f"graph/{time_ms:016d}-e{epoch}.graph"
        for epoch, time_ms in enumerate((0, 500, 1000, 2000, 3000), 1)
    ]
    rdds = [f"rdds/state/rdd-0/{0:016d}-p00000-e{epoch}-x.state" for epoch in range(1, 9)]
    assert leftovers([*graphs, *rdds], dropped=3, head=7) == [
        graphs[0], graphs[1], rdds[0], rdds[1], rdds[5], rdds[6]
    ]  # fmt: skip


def test_orphans_of_past_batches_go() -> None:
    """State files that no record names, of this or older drivers; never those of newer ones."""
    orphan, named, later, newer = (
        "state/a/0000000000001000-p00000-e1-x.state",
        "state/1000",
        "state/a/0000000000005000-p00000-e1-x.state",
        "state/a/0000000000001000-p00000-e9-x.state",
    )
    assert leftovers([orphan, named, later, newer], dropped=2) == [orphan]


def test_epochs_go_when_nothing_of_them_is_left() -> None:
    """The oldest first, and never the newest."""
    names = [
        f"epochs/000000000{n}.{kind}"
        for n in (1, 2, 3)
        for kind in ("claim", "released", "takeover")
    ]
    assert leftovers(names, dropped=1) == []
    assert leftovers(names, dropped=2) == names[:3]
    assert leftovers([*names, "batches/0000000000002000-e1.begin"], 2, 2000) == []


def test_snapshots_of_inputs_go_when_a_newer_one_stands_for_the_same() -> None:
    """That is one from before the oldest begin record that is kept; its epoch stays known."""
    epochs = [f"epochs/000000000{n}.claim" for n in (1, 2, 3)]
    older, standing, later = (
        f"inputs/{time_ms:016d}-e{epoch}.inputs"
        for time_ms, epoch in ((500, 1), (1500, 2), (3500, 3))
    )
    assert leftovers([*epochs, older], dropped=2) == []
    assert leftovers([*epochs, older, standing, later], dropped=2) == [older, epochs[0]]


def test_a_stream_of_files_goes_on_after_many_short_lives(tmp_path: Path) -> None:
    """The snapshot was written by the first driver, of which nothing else is left in the end."""
    files = LocalFiles(str(tmp_path))
    for number in range(6):
        owned = take_over(files, "stream-1", DriverProcess("host", 1, "", number, {}))
        inputs = InputSnapshots(owned.lease, "stream-1", owned.plan)
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
        commits.commit(record(time_ms, f"{time_ms}", epoch=owned.epoch))
        retention = StreamRetention(owned)
        retention.retire(time_ms, retire_inputs=lambda *_, inputs=inputs: inputs.newest)
    assert len(files.list("commits/")) == 1

"""Commit records: one per batch, created once, complete, by one writer."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from checkpoint import (
    CommitLog,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    FileRef,
    LocalFiles,
    NotDurableError,
    OperatorSnapshot,
    RecordId,
    StatePartition,
    StorageRefusedError,
    StorageUncertainError,
)
from checkpoint.storage.framing import FileKind, write_frames
from tests.support.faults import FaultyFiles


def ref(partition: int, name: str | None = None) -> FileRef:
    return FileRef(name or f"state/counts/{partition}", 100, "0" * 32, 5)


def record(time_ms: int = 2000, epoch: int = 1) -> CommitRecord:
    counts = OperatorSnapshot("stable", (ref(0), ref(1)))
    return CommitRecord("stream-1", 1, time_ms, epoch, {"counts": counts}, {"python": "3.11"})


pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


@pytest.fixture
def log(files: LocalFiles) -> CommitLog:
    return CommitLog(files)


def test_records_read_back_equal(log: CommitLog) -> None:
    """All fields of a record are read back, with no operator and with several."""
    without = replace(record(1000), snapshots={}, writer={})
    odd = replace(record(3000), snapshots={"ä/../b": OperatorSnapshot("x", (ref(0, "state/z"),))})
    more = replace(
        record(4000), watermarks={"w": -5}, failed_outputs=("print #1",), without_state=("idle",)
    )
    more = replace(more, facts={"due_ms": -1, "list": [1, None]})
    for each in (without, record(2000), odd, more):
        written = log.commit(each)
        assert log.read(each.batch_time_ms) == written
        assert replace(written, previous=None, newest_snapshots={}) == each


def test_times_are_sorted_and_the_latest_is_the_newest(log: CommitLog) -> None:
    """Records are ordered by batch time, not by name or commit."""
    assert log.times() == []
    assert log.latest() is None
    times = [5, 10_000_000_000_000_000_000, 0, 1_700_000_000_000]
    for time_ms in times:
        CommitLog(log.files).commit(record(time_ms))
    assert log.times() == sorted(times)
    latest = log.latest()
    assert latest is not None
    assert latest.batch_time_ms == max(times)


def test_files_of_others_are_no_records(log: CommitLog, tmp_path: Path) -> None:
    """Temporary files, backups and unknown files are never parsed."""
    log.commit(record(2000))
    for name in (
        "0000000000003000-e1.commit~",
        "0000000000003000-e01.commit",
        ".x.tmp",
        "3000-e1.commit",
        "x.commit",
        "README",
    ):
        (tmp_path / "commits" / name).write_bytes(b"junk")
    assert log.times() == [2000]


def test_the_same_commit_again_is_success(log: CommitLog) -> None:
    """A driver that is unsure whether it committed may commit again."""
    log.commit(record())
    log.commit(record())
    assert log.times() == [2000]


@pytest.mark.parametrize(
    "change", [{"batch_id": 9}, {"snapshots": {}}, {"stream_id": "other"}, {"watermarks": {"a": 1}}]
)
def test_other_content_is_a_concurrent_writer(log: CommitLog, change: dict[str, Any]) -> None:
    """A batch committed by another driver is not committed again, and keeps its record."""
    written = log.commit(record())
    other = replace(record(), **change)
    with pytest.raises(ConcurrentWriterError, match=r"of epoch 1, .* epoch 1 ") as it:
        CommitLog(log.files).commit(other)
    assert (it.value.epoch, it.value.other_epoch) == (1, 1)
    assert log.read(2000) == written


def test_of_two_writers_exactly_one_wins(log: CommitLog) -> None:
    """Of two drivers that commit one batch at once, one succeeds and the other gets an error."""
    barrier = threading.Barrier(2, timeout=30)

    def commit(time_ms: int, batch_id: int) -> int | None:
        barrier.wait()
        try:
            CommitLog(log.files).commit(replace(record(time_ms), batch_id=batch_id))
        except ConcurrentWriterError:
            return None
        return batch_id

    with ThreadPoolExecutor(2) as drivers:
        for time_ms in range(50):
            outcomes = list(drivers.map(commit, [time_ms] * 2, [1, 2]))
            winners = [batch_id for batch_id in outcomes if batch_id is not None]
            assert len(winners) == 1
            assert log.read(time_ms).batch_id == winners[0]


def test_uncertain_and_done_is_success(files: LocalFiles) -> None:
    """An uncertain create whose record exists counts as success."""
    faulty = FaultyFiles(files, 1, "after", StorageUncertainError)
    CommitLog(faulty).commit(record())
    assert faulty.fired
    assert CommitLog(files).read(2000) == record().after(None)


def test_uncertain_and_not_done_stays_uncertain(files: LocalFiles) -> None:
    """If the record is not visible, it might still appear."""
    faulty = FaultyFiles(files, 1, "before", StorageUncertainError)
    with pytest.raises(StorageUncertainError, match="may or may not be committed: injected fault"):
        CommitLog(faulty).commit(record())
    assert CommitLog(files).times() == []


def test_uncertain_and_done_by_another_is_a_concurrent_writer(files: LocalFiles) -> None:
    """The existing record decides, whoever wrote it."""
    CommitLog(files).commit(replace(record(), batch_id=7))
    faulty = FaultyFiles(files, 1, "before", StorageUncertainError)
    with pytest.raises(ConcurrentWriterError, match="with other content"):
        CommitLog(faulty).commit(record())


def test_a_record_that_cannot_be_read_back_is_uncertain(files: LocalFiles) -> None:
    """A refused read leaves the commit uncertain."""
    CommitLog(files).commit(record())
    faulty = FaultyFiles(files, 2, "before", StorageRefusedError)
    with pytest.raises(StorageUncertainError, match=r"exists already.*reading back: injected"):
        CommitLog(faulty).commit(record())


def test_a_record_that_a_power_loss_may_undo_is_no_success(
    log: CommitLog, faulty_os: Callable[..., Any]
) -> None:
    """If the directory cannot be synced, the batch is not durable."""
    log.commit(record(1000))
    faulty_os(3, OSError(errno.EIO, os.strerror(errno.EIO)), only="fsync")
    with pytest.raises(NotDurableError, match="cannot sync the directory of"):
        log.commit(record(2000))
    assert log.times() == [1000, 2000]


def test_refused_is_passed_on(files: LocalFiles) -> None:
    """A refused create is reported as refused."""
    faulty = FaultyFiles(files, 1, "before", StorageRefusedError)
    with pytest.raises(StorageRefusedError, match="injected fault"):
        CommitLog(faulty).commit(record())
    assert CommitLog(files).times() == []


def test_a_record_under_another_time_is_refused(log: CommitLog, tmp_path: Path) -> None:
    """A copied record does not commit another batch."""
    log.commit(record(2000))
    shutil.copy(
        tmp_path / "commits/0000000000002000-e1.commit",
        tmp_path / "commits/0000000000003000-e1.commit",
    )
    with pytest.raises(CorruptCheckpointError, match=r"3000-e1.commit is the record of 2000 ms"):
        log.latest()


def test_every_byte_of_a_record_counts(log: CommitLog, tmp_path: Path) -> None:
    """Every changed byte and every truncation is detected; no older record is used."""
    log.commit(record(1000))
    log.commit(record(2000))
    path = tmp_path / "commits/0000000000002000-e1.commit"
    good = path.read_bytes()
    for position in range(len(good)):
        flipped = bytearray(good)
        flipped[position] ^= 1
        for bad in (bytes(flipped), good[:position]):
            path.write_bytes(bad)
            with pytest.raises(CorruptCheckpointError, match=r"2000-e1\.commit"):
                log.latest()


GOOD = (
    b'{"batch_id":1,"batch_time_ms":2000,"epoch":1,"snapshots":{"counts":{"files":['
    b'{"digest":"00000000000000000000000000000000","name":"state/counts/0",'
    b'"records":5,"size_bytes":100}],"partitioner":"stable"}},'
    b'"newest_snapshots":{"counts":[2000,1]},"failed_outputs":["a"],"previous":[1000,1],'
    b'"stores":[],"stream_id":"stream-1","watermarks":{"w":7},"without_state":["b"],'
    b'"writer":{"python":"3.11"}}'
)


def create(files: LocalFiles, payload: bytes) -> None:
    frames = write_frames(FileKind.COMMIT, {"format": 1}, [(payload, 1)])
    files.create("commits/0000000000002000-e1.commit", frames)


def test_the_json_of_a_record_never_changes(log: CommitLog, files: LocalFiles) -> None:
    """Records on disk outlive releases, so their JSON is fixed."""
    create(files, GOOD)
    counts = OperatorSnapshot("stable", (ref(0),))
    assert log.read(2000) == replace(
        record(),
        snapshots={"counts": counts},
        watermarks={"w": 7},
        failed_outputs=("a",),
        without_state=("b",),
        previous=RecordId(1000, 1),
        newest_snapshots={"counts": RecordId(2000, 1)},
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"epoch":1', b'"epoch":"1"', r"Expected `int`, got `str` - at `\$.epoch`"),
        (b'"epoch":1', b'"epoch":true', r"Expected `int`, got `bool` - at `\$.epoch`"),
        (b'"epoch":1,', b"", "missing required field `epoch`"),
        (b'"epoch":1', b'"epoch":-1', r"Expected `int` >= 0 - at `\$.epoch`"),
        (b'"epoch":1', b'"epoch":1,"era":1', "unknown field `era`"),
        (b'"stream-1"', b'""', r"length >= 1 - at `\$.stream_id`"),
        (b'"counts":{"files"', b'"":{"files"', r"length >= 1 - at `key` in `\$.snapshots`"),
        (b"state/counts/0", b"../../etc/passwd", r"matching regex .* - at `.*.name`"),
        (b"0000000000000000", b"000000000000zzzz", r"matching regex .* - at `.*.digest`"),
        (b'"files":[', b'"files":[7,', "Expected `object`, got `int`"),
        (b'{"python":"3.11"}', b"[]", r"Expected `object`, got `array` - at `\$.writer`"),
        (b'"previous":[1000,1]', b'"previous":[2000,1]', "must be later than that of 2000 ms"),
        (b'"previous":[1000,1]', b'"previous":[1000]', r"length 2, got 1 - at `\$.previous`"),
        (b'"watermarks":{"w":7}', b'"watermarks":{"w":"7"}', r"got `str` - at `\$.watermarks"),
        (GOOD, b"", "Expecting value"),
        (GOOD, b'{"facts":{"x":' + b"[" * 100_000, "recursion"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(
    log: CommitLog, files: LocalFiles, old: bytes, new: bytes, said: str
) -> None:
    """Invalid content is rejected even if its checksums are right."""
    assert old in GOOD
    create(files, GOOD.replace(old, new))
    with pytest.raises(CorruptCheckpointError, match=f"2000-e1.commit says: .*{said}"):
        log.read(2000)


def test_two_partitions_have_two_files() -> None:
    """A record that names one file for two partitions cannot be created."""
    with pytest.raises(ValueError, match="state/x is named for more than one partition"):
        OperatorSnapshot("stable", (ref(0, "state/x"), ref(1, "state/x")))


def test_an_operator_says_what_each_file_must_hold() -> None:
    """The first file is that of partition 0."""
    first, second = OperatorSnapshot("stable", (ref(0), ref(1))).partitions("s", "counts", 2000)
    assert first == (ref(0), StatePartition("s", "counts", 2000, 0, 2, "stable"))
    assert second == (ref(1), StatePartition("s", "counts", 2000, 1, 2, "stable"))


@pytest.mark.parametrize(
    "change",
    [
        {"stream_id": ""},
        {"batch_id": -1},
        {"batch_time_ms": -1},
        {"epoch": -1},
        {"snapshots": {"": OperatorSnapshot("stable", (ref(0),))}},
        {"snapshots": {"counts": OperatorSnapshot("stable", ())}},
        {"facts": {"rate": float("nan")}},
        {"watermarks": {"w": 1.5}},
    ],
)
def test_an_impossible_record_is_not_written(log: CommitLog, change: dict[str, Any]) -> None:
    """A record that could not be read back is rejected before it is written."""
    impossible = replace(record(), **change)
    with pytest.raises(ValueError, match=r"."):
        log.commit(impossible)
    assert log.files.list("") == []


def test_a_record_is_linked_to_those_before_it(log: CommitLog) -> None:
    """A record names the previous one, and the newest snapshot of each state."""
    first = log.commit(record(1000))
    log.commit(replace(record(2000), snapshots={}, without_state=("idle",)))
    third = log.commit(replace(record(3000), snapshots={}))
    assert first.previous is None
    assert third.previous == RecordId(2000, 1)
    assert third.newest_snapshots == {"counts": RecordId(1000, 1), "idle": RecordId(2000, 1)}
    assert log.commit(replace(record(3000), snapshots={})) == third


def test_a_log_goes_on_after_the_last_record(log: CommitLog) -> None:
    """The next driver continues the log from the records it has read."""
    first = log.commit(record(1000))
    second = CommitLog(log.files, counted=[first.record_id]).commit(record(2000))
    assert second.previous == first.record_id
    late = CommitLog(log.files, counted=[first.record_id, second.record_id])
    with pytest.raises(ValueError, match="must be later than that of 2000 ms of epoch 1"):
        late.commit(record(1500))


def test_a_deleted_record_is_gone_and_deleting_again_is_fine(log: CommitLog) -> None:
    """Retention may delete the same record twice."""
    log.commit(record(1000))
    log.commit(record(2000))
    log.delete(RecordId(1000, 1))
    log.delete(RecordId(1000, 1))
    assert log.times() == [2000]
    with pytest.raises(FileNotFoundError):
        log.read(1000)

"""Begin records: the input of a batch is written once, by the driver that owns the stream."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from checkpoint import (
    BeginRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    RecordId,
    StorageUncertainError,
    open_files,
    read_plan,
    take_over,
)
from checkpoint.log.batch_records import BatchLog
from checkpoint.log.record_files import record_frames
from checkpoint.storage.framing import FileKind
from tests.support.faults import FaultyFiles

pytestmark = pytest.mark.usefixtures("no_sync")

RECORD = BeginRecord(
    "stream-1", 1, 2000, 1, {"lines": {"files": 3}, "rate #2": [1, 7]}, {"w": -5}, {"stands_for": 2}
)


@pytest.fixture
def log(tmp_path: Path) -> BatchLog:
    return BatchLog(open_files(tmp_path))


def test_records_read_back_equal(log: BatchLog) -> None:
    """All fields of a record are read back; creating the same record again is allowed."""
    for _ in range(2):
        log.begin(RECORD)
    assert log.read(2000) == RECORD
    assert log.times() == [2000]
    with pytest.raises(FileNotFoundError, match="has no begun batch at 3000 ms"):
        log.read(3000)


def test_records_name_the_one_before_and_what_they_stand_on(log: BatchLog) -> None:
    """A record names the previous batch, the graph and the snapshot of inputs."""
    stands_on = replace(RECORD, inputs_snapshot=RecordId(1500, 1), graph=RecordId(0, 1))
    log.begin(stands_on)
    for _ in range(2):
        log.begin(replace(stands_on, batch_time_ms=3000))
    assert log.read(3000) == replace(stands_on, batch_time_ms=3000, previous=RecordId(2000, 1))
    taken_over = BatchLog(log.files, begun=log.ids())
    taken_over.begin(replace(RECORD, batch_time_ms=3000, epoch=2))
    taken_over.begin(replace(RECORD, batch_time_ms=4000, epoch=2))
    assert taken_over.read(3000).previous == RecordId(2000, 1)
    assert taken_over.read(4000).previous == RecordId(3000, 2)


def test_a_batch_begins_with_one_input(log: BatchLog) -> None:
    """Another input for the same batch comes from another driver."""
    log.begin(RECORD)
    with pytest.raises(ConcurrentWriterError, match="with other content"):
        log.begin(replace(RECORD, inputs={}))
    assert log.read(2000) == RECORD


def test_what_a_replaced_driver_begins_is_void(tmp_path: Path) -> None:
    """The fence check before the outputs stops it, and no restart runs the batch."""
    files = open_files(tmp_path)
    older = take_over(files, "stream-1", DriverProcess.of_this_process(0))
    newer = take_over(files, "stream-1", DriverProcess.of_this_process(0))
    older.begins.begin(replace(RECORD, epoch=older.epoch))
    with pytest.raises(ConcurrentWriterError, match="has taken over"):
        older.lease.check()
    assert newer.begins.times() == []
    assert read_plan(files).in_flight == ()


def test_an_uncertain_record_is_read_back(log: BatchLog) -> None:
    """A record that exists despite an uncertain error counts as created."""
    BatchLog(FaultyFiles(log.files, 1, "after", StorageUncertainError)).begin(RECORD)
    later = replace(RECORD, batch_time_ms=3000)
    with pytest.raises(StorageUncertainError, match="3000 ms may or may not be begun"):
        BatchLog(FaultyFiles(log.files, 1, "before", StorageUncertainError)).begin(later)


def test_a_record_under_another_time_is_refused(log: BatchLog, tmp_path: Path) -> None:
    """A copied record does not begin another batch."""
    log.begin(RECORD)
    batches = tmp_path / "batches"
    shutil.copy(batches / "0000000000002000-e1.begin", batches / "0000000000003000-e1.begin")
    with pytest.raises(CorruptCheckpointError, match=r"3000-e1\.begin is the record of 2000 ms"):
        log.read(3000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": []}, r"Expected `object`, got `array` - at `\$.inputs`"),
        ({"batch_id": None}, r"Expected `int`, got `null` - at `\$.batch_id`"),
        ({"watermarks": {"w": "x"}}, r"Expected `int`, got `str` - at `\$.watermarks"),
        ({"epoch": -1}, r"Expected `int` >= 0 - at `\$.epoch`"),
        ({"graphs": None}, "unknown field `graphs`"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(
    log: BatchLog, change: dict[str, Any], said: str
) -> None:
    """Invalid content is rejected even if its checksums are right."""
    frames = record_frames(FileKind.BEGIN, {}, {**asdict(RECORD), **change})
    log.files.create("batches/0000000000002000-e1.begin", frames)
    with pytest.raises(CorruptCheckpointError, match=f"2000-e1.begin says: .*{said}"):
        log.read(2000)


@pytest.mark.parametrize(
    "change", [{"stream_id": ""}, {"batch_id": -1}, {"batch_time_ms": -1}, {"inputs": {"": 1}}]
)
def test_an_impossible_record_is_not_written(log: BatchLog, change: dict[str, Any]) -> None:
    """A record that could not be read back is rejected before it is written."""
    with pytest.raises(ValueError, match="Expected"):
        log.begin(replace(RECORD, **change))
    assert log.files.list("") == []


def test_what_is_no_json_is_refused_before_anything_is_written(log: BatchLog) -> None:
    """Inputs described by values that are not JSON are rejected."""
    with pytest.raises(TypeError):
        log.begin(replace(RECORD, inputs={"lines": object()}))
    assert log.files.list("") == []

"""Records of queries: reading returns what was written, and other records are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import BeginRecord, CommitLog, CommitRecord, CorruptCheckpointError, open_files
from checkpoint.log.batch_records import BatchLog
from dstreams.errors import RestartError
from dstreams.sources.source import PlannedInput
from dstreams.structured.execution.query_records import (
    QueryBatch,
    QueryCommit,
    batch_end,
    batch_start,
)
from dstreams.structured.execution.watermarks import Watermarks
from tests.support.surroundings import reads

INPUTS = (
    PlannedInput(17_000, None, 7, {"files": ["/in/a"]}, None, "new files: a"),
    PlannedInput(17_000, None, None),
    PlannedInput(17_000, {"a": [0]}, {"a": [1]}, {"begin_ms": 5}, 12),
)
START = batch_start(
    17_000,
    5000,
    4000,
    INPUTS,
    {"key": "value"},
    ({"uid": "count"},),
)
MARKS = Watermarks(5000, (5000, 7000), (0, -1))


def test_starts(tmp_path: Path) -> None:
    """Reading a begin record returns what was written."""
    log = BatchLog(open_files(tmp_path))
    log.begin(BeginRecord("query", 3, 17_001, 1, **START))
    batch = QueryBatch(log.read(17_001))
    assert (batch.batch_id, batch.timestamp_ms) == (3, 17_000)
    assert (batch.watermark_ms, batch.late_watermark_ms) == (5000, 4000)
    assert batch.ends == (7, None, {"a": [1]})
    assert batch.inputs == INPUTS
    assert batch.conf == {"key": "value"}
    assert batch.operators == [{"uid": "count"}]


def test_more_sources_than_digits(tmp_path: Path) -> None:
    """Offsets stay with their sources, however many there are."""
    log = BatchLog(open_files(tmp_path))
    log.begin(BeginRecord("query", 0, 0, 1, **batch_start(0, 0, 0, reads(*range(12)))))
    assert QueryBatch(log.read(0)).ends == tuple(range(12))


def test_ends(tmp_path: Path) -> None:
    """Reading a commit record returns what was written."""
    log = CommitLog(open_files(tmp_path))
    end = batch_end(MARKS, 12_000, {"rows": 2})
    log.commit(CommitRecord("query", 3, 17_001, 1, {}, {}, **end))
    commit = QueryCommit(log.read(17_001))
    assert (commit.watermarks, commit.next_timeout_ms) == (MARKS, 12_000)


def test_of_a_stream() -> None:
    """Records of a stream are refused, and the error names its id."""
    with pytest.raises(RestartError, match="checkpoint is of stream-1, which is not a query"):
        QueryBatch(BeginRecord("stream-1", 0, 0, 1, {"lines": {}}))
    with pytest.raises(RestartError, match="checkpoint is of stream-1, which is not a query"):
        QueryCommit(CommitRecord("stream-1", 0, 0, 1, {}, {}))


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """No byte of a record can change unnoticed."""
    log = BatchLog(open_files(tmp_path))
    log.begin(BeginRecord("query", 3, 0, 1, **START))
    (path,) = (tmp_path / "batches").iterdir()
    path.chmod(0o600)
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CorruptCheckpointError):
            log.read(0)

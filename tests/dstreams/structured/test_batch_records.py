"""What the records of a query say: written once, read whole, and nothing else taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import (
    BatchLog,
    BeginRecord,
    CommitLog,
    CommitRecord,
    CorruptCheckpointError,
    open_files,
)
from dstreams.errors import RestartError
from dstreams.structured.batch_records import OffsetRecord, QueryCommit
from dstreams.structured.watermarks import Watermarks

RECORD = OffsetRecord(
    3,
    17_000,
    5000,
    4000,
    (7, None, {"a": [1]}),
    {"key": "value"},
    ({"uid": "count"},),
    ({"files": ["/in/a"]}, {}, {"start_ms": 5}),
)
COMMIT = QueryCommit(3, (), Watermarks(5000, (5000, 7000), (0, -1)), 12_000, {"rows": 2})


def test_offsets(tmp_path: Path) -> None:
    """What a batch is comes back as it was written."""
    log = BatchLog(open_files(tmp_path))
    log.begin(RECORD.to_begin("query", 17_001, 1))
    assert OffsetRecord.from_begin(log.read(17_001)) == RECORD


def test_more_sources_than_digits(tmp_path: Path) -> None:
    """Offsets stay with their sources, however many there are."""
    record = OffsetRecord(0, 0, 0, 0, tuple(range(12)))
    log = BatchLog(open_files(tmp_path))
    log.begin(record.to_begin("query", 0, 1))
    assert OffsetRecord.from_begin(log.read(0)).ends == tuple(range(12))


def test_commits(tmp_path: Path) -> None:
    """What a batch left behind comes back as it was written."""
    log = CommitLog(open_files(tmp_path))
    log.commit(COMMIT.to_commit("query", 17_001, 1))
    assert QueryCommit.from_commit(log.read(17_001)) == COMMIT


def test_of_a_stream() -> None:
    """The records of a stream that is no query are refused, and its id is named."""
    with pytest.raises(RestartError, match="checkpoint of stream-1, which is no query"):
        OffsetRecord.from_begin(BeginRecord("stream-1", 0, 0, 1, {"lines": {}}))
    with pytest.raises(RestartError, match="checkpoint of stream-1, which is no query"):
        QueryCommit.from_commit(CommitRecord("stream-1", 0, 0, 1, {}, {}))


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """No byte of a record can change unnoticed."""
    log = BatchLog(open_files(tmp_path))
    log.begin(RECORD.to_begin("query", 0, 1))
    (path,) = (tmp_path / "batches").iterdir()
    path.chmod(0o600)
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CorruptCheckpointError):
            log.read(0)

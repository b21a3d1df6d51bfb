"""The logs of a query: written once, read whole, never changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint import Files, open_files
from dstreams.errors import RestartError
from dstreams.structured.logs import (
    OffsetLog,
    OffsetRecord,
    QueryCommit,
    QueryCommitLog,
    claim_epoch,
    newer_run,
    query_id,
)

RECORD = OffsetRecord(
    3, 17_000, 5000, 4000, (7, None, {"a": [1]}), {"key": "value"}, ({"uid": "count"},)
)
COMMIT = QueryCommit(3, (), {"query": 5000, "operators": [5000], "active": [0]}, 12_000)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(tmp_path)


def test_offsets(files: Files) -> None:
    """A record comes back as it was written; a batch that was not begun has none."""
    log = OffsetLog(files)
    log.begin(RECORD)
    assert log.read(3) == RECORD
    assert log.read(4) is None
    assert log.ids() == [3]


def test_commits(files: Files) -> None:
    """A record comes back as it was written; a batch that was not committed has none."""
    log = QueryCommitLog(files)
    log.commit(COMMIT)
    assert log.read(3) == COMMIT
    assert log.read(4) is None
    assert log.ids() == [3]
    log.delete(3)
    assert log.ids() == []


@pytest.mark.parametrize(
    "write",
    [
        lambda files: OffsetLog(files).begin(RECORD),
        lambda files: QueryCommitLog(files).commit(COMMIT),
    ],
    ids=["offsets", "commits"],
)
def test_written_once(files: Files, write: Callable[[Files], None]) -> None:
    """Who finds the record of a batch that it did not write is not alone."""
    write(files)
    with pytest.raises(RestartError, match="concurrently using"):
        write(files)


@pytest.mark.parametrize("change", [b"", b"v1\n{}\n", b"v1\n{}\n#0000\n"])
def test_damage_is_found(tmp_path: Path, change: bytes) -> None:
    """A file that is cut or changed is refused, and not half believed."""
    files = open_files(tmp_path)
    OffsetLog(files).begin(RECORD)
    (path,) = (tmp_path / "offsets").iterdir()
    path.chmod(0o600)
    path.write_bytes(change)
    with pytest.raises(RestartError, match="damaged"):
        OffsetLog(files).read(3)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """No byte of a record can change unnoticed."""
    whole = RECORD.to_text()
    for place in range(len(whole) - 1):
        other = "x" if whole[place] != "x" else "y"
        with pytest.raises(RestartError):
            OffsetRecord.from_text(whole[:place] + other + whole[place + 1 :], "file")


def test_purge(files: Files) -> None:
    """Records below a number are deleted."""
    log = OffsetLog(files)
    for number in range(5):
        log.begin(OffsetRecord(number, 0, 0, 0, ()))
    log.purge(3)
    assert log.ids() == [3, 4]


def test_query_id(files: Files) -> None:
    """The id of a query is kept; without it, logs belong to nobody."""
    assert query_id(files, "first") == "first"
    assert query_id(files, "second") == "first"
    OffsetLog(files).begin(RECORD)
    files.delete("metadata")
    with pytest.raises(RestartError, match="no file 'metadata'"):
        query_id(files, "third")


def test_epochs(files: Files) -> None:
    """Each run takes the next number, and an older one learns of a newer one."""
    first = claim_epoch(files, {"runId": "one"})
    assert newer_run(files, first) is None
    second = claim_epoch(files, {"runId": "two"})
    assert second == first + 1
    assert "two" in (newer_run(files, first) or "")

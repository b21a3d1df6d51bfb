"""A stream and a query with their checkpoint on S3, through s3fs alone, killed and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.lives import entries, expected, run_program, values
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark

BATCHES = 4


@pytest.fixture
def checkpoint(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint on the server, which is all that programs started by the test can reach."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return s3.new_url()


def use_new_host(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next program find no local copies of state, as on another host."""
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))


def test_a_query(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It restarts from its records and changelogs; batches have the same rows as without a kill."""
    (tmp_path / "inputs").mkdir()
    for batch_id in range(BATCHES):
        lines = "".join(f"{value}\n" for value in values(batch_id))
        (tmp_path / "inputs" / f"{batch_id}.txt").write_text(lines)
    use_new_host(tmp_path / "first", monkeypatch)
    run_program("query", tmp_path, checkpoint, kill_at="commit.start@2")
    use_new_host(tmp_path / "second", monkeypatch)
    run_program("query", tmp_path, checkpoint)
    seen = entries(tmp_path)
    assert [entry.batch_id for entry in seen] == [0, 1, 2, 2, 3]
    for entry in seen:
        assert entry.rows == expected("sums", entry.batch_id)


def test_a_stream(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no connector of Hadoop; outputs have the same rows as without a kill."""
    use_new_host(tmp_path / "first", monkeypatch)
    run_program("application", tmp_path, "1", str(BATCHES), checkpoint, kill_at="commit.start@2")
    use_new_host(tmp_path / "second", monkeypatch)
    run_program("application", tmp_path, "1", "2", checkpoint)
    seen = entries(tmp_path)
    for output in ("sums", "window", "counts"):
        assert [entry.batch_id for entry in seen if entry.output == output] == [0, 1, 2, 2, 3]
    for entry in seen:
        assert entry.rows == expected(entry.output, entry.batch_id), entry

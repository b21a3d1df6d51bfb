"""A stream and a query with their checkpoint on S3 or HDFS, killed and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import open_existing
from tests.recovery.application import OUTPUTS
from tests.recovery.lives import entries, expected, run_program, values
from tests.support.hdfs import Hdfs
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark

BATCHES = 4


@pytest.fixture(params=["s3", "hdfs"])
def checkpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint on a server, which is all that programs started by the test can reach."""
    server: S3Server | Hdfs = request.getfixturevalue(request.param)
    if isinstance(server, S3Server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    return server.new_url()


def use_new_host(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next program find no local copies of state, as on another host."""
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))


@pytest.mark.deep
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


@pytest.mark.deep
def test_a_stream(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no connector of Hadoop; outputs have the same rows as without a kill."""
    use_new_host(tmp_path / "first", monkeypatch)
    run_program("application", tmp_path, "1", str(BATCHES), checkpoint, kill_at="commit.start@2")
    use_new_host(tmp_path / "second", monkeypatch)
    run_program("application", tmp_path, "1", "2", checkpoint)
    seen = entries(tmp_path)
    for output in OUTPUTS:
        assert [entry.batch_id for entry in seen if entry.output == output] == [0, 1, 2, 2, 3]
    for entry in seen:
        assert entry.rows == expected(entry.output, entry.batch_id), entry


def lines_of(url: str) -> list[list[int]]:
    """Return the sorted lines of each directory that a stream has written, in their order."""
    above, _, name = url.rpartition("/")
    files = open_existing(above)
    found = []
    for directory in sorted(each for each in files.directories() if each.startswith(f"{name}-")):
        names = [each.rpartition("/")[2] for each in files.list(f"{directory}/")]
        assert "_SUCCESS" in names
        parts = (files.read(f"{directory}/{each}") for each in names if each.startswith("part-"))
        found.append(sorted(int(line) for part in parts for line in part.split()))
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    "step", [pytest.param("out.start@2", marks=pytest.mark.slow), "commit.start@2"]
)
def test_files_on_hdfs(hdfs: Hdfs, tmp_path: Path, step: str) -> None:
    """The directory of each batch is there once and complete, wherever the driver is killed."""
    url = hdfs.new_url()
    program = ("application", tmp_path, "1", str(BATCHES), f"{url}/checkpoint", f"{url}/lines")
    run_program(*program, kill_at=step)
    run_program(*program)
    assert lines_of(f"{url}/lines") == [list(values(batch)) for batch in range(2 + BATCHES)]

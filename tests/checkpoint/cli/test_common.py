"""Finding the stream and the batch, and the errors if they do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.cli.common import nearest
from tests.checkpoint.cli.conftest import Run
from tests.support.stream_model import STREAM

HINT = "; a number is milliseconds since 1970; batches lists the time of each batch"
AUTUMN_MS = 1_795_477_500_000


@pytest.mark.parametrize("command", ["show", "verify", "batches", "rewind"])
def test_checkpoints_of_queries_below_a_directory_are_named(
    run: Run, url: Path, command: str
) -> None:
    """The error for a directory of checkpoints of queries lists them."""
    (url / STREAM).rename(url / "visits")
    arguments = ["--to", "5000"] if command == "rewind" else []
    status, _, error = run(command, url, *arguments)
    assert status == 2
    assert f"{url} is not a checkpoint, but contains these: visits; give" in error
    assert error.rstrip().endswith(f"such as {url}/visits")
    assert run("show", url / "visits")[0] == 0


def test_an_empty_directory_is_no_checkpoint(run: Run, tmp_path: Path) -> None:
    """The error for an empty directory asks whether it is a checkpoint."""
    status, _, error = run("show", tmp_path)
    assert status == 2
    assert "holds no commit record and no stream; is it a checkpoint?" in error


@pytest.mark.parametrize(
    ("times", "asked_ms", "says"),
    [
        ([], 60, "no batch is"),
        ([AUTUMN_MS], 60, f"the nearest are 2026-11-23T23:45:00Z{HINT}"),
        ([AUTUMN_MS], AUTUMN_MS + 1, "the nearest are 2026-11-23T23:45:00Z"),
        ([1000], 60, "the nearest are 1970-01-01T00:00:01Z"),
    ],
)
def test_the_number_of_a_batch_is_no_time(times: list[int], asked_ms: int, says: str) -> None:
    """The error for a batch number given as a time explains that numbers are times."""
    assert nearest(times, asked_ms) == says

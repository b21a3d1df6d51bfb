"""A checkpoint of Spark itself is not taken for an empty directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoint import open_files
from dstreams.engine.recovery.recover import (
    recover,
    require_no_query_of_spark,
    require_no_stream_of_spark,
)
from dstreams.errors import RestartError
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint, read_checkpoint


def write(directory: Path, *names: str) -> str:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1\n{}")
    return str(directory)


QUERY = ("metadata", "offsets/0", "offsets/1", "commits/0", "state/0/0/1.delta", ".metadata.crc")
STREAM = ("checkpoint-1700000000000", "checkpoint-1700000001000", "receivedData/0/log")


def test_the_checkpoint_of_a_query_of_spark(tmp_path: Path) -> None:
    """The start and the tools refuse it with an error that names it, and write nothing there."""
    location = write(tmp_path, *QUERY)
    before = sorted(tmp_path.rglob("*"))

    def start() -> Any:
        return QueryCheckpoint(location, "query", "run")

    for opens in (start, lambda: read_checkpoint(location)):
        with pytest.raises(RestartError, match="is the checkpoint of a query of Spark") as refused:
            opens()
        assert "up to offsets/1" in str(refused.value)
        assert "give another directory" in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_checkpoint_of_a_stream_of_spark(tmp_path: Path) -> None:
    """A restart that looks up a stream refuses it with an error that names it."""
    location = write(tmp_path, *STREAM)
    wanted = r"pyspark\.streaming, with checkpoint-1700000001000: .* adopt=SPARK_CHECKPOINT"
    with pytest.raises(RestartError, match=wanted):
        recover(location)


def test_other_files(tmp_path: Path) -> None:
    """One file with such a name does not make a directory a checkpoint of Spark."""
    write(tmp_path, "metadata", "checkpoint-of-mine", "commits/0")
    files = open_files(tmp_path)
    require_no_query_of_spark(files)
    require_no_stream_of_spark(files)
    require_no_query_of_spark(open_files(tmp_path / "empty"))

"""Streams of a checkpoint: the newest one that can be gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import (
    DriverProcess,
    GraphSnapshot,
    open_files,
    open_stream,
    stream_ids,
    stream_url,
    take_over,
    write_graph,
)
from checkpoint.log.recovery import list_streams
from tests.support.faults import FaultyFiles

pytestmark = pytest.mark.usefixtures("no_sync")


def make(url: str, stream_id: str, with_graph: bool) -> None:
    owned = take_over(open_stream(url, stream_id), stream_id, DriverProcess.of_this_process(0))
    if with_graph:
        write_graph(owned.lease, GraphSnapshot(stream_id, 0, 1, {}, b""))


def test_streams_are_found_by_their_directories(tmp_path: Path) -> None:
    """In the order in which they began; other files and directories are none."""
    url = str(tmp_path)
    assert list_streams(open_files(url)) == []
    assert stream_ids(open_files(url)) == []
    for stream_id, with_graph in (
        ("stream-9000-00000001", True),
        ("stream-10000-00000002", True),
        ("stream-20000-00000003", False),
    ):
        make(f"{url}/", stream_id, with_graph)
    (tmp_path / "stream-x").mkdir()
    (tmp_path / "notes").write_text("hello")
    found = list_streams(open_files(url))
    assert [stream.zero_ms for stream in found] == [9000, 10_000, 20_000]
    assert [stream.graphs for stream in found] == [1, 1, 0]
    assert [stream.epochs for stream in found] == [1, 1, 1]
    counted = FaultyFiles(open_files(url), 0)
    assert stream_ids(counted) == [stream.stream_id for stream in reversed(found)]
    assert counted.calls == ["directories "]
    assert stream_url(f"{url}/", found[1].stream_id) == f"{url}/stream-10000-00000002"

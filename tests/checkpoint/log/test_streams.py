"""Streams of a checkpoint: listing them, and finding the newest one that can resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import (
    ConcurrentWriterError,
    DriverProcess,
    GraphSnapshot,
    discard_stream,
    open_files,
    open_stream,
    stream_ids,
    stream_url,
    take_over,
    write_graph,
)
from checkpoint.log.recovery import began_ms, list_streams
from tests.support.faults import FaultyFiles

pytestmark = pytest.mark.usefixtures("no_sync")


def make(url: str, stream_id: str, with_graph: bool) -> None:
    owned = take_over(open_stream(url, stream_id), stream_id, DriverProcess.of_this_process(0))
    if with_graph:
        write_graph(owned.lease, GraphSnapshot(stream_id, 0, 1, {}, b""))


def test_streams_are_found_by_their_directories(tmp_path: Path) -> None:
    """Streams are in order of their start; other files and directories are ignored."""
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
    assert [began_ms(stream_id) for stream_id in found] == [9000, 10_000, 20_000]
    counted = FaultyFiles(open_files(url), 0)
    assert stream_ids(counted) == list(reversed(found))
    assert counted.calls == ["directories "]
    assert stream_url(f"{url}/", found[1]) == f"{url}/stream-10000-00000002"


def test_a_discarded_stream_has_only_claims(tmp_path: Path) -> None:
    """Its driver is fenced, and must stop; a stream with a graph is not discarded."""
    url, driver = str(tmp_path), DriverProcess.of_this_process(0)
    files = open_stream(url, "stream-1-00")
    owned = take_over(files, "stream-1-00", driver)
    files.create("state/part", [b"data"])
    discard_stream(files, "stream-1-00", driver)
    assert {name.partition("/")[0] for name in files.list("")} == {"epochs"}
    with pytest.raises(ConcurrentWriterError, match="has taken over"):
        owned.lease.check()
    make(url, "stream-2-00", with_graph=True)
    with pytest.raises(ConcurrentWriterError, match="has just completed"):
        discard_stream(open_stream(url, "stream-2-00"), "stream-2-00", driver)
    assert list(tmp_path.glob("stream-2-00/graph/*"))

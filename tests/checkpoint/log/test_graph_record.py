"""Graph snapshots: the newest one that counts is used, or an error is raised."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from checkpoint import (
    AlreadyExistsError,
    CorruptCheckpointError,
    DriverProcess,
    GraphSnapshot,
    open_files,
    read_newest_graph,
    take_over,
    write_graph,
)
from checkpoint.log.fencing import WriterLease
from checkpoint.log.graph_record import read_graph
from checkpoint.log.record_files import RecordId
from checkpoint.storage.framing import FileKind, write_frames

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def lease(tmp_path: Path) -> WriterLease:
    return take_over(open_files(tmp_path), "stream-1", DriverProcess.of_this_process(0)).lease


def graph(time_ms: int, epoch: int = 1, payload: bytes = b"payload") -> GraphSnapshot:
    return GraphSnapshot("stream-1", time_ms, epoch, {"operators": [{"uid": "a"}]}, payload)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 10_000])
def test_a_graph_is_read_as_it_was_written(lease: WriterLease, payload: bytes) -> None:
    """Description and payload of any size; writing the same again is allowed."""
    for _ in range(2):
        write_graph(lease, graph(0, payload=payload))
    assert read_newest_graph(lease.files) == graph(0, payload=payload)


def test_there_is_none_at_first(lease: WriterLease) -> None:
    """A stream without a graph is not an error."""
    assert read_newest_graph(lease.files) is None


def test_the_newest_counts(lease: WriterLease) -> None:
    """The epoch decides first: a restart resumes with the graph that it wrote."""
    write_graph(lease, graph(0))
    write_graph(lease, graph(5000))
    assert read_newest_graph(lease.files) == graph(5000)
    second = take_over(lease.files, "stream-1", DriverProcess.of_this_process(0))
    write_graph(second.lease, graph(0, 2))
    assert read_newest_graph(lease.files) == graph(0, 2)


def test_an_older_one_is_never_taken_for_the_newest(lease: WriterLease, tmp_path: Path) -> None:
    """An older graph is another program: a damaged or missing newest one is an error.

    A graph newer than the one that the batch was begun with is accepted.
    """
    for time_ms in (0, 1000):
        write_graph(lease, graph(time_ms))
    assert read_newest_graph(lease.files, RecordId(0, 1)) == graph(1000)
    newest = tmp_path / "graph" / "0000000000001000-e1.graph"
    content = newest.read_bytes()
    newest.write_bytes(content[:-3])
    with pytest.raises(CorruptCheckpointError, match=r"1000-e1\.graph ends after"):
        read_newest_graph(lease.files)
    newest.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"1000-e1\.graph is missing; .* begun with"):
        read_newest_graph(lease.files, RecordId(1000, 1))


def test_a_graph_of_an_epoch_without_its_takeover_is_refused(
    lease: WriterLease, tmp_path: Path
) -> None:
    """The takeover is written first; without it, it is unknown which graph counts."""
    write_graph(lease, graph(0))
    (tmp_path / "epochs" / "0000000001.takeover").unlink()
    with pytest.raises(
        CorruptCheckpointError, match=r"01\.takeover is missing; .* which has a graph"
    ):
        read_newest_graph(lease.files)


def test_another_graph_of_that_time_is_refused(lease: WriterLease) -> None:
    """A graph is written once."""
    write_graph(lease, graph(0))
    with pytest.raises(AlreadyExistsError, match="is another graph"):
        write_graph(lease, graph(0, payload=b"other"))


def test_a_replaced_driver_does_not_replace_the_graph(lease: WriterLease) -> None:
    """A graph that it writes late is older than that of the new driver."""
    newer = take_over(lease.files, "stream-1", DriverProcess.of_this_process(0))
    write_graph(newer.lease, graph(0, 2))
    write_graph(lease, graph(0))
    assert read_newest_graph(lease.files) == graph(0, 2)


@pytest.mark.parametrize(
    ("blocks", "said"),
    [([], "has no description"), ([(b"[]", 1)], "says: Expected `object`, got `array`")],
)
def test_a_graph_without_a_description_is_refused(
    lease: WriterLease, blocks: list[tuple[bytes, int]], said: str
) -> None:
    """It is rejected even if its checksums are right."""
    header = {"stream_id": "stream-1", "time_ms": 0, "epoch": 1}
    frames = write_frames(FileKind.GRAPH, header, blocks)
    lease.files.create("graph/0000000000000000-e1.graph", frames)
    with pytest.raises(CorruptCheckpointError, match=said):
        read_graph(lease.files, RecordId(0, 1))


def test_a_graph_under_another_time_is_refused(lease: WriterLease, tmp_path: Path) -> None:
    """A copied file is not the graph of another time."""
    write_graph(lease, graph(0))
    copied = tmp_path / "graph" / "0000000000001000-e1.graph"
    copied.write_bytes((tmp_path / "graph" / "0000000000000000-e1.graph").read_bytes())
    with pytest.raises(CorruptCheckpointError, match="is of time_ms 0; expected time_ms 1000"):
        read_graph(lease.files, RecordId(1000, 1))


def test_the_graph_of_another_stream_is_refused(lease: WriterLease) -> None:
    """An intact graph of another stream is rejected."""
    write_graph(lease, dataclasses.replace(graph(1000), stream_id="stream-2"))
    with pytest.raises(CorruptCheckpointError, match="is the graph of stream stream-2; expected"):
        read_newest_graph(lease.files)

"""Graph snapshots: the driver's graph, for a restart and for people.

A snapshot has a description, which is JSON, and a payload, which this package never unpickles.
Several are kept, so that a rewind finds the one of its time. A damaged one is an error, since an
older one is another program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpoint.errors import (
    COMMAND,
    RESTORE,
    AlreadyExistsError,
    CorruptCheckpointError,
    Damage,
)
from checkpoint.log.fencing import TAKEOVER, WriterLease, epoch_file
from checkpoint.log.lineage import Lineage, read_lineage
from checkpoint.log.record_files import (
    RecordId,
    create_once,
    misplaced,
    missing,
    record_ids,
    require_header,
)
from checkpoint.log.state_files import (
    StatePartition,
    read_state_file,
    state_file_record,
)
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, PrefixedFiles, location
from checkpoint.storage.framing import FileKind, FileRef, read_frames, write_frames
from checkpoint.storage.json_records import Count, JsonRecord, Text, convert, decode, encode
from checkpoint.storage.trust import require_no_key

GRAPH_PREFIX = "graph/"
GRAPH_SUFFIX = ".graph"
KEPT_GRAPHS = 3
RDDS_PREFIX = "rdds/"
"""Prefix of the state files of RDDs that a graph names, written in its epoch."""

_PAYLOAD_BLOCK_BYTES = 1 << 20
_DESCRIPTION = "the description of a graph"
_RESTORE_GRAPH = (
    "restore the file from a copy or an export; without it no code, old or new, can resume here, "
    f"but the state still exists: {COMMAND} read shows it, and a stream in another directory can "
    "have it as its initial state"
)


@dataclass(frozen=True)
class GraphSnapshot:
    """A graph of a stream.

    Args:
        stream_id: id of the stream.
        time_ms: time of the last batch before it, or the zero time of the stream.
        epoch: epoch of the driver that wrote it.
        description: JSON about operators, inputs, durations and versions; no secrets.
        payload: bytes that only the driver can read.
        with_state: uids of the operators that have snapshots of state; None if unknown.
    """

    stream_id: str
    time_ms: int
    epoch: int
    description: Mapping[str, object]
    payload: bytes
    with_state: tuple[str, ...] | None = None

    @property
    def record_id(self) -> RecordId:
        """The id of this snapshot."""
        return RecordId(self.time_ms, self.epoch)


class _Header(JsonRecord, frozen=True):
    stream_id: Text
    time_ms: Count
    epoch: Count
    with_state: tuple[Text, ...] | None = None


def write_graph(lease: WriterLease, snapshot: GraphSnapshot) -> None:
    """Write a snapshot durably; the same again is fine.

    The lease is not checked: a snapshot of a replaced driver is older than that of the new driver.
    Raises AlreadyExistsError or CheckpointError.
    """
    header = _Header(snapshot.stream_id, snapshot.time_ms, snapshot.epoch, snapshot.with_state)
    frames = write_frames(FileKind.GRAPH, header, _blocks(snapshot))
    name = graph_file(snapshot.record_id)
    require_no_key(lease.files, name, snapshot.payload)

    def taken() -> Exception:
        where = location(lease.files, name)
        return AlreadyExistsError(f"{where} is another graph; a graph is written once per batch")

    what = f"the graph at {snapshot.time_ms} ms may or may not be written"
    create_once(lease.files, name, frames, taken, what)


def all_graphs(files: Files) -> list[RecordId]:
    """Return the sorted ids of all snapshots, including void ones."""
    return record_ids(files.list(GRAPH_PREFIX), GRAPH_PREFIX, GRAPH_SUFFIX)


def read_graph(files: Files, record_id: RecordId) -> GraphSnapshot:
    """Read a snapshot, whether it counts or not.

    Raises FileNotFoundError or CorruptCheckpointError.
    """
    try:
        return _read_graph(files, record_id)
    except CorruptCheckpointError as error:
        if error.remedy != RESTORE:
            raise
        # A rewind does not help: earlier batches have the same graph.
        raise type(error)(
            error.file, error.found, error.expected, _RESTORE_GRAPH, error.damage
        ) from error


def _read_graph(files: Files, record_id: RecordId) -> GraphSnapshot:
    name = graph_file(record_id)
    file = location(files, name)
    frames = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), FileKind.GRAPH, file)
    blocks = [payload for payload, _ in frames.blocks]
    require_header(frames.header, {"time_ms": record_id.time_ms, "epoch": record_id.epoch}, file)
    if not blocks:
        raise CorruptCheckpointError(
            file, "has no description", "that of a graph", RESTORE, Damage.DAMAGED
        )
    header = convert(frames.header, _Header, file, "the header of a graph")
    description = decode(blocks[0], dict[str, object], file, _DESCRIPTION)
    payload = b"".join(blocks[1:])
    return GraphSnapshot(
        header.stream_id, header.time_ms, header.epoch, description, payload, header.with_state
    )


def read_newest_graph(
    files: Files, begun_with: RecordId | None = None, known: Lineage | None = None
) -> GraphSnapshot | None:
    """Read the newest snapshot that counts, if any.

    Args:
        files: the directory of the stream.
        begun_with: the snapshot that the newest begin record names; it, or a newer one, must exist.
        known: the lineage as it was read before; its takeovers are not read again.

    Raises CorruptCheckpointError.
    """
    there = all_graphs(files)  # listed first: a takeover is written before the graph
    lineage = read_lineage(files, known)
    _require_takeovers(files, lineage, there)
    return _read_newest(files, there, begun_with, lineage)


def read_graph_in(
    files: Files, lineage: Lineage, begun_with: RecordId | None = None
) -> GraphSnapshot | None:
    """Read the newest snapshot that counts in a lineage, which may be hypothetical."""
    return _read_newest(files, all_graphs(files), begun_with, lineage)


def _read_newest(
    files: Files, there: list[RecordId], begun_with: RecordId | None, lineage: Lineage
) -> GraphSnapshot | None:
    newest = next(iter(lineage.snapshots(there)), None)
    counted = [] if begun_with is None else lineage.snapshots([begun_with])  # not after a rewind
    if counted and (newest is None or _age(newest) < _age(counted[0])):
        file = location(files, graph_file(counted[0]))
        wanted = "the graph that the newest batch was begun with"
        raise CorruptCheckpointError(file, "is missing", wanted, _RESTORE_GRAPH, Damage.MISSING)
    if newest is None:
        return None
    snapshot = read_graph(files, newest)
    _require_stream(files, lineage, snapshot)
    return snapshot


def _require_takeovers(files: Files, lineage: Lineage, there: Iterable[RecordId]) -> None:
    """Raise if a graph is newer than all takeovers, which are written first."""
    epoch = max((record_id.epoch for record_id in there), default=0)
    if epoch > lineage.head:
        file = location(files, epoch_file(epoch, TAKEOVER))
        wanted = f"the takeover of epoch {epoch}, which has a graph"
        raise missing(file, wanted)


def _age(record_id: RecordId) -> tuple[int, int]:
    return record_id.epoch, record_id.time_ms


def read_rdds(files: Files, snapshot: GraphSnapshot) -> Iterator[bytes]:
    """Read the files of the RDDs of a snapshot to their ends. Raises CorruptCheckpointError."""
    where = PrefixedFiles(files, RDDS_PREFIX.rstrip("/"))
    for ref, partition in rdd_files(files, snapshot):
        yield from read_state_file(where, ref, partition)


def rdd_files(files: Files, snapshot: GraphSnapshot) -> Iterator[tuple[FileRef, StatePartition]]:
    """Yield the files of the RDDs of a snapshot. Raises CorruptCheckpointError."""
    file = location(files, graph_file(snapshot.record_id))
    rdds = convert(
        snapshot.description.get("rdds", {}), dict[Text, list[FileRef]], file, _DESCRIPTION
    )
    for uid, refs in rdds.items():
        for partition, ref in enumerate(refs):
            yield ref, StatePartition(snapshot.stream_id, uid, 0, partition, len(refs), "none")


def _require_stream(files: Files, lineage: Lineage, snapshot: GraphSnapshot) -> None:
    wanted = lineage.takeovers[0].stream_id if lineage.takeovers else snapshot.stream_id
    if snapshot.stream_id != wanted:
        file = location(files, graph_file(snapshot.record_id))
        found = f"is the graph of stream {snapshot.stream_id}"
        raise misplaced(file, found, f"that of {wanted}")


def drop_graphs(lease: WriterLease) -> None:
    """Delete the graphs that this driver wrote, and their RDDs. Raises StorageRefusedError."""
    left = []
    for graph in all_graphs(lease.files):
        if graph.epoch == lease.epoch:
            lease.files.delete(graph_file(graph))
        else:
            left.append(graph)
    for name in rdds_of_no_graph(lease.files.list(RDDS_PREFIX), left, lease.epoch):
        lease.files.delete(name)


def rdds_of_no_graph(names: Iterable[str], graphs: Iterable[RecordId], epoch: int) -> Iterator[str]:
    """Yield the files of RDDs whose graph is not among *graphs*."""
    epochs = {graph.epoch for graph in graphs}
    for name in names:
        found = state_file_record(name.removeprefix(RDDS_PREFIX))
        if found is None or not name.startswith(RDDS_PREFIX):
            continue
        if found.epoch <= epoch and found.epoch not in epochs:
            yield name


def graph_file(record_id: RecordId) -> str:
    """Return the file name of a snapshot."""
    return f"{GRAPH_PREFIX}{record_id.stem}{GRAPH_SUFFIX}"


def _blocks(snapshot: GraphSnapshot) -> Iterator[tuple[bytes, int]]:
    yield encode(snapshot.description), 1
    for start in range(0, len(snapshot.payload), _PAYLOAD_BLOCK_BYTES):
        yield snapshot.payload[start : start + _PAYLOAD_BLOCK_BYTES], 0

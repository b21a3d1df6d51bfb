"""Each file of a stream by itself: read to its end, and required to be what its name says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage
from checkpoint.log.batch_records import (
    BEGIN_PREFIX,
    BEGIN_SUFFIX,
    COMMIT_PREFIX,
    COMMIT_SUFFIX,
    BatchLog,
    CommitLog,
)
from checkpoint.log.fencing import (
    CLAIM,
    RELEASED,
    epoch_of_file,
    read_claim,
    read_release,
    read_takeover,
)
from checkpoint.log.graph_record import GRAPH_PREFIX, GRAPH_SUFFIX, RDDS_PREFIX, read_graph
from checkpoint.log.inputs import INPUTS_PREFIX, INPUTS_SUFFIX, RECEIVED_PREFIX, read_input_snapshot
from checkpoint.log.record_files import RecordId
from checkpoint.log.state_files import read_file_id, state_file_record
from checkpoint.state_store.store_files import StoredKind, parse_file_name, read_header
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import FileKind, read_frames
from checkpoint.storage.json_records import convert

_STORED = {FileKind.CHANGES: StoredKind.CHANGES, FileKind.SNAPSHOT: StoredKind.SNAPSHOT}


def reader_of(files: Files, name: str) -> Callable[[], str] | None:
    """Return what reads a file to its end, and returns the id of the stream that it is of.

    None for a file that no stream writes.
    """
    for prefix, suffix, read in (
        (COMMIT_PREFIX, COMMIT_SUFFIX, CommitLog(files).read_record),
        (BEGIN_PREFIX, BEGIN_SUFFIX, BatchLog(files).read_record),
        (GRAPH_PREFIX, GRAPH_SUFFIX, partial(read_graph, files)),
        (INPUTS_PREFIX, INPUTS_SUFFIX, partial(read_input_snapshot, files)),
    ):
        record_id = RecordId.parse(name, prefix, suffix)
        if record_id is not None:
            return _stream_of(partial(read, record_id))
    epoch = epoch_of_file(name)
    if epoch is not None:
        ending = name.rpartition(".")[2]
        read_epoch = {CLAIM: read_claim, RELEASED: read_release}.get(ending, read_takeover)
        return _stream_of(partial(read_epoch, files, epoch))
    kind = _kind(name)
    return None if kind is None else partial(_read_frames, files, name, kind)


def _stream_of(read: Callable[[], object]) -> Callable[[], str]:
    return lambda: str(getattr(read(), "stream_id", ""))


def _kind(name: str) -> FileKind | None:
    name = name.removeprefix(RDDS_PREFIX)
    stored = parse_file_name(name)
    if stored is not None:
        return FileKind.CHANGES if stored[2] is StoredKind.CHANGES else FileKind.SNAPSHOT
    if state_file_record(name) is not None:
        return FileKind.STATE
    return FileKind.RECEIVED if name.startswith(RECEIVED_PREFIX) else None


def _read_frames(files: Files, name: str, kind: FileKind) -> str:
    file = location(files, name)
    frames = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), kind, file)
    for _ in frames.blocks:
        pass
    stream_id, written = _written_as(frames.header, kind, name, file)
    if written != name:
        raise CorruptCheckpointError(
            file, f"was written as {written}", name, RESTORE, Damage.MISPLACED
        )
    return stream_id


class _BlockHeader(msgspec.Struct, frozen=True):
    """What the file of a received block says of itself."""

    stream_id: str
    input_uid: str
    epoch: int
    sequence: int
    attempt: str


def _written_as(
    header: Mapping[str, object], kind: FileKind, name: str, file: str
) -> tuple[str, str]:
    """Return of which stream a file is, and under which name it was written: its header says."""
    if kind is FileKind.STATE:
        prefix = RDDS_PREFIX if name.startswith(RDDS_PREFIX) else ""
        state = read_file_id(header, file)
        return state.stream_id, f"{prefix}{state.name}"
    if kind in _STORED:
        stored = read_header(header, _STORED[kind], file)
        return stored.store.stream_id, stored.name
    found = convert(header, _BlockHeader, file, "the header of a received block")
    block = f"{found.sequence:016d}-e{found.epoch}-{found.attempt}.block"
    return found.stream_id, f"{RECEIVED_PREFIX}{uid_part(found.input_uid)}/{block}"

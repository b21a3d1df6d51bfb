"""Each file of a stream by itself: read to its end, and required to be what its name says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from checkpoint.batch_log import BEGIN_PREFIX, BEGIN_SUFFIX, BatchLog
from checkpoint.block_log import RECEIVED_PREFIX
from checkpoint.commit_log import COMMIT_PREFIX, COMMIT_SUFFIX, CommitLog
from checkpoint.errors import CorruptCheckpointError
from checkpoint.fencing import CLAIM, END, epoch_of_file, read_claim, read_end
from checkpoint.file_log import FILES_PREFIX
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import RESTORE, FileKind, read_frames
from checkpoint.graph_snapshot import GRAPH_PREFIX, GRAPH_SUFFIX, RDDS_PREFIX, read_graph
from checkpoint.input_log import INPUTS_PREFIX
from checkpoint.json_fields import int_field, text_field
from checkpoint.lineage import read_base
from checkpoint.names import uid_part
from checkpoint.record_files import RecordId
from checkpoint.state_files import name_in as state_name_in
from checkpoint.state_files import state_file_record
from checkpoint.state_store.reference import StoredKind, parse_file_name
from checkpoint.state_store.stored_file import name_in as stored_name_in

INPUT_DIRECTORY = re.compile(rf"(?:{FILES_PREFIX}|{RECEIVED_PREFIX}|{INPUTS_PREFIX})[^/]+")
"""Where the log of one input is."""

_STORED = {FileKind.CHANGES: StoredKind.CHANGES, FileKind.SNAPSHOT: StoredKind.SNAPSHOT}


def reader_of(files: Files, name: str) -> Callable[[], str] | None:
    """Return what reads a file to its end, and returns the id of the stream that it is of.

    None for a file that no stream writes.
    """
    for prefix, suffix, read in (
        (COMMIT_PREFIX, COMMIT_SUFFIX, CommitLog(files).read_record),
        (BEGIN_PREFIX, BEGIN_SUFFIX, BatchLog(files).read_record),
        (GRAPH_PREFIX, GRAPH_SUFFIX, partial(read_graph, files)),
    ):
        record_id = RecordId.parse(name, prefix, suffix)
        if record_id is not None:
            return _stream_of(partial(read, record_id))
    epoch = epoch_of_file(name)
    if epoch is not None:
        ending = name.rpartition(".")[2]
        read_epoch = {CLAIM: read_claim, END: read_end}.get(ending, read_base)
        return _stream_of(partial(read_epoch, files, epoch))
    kind = _kind(name)
    return None if kind is None else partial(_read_frames, files, name, kind)


def input_ids(files: Files, name: str) -> tuple[str, str]:
    """Return stream and input that a file of the log of an input says it is of."""
    chunks = files.read_chunks(name, READ_CHUNK_BYTES)
    header = read_frames(chunks, _input_kind(name), location(files, name)).header
    return str(header.get("stream_id")), str(header.get("input_uid"))


def _stream_of(read: Callable[[], object]) -> Callable[[], str]:
    return lambda: str(getattr(read(), "stream_id", ""))


def _kind(name: str) -> FileKind | None:
    name = name.removeprefix(RDDS_PREFIX)
    stored = parse_file_name(name)
    if stored is not None:
        return FileKind.CHANGES if stored[2] is StoredKind.CHANGES else FileKind.SNAPSHOT
    if state_file_record(name) is not None:
        return FileKind.STATE
    return _input_kind(name) if INPUT_DIRECTORY.match(name) else None


def _input_kind(name: str) -> FileKind:
    if name.startswith(FILES_PREFIX):
        return FileKind.FILES
    if name.startswith(INPUTS_PREFIX):
        return FileKind.INPUT
    return FileKind.RECEIVED if name.endswith(".block") else FileKind.ALLOCATION


def _read_frames(files: Files, name: str, kind: FileKind) -> str:
    file = location(files, name)
    frames = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), kind, file)
    for _ in frames.blocks:
        pass
    try:
        written, stream_id = _name_in(frames.header, kind, name, file), frames.header["stream_id"]
    except (KeyError, ValueError) as error:
        raise CorruptCheckpointError(file, f"says: {error}", "what it is", RESTORE) from error
    if written != name:
        raise CorruptCheckpointError(file, f"was written as {written}", name, RESTORE)
    return str(stream_id)


def _name_in(header: Mapping[str, object], kind: FileKind, name: str, file: str) -> str:
    """Return the name under which a file was written, as its header says."""
    if kind is FileKind.STATE:
        prefix = RDDS_PREFIX if name.startswith(RDDS_PREFIX) else ""
        return f"{prefix}{state_name_in(header)}"
    if kind in _STORED:
        return stored_name_in(header, _STORED[kind], file)
    prefix, _, rest = name.split("/", 2)
    directory = f"{prefix}/{uid_part(text_field(header, 'input_uid'))}"
    if kind is FileKind.INPUT:  # which number it is the value says
        return f"{directory}/{rest}"
    epoch = int_field(header, "epoch")
    if kind is FileKind.RECEIVED:
        sequence, attempt = int_field(header, "sequence"), text_field(header, "attempt")
        return f"{directory}/blocks/{sequence:016d}-e{epoch}-{attempt}.block"
    is_base = "upto_ms" in header
    time_ms = int_field(header, "upto_ms" if is_base else "batch_time_ms")
    what = "bases/{}.base" if is_base else "batches/{}.batch"
    return f"{directory}/{what.format(RecordId(time_ms, epoch).stem)}"

"""Files of static data: values that batches read in addition to their input.

A file is created once, below ``rdds/static/``, and named by the begin records of the batches that
read it (:data:`STATIC`), all of its epoch. It is kept as long as one of them. The first block is
the codec, as JSON; each other block is one encoded value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

import msgspec

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage
from checkpoint.log.batch_records import BeginRecord, begin_file
from checkpoint.log.graph_record import RDDS_PREFIX
from checkpoint.log.record_files import RecordId
from checkpoint.log.state_files import (
    StateFileId,
    StatePartition,
    new_attempt,
    read_state_file,
    state_file_record,
    write_state_file,
)
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import ValueCodec
from checkpoint.storage.files import Files, PrefixedFiles, location
from checkpoint.storage.framing import FileRef
from checkpoint.storage.json_records import convert, decode, encode

STATIC = "static"
"""Begin record fact: by uid, the static data of the batch; ``file`` refers to it, or is null."""

_CODEC, _FILE = "values", "file"
STATIC_PREFIX = f"{RDDS_PREFIX}static/"


def write_static(
    files: Files,
    stream_id: str,
    uid: str,
    time_ms: int,
    epoch: int,
    codec: ValueCodec,
    values: Iterable[object],
) -> dict[str, object]:
    """Write values, and return the reference for a begin record, as JSON.

    Raises TypeError for a value that *codec* cannot encode, or CheckpointError.
    """
    shapes = Shapes()
    encoder = codec.encoder(shapes)
    blocks = [(encoder(value), 1) for value in values]
    head = encode({_CODEC: codec.name, **shapes.to_codec()})
    file_id = StateFileId(
        **asdict(_partition(stream_id, uid, time_ms)), epoch=epoch, attempt=new_attempt()
    )
    ref = write_state_file(_below(files), file_id, [(head, 0), *blocks])
    found: dict[str, object] = msgspec.to_builtins(ref)
    return found


def read_static(files: Files, begun: BeginRecord, uid: str, codec: ValueCodec) -> Iterator[object]:
    """Yield the values that a batch reads of *uid*. Raises CorruptCheckpointError."""
    wanted = {
        partition.operator_uid: (ref, partition) for ref, partition in static_files(files, begun)
    }
    ref, partition = wanted[uid]
    blocks = read_state_file(_below(files), ref, partition)
    file = location(_below(files), ref.name)
    names = decode(next(blocks, b""), dict[str, str], file, "the codec of static data")
    if names.get(_CODEC) != codec.name:
        found, expected = f"was written as {names.get(_CODEC)!r}", repr(codec.name)
        raise CorruptCheckpointError(file, found, expected, RESTORE, Damage.DAMAGED)
    yield from map(codec.decoder(Shapes(names)), blocks)


def static_files(files: Files, begun: BeginRecord) -> Iterator[tuple[FileRef, StatePartition]]:
    """Yield the files of the static data of a batch. Raises CorruptCheckpointError."""
    where = location(files, begin_file(begun.record_id))
    found = convert(begun.facts.get(STATIC, {}), dict[str, dict[str, object]], where, STATIC)
    for uid, fact in found.items():
        if fact.get(_FILE) is not None:
            ref = convert(fact[_FILE], FileRef, where, "static data")
            time_ms = convert(fact.get("read_ms"), int, where, "static data")
            yield ref, _partition(begun.stream_id, uid, time_ms)


def verify_static(files: Files, begun: BeginRecord) -> None:
    """Read the static data of a batch to its end. Raises CorruptCheckpointError."""
    for ref, partition in static_files(files, begun):
        for _ in read_state_file(_below(files), ref, partition):
            pass


def static_of_no_batch(
    names: Iterable[str], begins: Iterable[RecordId], epoch: int
) -> Iterator[str]:
    """Yield the files of epochs before *epoch* without one of the begin records *begins*."""
    epochs = {begun.epoch for begun in begins}
    for name in names:
        found = state_file_record(name.removeprefix(STATIC_PREFIX))
        if found is None or not name.startswith(STATIC_PREFIX):
            continue
        if found.epoch < epoch and found.epoch not in epochs:
            yield name


def delete_static(files: Files, name: str) -> None:
    """Delete a file of static data. Raises StorageRefusedError."""
    _below(files).delete(name)


def _partition(stream_id: str, uid: str, time_ms: int) -> StatePartition:
    return StatePartition(stream_id, uid, time_ms, 0, 1, "none")


def _below(files: Files) -> Files:
    return PrefixedFiles(files, STATIC_PREFIX.rstrip("/"))

"""State files: one partition of a state snapshot, as one attempt of a task wrote it.

Attempts that were cancelled, lost a race or belong to a dead driver keep writing for seconds. So
every attempt writes under a unique name, and a file counts only if a commit record names it. The
payload of a frame is a block of pairs, an Arrow block, or a pickle.

A block of pairs:

======== ===========================================================================================
bytes    content
======== ===========================================================================================
1        side: 0 for values of a batch, 1 for states
1        form of the value column
4, 4     number of rows, and length of the key column; unsigned, little endian
...      the key column, a pickled list
...      the value column
4, 4     only if the highest bit of the side is set: number of the partition before the shuffle, and
         number of the block in it
======== ===========================================================================================

The value column of form ``COMMON`` is a pickled list; of ``SEPARATE``, a pickled list with one
pickle for each row; of ``FIELDS``, where values are tuples, a pickled tuple of columns, each a list
or again such a tuple. Nothing is unpickled here.

An Arrow block is a stream of Arrow's IPC format with one record batch. The metadata of its schema:

================= ==================================================================================
``dstreams.side`` ``STATE`` if each row is a key and its state; anything else is not state
``dstreams.keys`` names of the columns of the key, a JSON list; the others are columns of the state
================= ==================================================================================

pyarrow is needed to read one, not to copy, check or move it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets  # noqa: TID251
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from checkpoint.log.record_files import RecordId, misplaced, missing, require_header
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import (
    FileKind,
    FileRef,
    Frames,
    FrameTotals,
    read_frames,
    write_frames,
)
from checkpoint.storage.json_records import convert

STATE_PREFIX = "state/"

_STATE_FILE = re.compile(
    re.escape(STATE_PREFIX) + r"[^/]+/(\d{16,})-p\d{5,}-e(\d+)-[A-Za-z0-9_-]{1,64}\.state"
)
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER: Final = struct.Struct("<BBII")
_ORIGIN: Final = struct.Struct("<II")
_HAS_ORIGIN = 0x80
_SIDE, _KEYS = b"dstreams.side", b"dstreams.keys"
_STATE = "STATE"
_CONTINUATION = b"\xff\xff\xff\xff"
"""The first bytes of an Arrow stream; no pickle and no block of pairs begins so."""


def new_attempt() -> str:
    """Return a unique name for one attempt of a task: 64 random bits."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class StatePartition:
    """The partition in a state file, as a reader knows it before opening the file.

    Args:
        stream_id: id of the stream, the same over all its restarts.
        operator_uid: uid of the stateful operator.
        batch_time_ms: the batch after which the state was taken.
        partition: number of the partition, from 0.
        partition_count: partitions of that state.
        partitioner: name of the function that chose the partition of each key.
    """

    stream_id: str
    operator_uid: str
    batch_time_ms: int
    partition: int
    partition_count: int
    partitioner: str

    def __post_init__(self) -> None:
        for field in ("stream_id", "operator_uid", "partitioner"):
            if not getattr(self, field):
                raise ValueError(f"{field} of a state file is empty; give it a name")
        if self.batch_time_ms < 0:
            raise ValueError(f"batch time of {self.batch_time_ms} ms must not be negative")
        if not 0 <= self.partition < self.partition_count:
            raise ValueError(
                f"partition {self.partition} of {self.operator_uid!r} must be 0 to "
                f"{self.partition_count - 1}, as it has {self.partition_count}"
            )


@dataclass(frozen=True)
class StateFileId(StatePartition):
    """The identity of a state file: its partition, the epoch of the driver, and the attempt."""

    epoch: int
    attempt: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epoch < 0:
            raise ValueError(f"epoch {self.epoch} of a state file must not be negative")
        if not _ATTEMPT.fullmatch(self.attempt):
            raise ValueError(
                f"attempt {self.attempt!r} must be 1 to 64 of A-Z a-z 0-9 _ -; use new_attempt()"
            )

    @property
    def name(self) -> str:
        """Name of the file, ``state/<operator>/<time>-p<partition>-e<epoch>-<attempt>.state``.

        Each operator has one directory; one per batch would need a sync and a deletion.
        """
        return (
            f"{STATE_PREFIX}{uid_part(self.operator_uid)}/{self.batch_time_ms:016d}"
            f"-p{self.partition:05d}-e{self.epoch}-{self.attempt}.state"
        )


def state_files_of(
    files: Files, operator_uid: str, batch_time_ms: int, epoch: int | None = None
) -> list[str]:
    """Return the names of all files of an operator's state after a batch."""
    names = files.list(f"{STATE_PREFIX}{uid_part(operator_uid)}/{batch_time_ms:016d}-")
    if epoch is None:
        return names
    wanted = RecordId(batch_time_ms, epoch)
    return [name for name in names if state_file_record(name) == wanted]


def state_file_record(name: str) -> RecordId | None:
    """Return the commit record that could name the file *name*; None if it is not a state file."""
    match = _STATE_FILE.fullmatch(name)
    return RecordId(int(match[1]), int(match[2])) if match else None


def write_state_file(
    files: Files, file_id: StateFileId, blocks: Iterable[tuple[bytes | memoryview, int]]
) -> FileRef:
    """Write one partition of a state durably, and return its reference. Raises CheckpointError."""
    totals = FrameTotals()
    frames = write_frames(FileKind.STATE, dataclasses.asdict(file_id), blocks, totals)
    files.create(file_id.name, frames)
    return FileRef.of(file_id.name, totals)


def read_state_file(files: Files, ref: FileRef, expected: StatePartition) -> Iterator[bytes]:
    """Open a state file and return an iterator of its payloads.

    The header is checked at once, each payload before it is returned, size and digest at the end:
    read to the end before making anything durable that depends on the state. Raises
    CorruptCheckpointError or StorageRefusedError.
    """
    file = location(files, ref.name)
    try:
        chunks = files.read_chunks(ref.name, READ_CHUNK_BYTES)
        frames = read_frames(chunks, FileKind.STATE, file)
    except FileNotFoundError as error:
        wanted = f"a state file of {ref.size_bytes} bytes and {ref.records} records"
        raise missing(file, wanted) from error
    _require_identity(frames.header, ref, expected, file)
    return _payloads(frames, ref, file)


def _payloads(frames: Frames, ref: FileRef, file: str) -> Iterator[bytes]:
    for payload, _ in frames.blocks:
        yield payload
    ref.require(frames.totals, file)


def _require_identity(
    header: Mapping[str, object], ref: FileRef, expected: StatePartition, file: str
) -> None:
    """Raise unless the header of the file has the expected identity."""
    names = [field.name for field in dataclasses.fields(StatePartition)]
    require_header(header, {name: getattr(expected, name) for name in names}, file)
    name = read_file_id(header, file).name
    if name != ref.name:
        raise misplaced(file, f"was written as {name}", ref.name)


def read_file_id(header: Mapping[str, object], file: str) -> StateFileId:
    """Return the identity in the header of a state file. Raises CorruptCheckpointError."""
    return convert(header, StateFileId, file, "the header of a state file")


class PairForm(IntEnum):
    """The form of a value column."""

    COMMON = 0
    SEPARATE = 1
    FIELDS = 2


class PairBlock:
    """A view of a block of pairs.

    *origin* is the partition before the shuffle and the number of the block there, (-1, -1) if the
    block does not have it.
    """

    __slots__ = ("_data", "_keys_end", "form", "origin", "rows", "side_number")

    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < _HEADER.size:
            raise ValueError(f"a block has {_HEADER.size} bytes or more, not {len(data)}")
        side, form, self.rows, key_bytes = _HEADER.unpack_from(data)
        self._data = memoryview(data)
        self.origin: tuple[int, int] = (-1, -1)
        if side & _HAS_ORIGIN:
            side -= _HAS_ORIGIN
            self.origin = _ORIGIN.unpack_from(data, len(data) - _ORIGIN.size)
        self.side_number: int = side
        self.form = PairForm(form)
        self._keys_end = _HEADER.size + key_bytes
        if side > 1 or self._keys_end > len(data):
            raise ValueError(f"a block cannot be of side {side} with keys of {key_bytes} bytes")

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self._data)

    @property
    def data(self) -> bytes:
        """The bytes of the block."""
        return bytes(self._data)

    @property
    def key_column(self) -> memoryview:
        """The pickled keys."""
        return self._data[_HEADER.size : self._keys_end]

    @property
    def value_column(self) -> memoryview:
        """The pickled values, and the origin if there is one."""
        return self._data[self._keys_end :]


def pair_header(side: int, form: PairForm, rows: int, key_bytes: int) -> bytes:
    """Return the header of a block."""
    return _HEADER.pack(side, form, rows, key_bytes)


def with_origin(block: bytes, partition: int, number: int) -> bytes:
    """Return *block* with its origin."""
    side = bytes((block[0] | _HAS_ORIGIN,))
    return b"".join((side, memoryview(block)[1:], _ORIGIN.pack(partition, number)))


def rows_of_fields(column: Any) -> list[Any]:
    """Return the rows of a value column of form ``FIELDS``."""
    if isinstance(column, list):
        return column
    return list(zip(*map(rows_of_fields, column), strict=True))


def arrow_metadata(side: str, keys: Sequence[str] = ()) -> dict[bytes, bytes]:
    """Return the schema metadata of an Arrow block; *keys* are the key columns of a state."""
    named = {_KEYS: json.dumps(list(keys)).encode()} if keys else {}
    return {_SIDE: side.encode(), **named}


def arrow_side(metadata: dict[bytes, bytes] | None) -> str | None:
    """Return the side of an Arrow block, None if its writer did not set it."""
    side = (metadata or {}).get(_SIDE)
    return None if side is None else side.decode()


def is_arrow_block(payload: bytes) -> bool:
    """Return whether a payload is an Arrow block."""
    return payload.startswith(_CONTINUATION)


def arrow_state(payload: bytes) -> Any | None:
    """Return the ``pyarrow.RecordBatch`` of a payload, None if its rows are not state.

    Raises ValueError if pyarrow is not installed, or the payload is not an Arrow block.
    """
    with _ipc().open_stream(payload) as reader:
        block = reader.read_next_batch()
    return block if arrow_side(block.schema.metadata) == _STATE else None


def _ipc() -> Any:
    try:
        from pyarrow import ipc  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ValueError(
            f"the state is in Arrow blocks, and pyarrow cannot be imported here ({error}); "
            "pip install 'dstreams[arrow]'"
        ) from error
    return ipc


def write_arrow(payloads: Iterable[bytes], path: str) -> int:
    """Write the blocks of a state to a new Arrow file, and return the number of keys.

    Raises OSError, or ValueError if pyarrow is not installed or the state is in pairs or empty.
    """
    rows = 0
    with ExitStack() as opened:
        writer = None
        for payload in payloads:
            if not is_arrow_block(payload):
                raise ValueError("the state is in pairs, not in Arrow blocks")
            block = arrow_state(payload)
            if block is None:
                continue
            if writer is None:
                file = opened.enter_context(open(path, "xb"))
                writer = opened.enter_context(_ipc().new_file(file, block.schema))
            writer.write_batch(block)
            rows += block.num_rows
    if not rows:
        raise ValueError("the state has no key, so its columns are unknown")
    return rows


def arrow_pairs(payload: bytes) -> Iterator[tuple[Any, Any]]:
    """Yield keys, each a value or a tuple of several, and states, each a dict of columns."""
    block = arrow_state(payload)
    if block is None:
        return
    names = json.loads(block.schema.metadata.get(_KEYS, b"[]"))
    keys = list(zip(*(block.column(name).to_pylist() for name in names), strict=True))
    states = block.drop_columns(names).to_pylist()
    for key, state in zip(keys, states, strict=True):
        yield (key[0] if len(names) == 1 else key), state


def state_pairs(payload: bytes, loads: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and states of a payload of a snapshot; *loads* unpickles a column.

    Raises ValueError if the payload is neither a block of pairs nor an Arrow block.
    """
    if is_arrow_block(payload):
        yield from arrow_pairs(payload)
        return
    block = PairBlock(payload)
    values = loads(block.value_column)
    if block.form is PairForm.SEPARATE:
        values = list(map(loads, values))
    elif block.form is PairForm.FIELDS:
        values = rows_of_fields(values)
    yield from zip(loads(block.key_column), values, strict=True)

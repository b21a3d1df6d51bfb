"""Block formats: the layout of a block of pairs and of an Arrow block in a state file.

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

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, Final

_HEADER: Final = struct.Struct("<BBII")
_ORIGIN: Final = struct.Struct("<II")
_HAS_ORIGIN = 0x80
_SIDE, _KEYS = b"dstreams.side", b"dstreams.keys"
_STATE = "STATE"
_CONTINUATION = b"\xff\xff\xff\xff"
"""The first bytes of an Arrow stream; no pickle and no block of pairs begins so."""


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
    """Yield keys, each a value or a tuple of several, and states, each a dict of columns.

    Raises ValueError.
    """
    block = arrow_state(payload)
    if block is None:
        return
    names = json.loads(block.schema.metadata.get(_KEYS, b"[]"))
    keys = list(zip(*(block.column(name).to_pylist() for name in names), strict=True))
    states = block.drop_columns(names).to_pylist()
    for key, state in zip(keys, states, strict=True):
        yield (key[0] if len(names) == 1 else key), state

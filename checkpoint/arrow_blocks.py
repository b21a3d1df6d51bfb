"""Arrow blocks: how a state in columns lies in a state file, for who writes it and who shows it.

Each payload of such a file is a stream of Arrow's IPC format with one record batch. The metadata of
its schema say what it is:

================= ==================================================================================
``dstreams.side`` ``STATE`` where each row is a key and its state; anything else is no state
``dstreams.keys`` names of the columns of the key, a JSON list; the others are those of the state
================= ==================================================================================

pyarrow is needed to look into one, not to copy, check or move it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

_SIDE, _KEYS = b"dstreams.side", b"dstreams.keys"
_STATE = "STATE"
_CONTINUATION = b"\xff\xff\xff\xff"
"""How a stream of Arrow begins; no pickle and no block of pairs does."""


def arrow_metadata(side: str, keys: Sequence[str] = ()) -> dict[bytes, bytes]:
    """Return the metadata of the schema of a block, a state's with the columns of its key."""
    named = {_KEYS: json.dumps(list(keys)).encode()} if keys else {}
    return {_SIDE: side.encode(), **named}


def arrow_side(metadata: dict[bytes, bytes] | None) -> str | None:
    """Return what the rows of a block are, as its writer said; None: it did not."""
    side = (metadata or {}).get(_SIDE)
    return None if side is None else side.decode()


def is_arrow_block(payload: bytes) -> bool:
    """Return whether a payload is a stream of Arrow."""
    return payload.startswith(_CONTINUATION)


def arrow_state(payload: bytes) -> Any | None:
    """Return the ``pyarrow.RecordBatch`` of a payload; None: its rows are no state.

    Raises ValueError: pyarrow is not installed, or there is no such block.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - where there is such a state
    except ImportError as error:
        raise ValueError(
            f"the state is in Arrow blocks, and pyarrow cannot be imported here ({error}); "
            "pip install 'dstreams[arrow]'"
        ) from error
    with pa.ipc.open_stream(payload) as reader:
        block = reader.read_next_batch()
    return block if arrow_side(block.schema.metadata) == _STATE else None


def arrow_pairs(payload: bytes) -> Iterator[tuple[Any, Any]]:
    """Yield keys and states: a key is a value, or a tuple of several; a state a dict of columns.

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

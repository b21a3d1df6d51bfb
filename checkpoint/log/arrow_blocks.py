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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
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
    with _ipc().open_stream(payload) as reader:
        block = reader.read_next_batch()
    return block if arrow_side(block.schema.metadata) == _STATE else None


def _ipc() -> Any:
    try:
        from pyarrow import ipc  # noqa: PLC0415 - where there is such a state
    except ImportError as error:
        raise ValueError(
            f"the state is in Arrow blocks, and pyarrow cannot be imported here ({error}); "
            "pip install 'dstreams[arrow]'"
        ) from error
    return ipc


def write_arrow(payloads: Iterable[bytes], path: str) -> int:
    """Write the blocks of a state into a new file of Arrow's, and return how many keys it has.

    Raises ValueError: pyarrow is not installed, the state is in pairs, or it is empty; and OSError.
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
        raise ValueError("the state has no key, so nothing says its columns")
    return rows


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

"""Received records on their way to a batch: pickled once, where they were received.

The driver keeps and counts blocks and never looks inside; a worker unpickles them when the batch
runs. So what a batch reads is fixed, whatever the receiver does with its objects afterwards.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from pyspark import cloudpickle

from checkpoint import MAX_BLOCK_BYTES, BlockRef
from dstreams.errors import InvalidStreamError, StreamLifecycleError

TARGET_BYTES = 4 << 20
"""Bytes that a block of more than one record has at most."""

MAX_PAYLOAD_BYTES = MAX_BLOCK_BYTES
"""Bytes that a block of one record has at most: what a file of the write-ahead log can hold."""


@dataclass(frozen=True)
class ReceivedBlock:
    """Records that were received.

    Args:
        payload: the records, as a pickled list.
        records: how many.
        ref: the file that holds them too, None without a write-ahead log.
    """

    payload: bytes
    records: int
    ref: BlockRef | None = None


class BlocksRefusedError(StreamLifecycleError):
    """Blocks are no longer taken, and will not be: the stream has stopped or lost its driver."""


class BlockStore(Protocol):
    """Who keeps blocks until a batch takes them."""

    def put(self, block: ReceivedBlock) -> None:
        """Return when *block* counts as received; waits while there is no room.

        Raises:
            BlocksRefusedError: no block will be taken any more.
            Exception: this one was not stored; another try may succeed.
        """
        ...


def encode_records(records: Sequence[Any]) -> list[ReceivedBlock]:
    """Pickle records into as few blocks as their size allows, in their order.

    Raises:
        InvalidStreamError: a record cannot be pickled, or is too large; no block is returned.
    """
    return list(_encode(records, _refuse))


def encode_what_can_be(
    records: Sequence[Any], refused: Callable[[InvalidStreamError], None]
) -> list[ReceivedBlock]:
    """Pickle records into blocks; each record that cannot be is left out and handed to *refused*.

    Args:
        records: the records.
        refused: called with the error for each record that is left out.
    """
    return list(_encode(records, refused))


def decode_records(payloads: Iterable[bytes]) -> Iterator[Any]:
    """Unpickle the blocks of a partition; all input is read, so the worker is used again."""
    return chain.from_iterable(map(pickle.loads, list(payloads)))


def _encode(
    records: Sequence[Any], refused: Callable[[InvalidStreamError], None]
) -> Iterator[ReceivedBlock]:
    if not records:
        return
    failure: Exception | None = None
    payload = b""
    try:
        # As PySpark pickles data: classes of the driver's __main__ travel with their records.
        payload = cloudpickle.dumps(list(records), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        failure = error
    if failure is None and (len(payload) <= TARGET_BYTES or len(records) == 1):
        if len(payload) <= MAX_PAYLOAD_BYTES:
            yield ReceivedBlock(payload, len(records))
        else:
            refused(
                InvalidStreamError(
                    f"a received record of type {type(records[0]).__name__} takes {len(payload)} "
                    f"bytes when pickled, at most {MAX_PAYLOAD_BYTES} are allowed; store less at "
                    "once"
                )
            )
    elif len(records) == 1:
        unpicklable = InvalidStreamError(
            f"a received record of type {type(records[0]).__name__} cannot be pickled ({failure}); "
            "store plain data"
        )
        unpicklable.__cause__ = failure
        refused(unpicklable)
    else:
        middle = len(records) // 2
        yield from _encode(records[:middle], refused)
        yield from _encode(records[middle:], refused)


def _refuse(error: InvalidStreamError) -> None:
    raise error

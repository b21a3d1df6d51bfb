"""Received records on their way to a batch: pickled when they are received.

The driver keeps and counts blocks and never looks inside; a worker unpickles them when the batch
runs. So what a batch reads is fixed, whatever the receiver does with its objects afterwards.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark import cloudpickle

from checkpoint import MAX_BLOCK_BYTES, FileRef
from dstreams.errors import InvalidStreamError

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
    ref: FileRef | None = None


def _refuse(error: InvalidStreamError) -> None:
    raise error


def encode_records(
    records: Sequence[Any], refused: Callable[[InvalidStreamError], None] = _refuse
) -> list[ReceivedBlock]:
    """Pickle records into as few blocks as their size allows, in their order.

    Args:
        records: the records.
        refused: called with the error for each record that cannot be pickled, or is too large; the
            other records are in the blocks. Not given, it raises the error.

    Raises:
        InvalidStreamError: a record is refused, and *refused* is not given.
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

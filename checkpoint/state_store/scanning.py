"""Pairs of Python out of streams of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from checkpoint.state_store.classes import Classes
from checkpoint.state_store.decoding import decode_key, decode_keys
from checkpoint.state_store.keys import MAX_INLINE_BYTES
from checkpoint.state_store.life import Life
from checkpoint.state_store.ranges import KeyRange
from checkpoint.state_store.records import PLAIN_END, extras_of, is_timed
from checkpoint.state_store.values import Decoder, ManyDecoder

FIRST_CHUNK, LAST_CHUNK = 8, 512

_PLAIN = {PLAIN_END}


def key_of(raw: bytes, record: bytes, decode: Decoder, classes: Classes) -> Any:
    """Return the key of a record, as it was put or as the plainest that equals it."""
    if len(raw) <= MAX_INLINE_BYTES and (record[-1] == PLAIN_END or is_timed(record)):
        return decode_key(raw, classes)
    extras = extras_of(record)
    if extras.original is not None:
        return decode(extras.original)
    return decode_key(raw if extras.whole is None else extras.whole, classes)


def keys_of(
    raws: list[bytes], records: list[bytes], decode: Decoder, classes: Classes
) -> list[Any]:
    """Return :func:`key_of` of each, in less time than one by one."""
    if len(max(raws, key=len, default=b"")) <= MAX_INLINE_BYTES and all(map(is_timed, records)):
        return decode_keys(raws, classes)
    return [key_of(raw, record, decode, classes) for raw, record in zip(raws, records, strict=True)]


def decoded(
    stream: Iterator[tuple[bytes, bytes | None]],
    wanted: KeyRange,
    decode: Decoder,
    decode_many: ManyDecoder,
    classes: Classes,
    life: Life,
) -> Iterator[tuple[Any, Any]]:
    """Iterate over (key, value) of the records of a stream, passing over those removed.

    Many are decoded at once, but not many more than are asked for.
    """
    life.require()
    is_exact = wanted.is_exact
    wanted_count = FIRST_CHUNK
    while chunk := list(islice(stream, wanted_count)):
        wanted_count = min(2 * wanted_count, LAST_CHUNK)
        pairs = _many(chunk, wanted, decode_many, classes)
        if pairs is None:
            pairs = [
                (key_of(raw, record, decode, classes), decode(record))
                for raw, record in chunk
                if record is not None and (is_exact or wanted.holds(extras_of(record).whole or raw))
            ]
        for pair in pairs:
            yield pair
            if not life.is_open:
                life.require()


def _many(
    chunk: list[tuple[bytes, bytes | None]],
    wanted: KeyRange,
    decode_many: ManyDecoder,
    classes: Classes,
) -> Iterable[tuple[Any, Any]] | None:
    """Decode pairs of which all are there, short and plain, and none is too many; else None."""
    raws, records = map(list, zip(*chunk, strict=True))
    try:
        ends = {record[-1] for record in records}
    except TypeError:  # None: one was removed
        return None
    if ends != _PLAIN or len(max(raws, key=len)) > MAX_INLINE_BYTES or not wanted.is_exact:
        return None
    return zip(decode_keys(raws, classes), decode_many(records), strict=True)

"""Pairs of Python out of streams of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checkpoint.state_store.decoding import decode_key
from checkpoint.state_store.keys import MAX_INLINE_BYTES
from checkpoint.state_store.life import Life
from checkpoint.state_store.ranges import KeyRange
from checkpoint.state_store.records import PLAIN_END, extras_of
from checkpoint.state_store.values import Decoder


def key_of(raw: bytes, record: bytes, decode: Decoder) -> Any:
    """Return the key of a record, as it was put or as the plainest that equals it."""
    if record[-1] == PLAIN_END and len(raw) <= MAX_INLINE_BYTES:
        return decode_key(raw)
    extras = extras_of(record)
    if extras.original is not None:
        return decode(extras.original)
    return decode_key(raw if extras.whole is None else extras.whole)


def decoded(
    stream: Iterator[tuple[bytes, bytes | None]],
    wanted: KeyRange,
    decode: Decoder,
    life: Life,
) -> Iterator[tuple[Any, Any]]:
    """Iterate over (key, value) of the records of a stream, passing over those removed."""
    life.require()
    is_exact = wanted.is_exact
    for raw, record in stream:
        if record is None:
            continue
        if record[-1] == PLAIN_END and len(raw) <= MAX_INLINE_BYTES and is_exact:
            yield decode_key(raw), decode(record)
        elif is_exact or wanted.holds(extras_of(record).whole or raw):
            yield key_of(raw, record, decode), decode(record)
        if not life.is_open:
            life.require()

"""Records that the Kinesis Producer Library has put together into one.

Such a record is four magic bytes, a protobuf message and the message's MD5. The message has a table
of partition keys, one of explicit hash keys, and the records of the producer, each with its places
in these tables (Amazon's "KPL aggregated record format"). As in the Kinesis Client Library, what
looks otherwise is a record of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import md5

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16

_KEYS, _HASH_KEYS, _RECORDS = 1, 2, 3  # fields of the message
_KEY_INDEX, _HASH_KEY_INDEX, _DATA = 1, 2, 3  # fields of a record in it

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf


@dataclass(frozen=True)
class HashRange:
    """The hash keys of a shard, the last one included."""

    first: int = 0
    last: int = 2**128 - 1

    def __contains__(self, hash_key: int) -> bool:
        return self.first <= hash_key <= self.last


@dataclass
class _Aggregate:
    """A message, as it is read."""

    keys: list[bytes] = field(default_factory=list)
    hash_keys: list[bytes] = field(default_factory=list)
    records: list[dict[int, bytes | int]] = field(default_factory=list)


def producer_records(data: bytes, hashes: HashRange) -> list[bytes]:
    """Return the records that a producer has put into one record of Kinesis.

    Those whose hash key is not in the range of the shard are left out: the producer took them for
    records of this shard before it was split or merged, and has sent them to the right one again.
    """
    message = data[len(_MAGIC) : -_DIGEST_BYTES]
    if not data.startswith(_MAGIC) or _digest(message) != data[-_DIGEST_BYTES:]:
        return [data]
    try:
        aggregate = _read(message)
        return [
            bytes(record[_DATA])
            for record in aggregate.records
            if _hash_key(aggregate, record) in hashes
        ]
    except (IndexError, KeyError, TypeError, ValueError):
        return [data]  # no message of the producer, though it has its digest


def _digest(message: bytes) -> bytes:
    return md5(message, usedforsecurity=False).digest()


def _hash_key(aggregate: _Aggregate, record: dict[int, bytes | int]) -> int:
    explicit = record.get(_HASH_KEY_INDEX)
    if explicit is not None:
        return int(aggregate.hash_keys[explicit])  # type: ignore[index]
    return int.from_bytes(_digest(aggregate.keys[record[_KEY_INDEX]]), "big")  # type: ignore[index]


def _read(message: bytes) -> _Aggregate:
    aggregate = _Aggregate()
    for number, value in _fields(message):
        if number == _KEYS and isinstance(value, bytes):
            aggregate.keys.append(value)
        elif number == _HASH_KEYS and isinstance(value, bytes):
            aggregate.hash_keys.append(value)
        elif number == _RECORDS and isinstance(value, bytes):
            aggregate.records.append(dict(_fields(value)))
    return aggregate


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: bytes | int
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                size, at = _varint(message, at)
            else:
                size = {_FIXED64: 8, _FIXED32: 4}[kind]
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("the message ends within a field")
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at

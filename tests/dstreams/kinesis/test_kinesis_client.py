"""Aggregated records of producers are read as Amazon's libraries write them."""

from __future__ import annotations

from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.kinesis.kinesis_client import HashRange, producer_records

ALL = HashRange()

# "one" and "" of partition key a, "two" of partition key b with the explicit hash key 42, as the
# aggregator of Amazon's aws-kinesis-agg 1.2.3 has written them.
OF_AMAZON = bytes.fromhex(
    "f3899ac20a01610a0162120234321a0708001a036f6e651a09080110001a0374776f1a0408001a00"
    "a49c195c0d4fc03c21c19a9a7b30f752"
)


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def aggregated(message: bytes) -> bytes:
    return b"\xf3\x89\x9a\xc2" + message + md5(message, usedforsecurity=False).digest()


def of_producer(records: list[tuple[str, int | None, bytes]]) -> bytes:
    """Partition key, explicit hash key and data of records, as the format is documented."""
    message, hash_keys = b"", 0
    for key, _, _ in records:
        message += field(1, key.encode())
    for index, (_, hash_key, data) in enumerate(records):
        record = field(1, index)
        if hash_key is not None:
            message += field(2, str(hash_key).encode())
            record += field(2, hash_keys)
            hash_keys += 1
        message += field(3, record + field(3, data))
    return aggregated(message)


def test_as_amazon_writes_them() -> None:
    """The records of the producer, in their order."""
    assert producer_records(OF_AMAZON, ALL) == [b"one", b"two", b""]


@given(
    st.lists(
        st.tuples(st.text(), st.none() | st.integers(0, 2**128 - 1), st.binary(max_size=300)),
        max_size=20,
    )
)
def test_all_records(records: list[tuple[str, int | None, bytes]]) -> None:
    """Each record is returned once."""
    assert producer_records(of_producer(records), ALL) == [data for _, _, data in records]


def test_records_of_other_shards() -> None:
    """Records that the producer sends again, because the shard was split, are skipped."""
    middle = 2**127
    records: list[tuple[str, int | None, bytes]] = [
        ("key", middle - 1, b"explicit, low"),
        ("key", middle, b"explicit, high"),
        ("a", None, b"by its partition key"),
    ]
    assert int.from_bytes(md5(b"a", usedforsecurity=False).digest(), "big") < middle
    low, high = HashRange(0, middle - 1), HashRange(middle, 2**128 - 1)
    data = of_producer(records)
    assert producer_records(data, low) == [b"explicit, low", b"by its partition key"]
    assert producer_records(data, high) == [b"explicit, high"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        b"\xf3\x89\x9a\xc2",
        OF_AMAZON[:-1],
        OF_AMAZON[1:],
        OF_AMAZON[:-1] + b"\x00",
        aggregated(field(3, field(1, 7) + field(3, b"no such key"))),
        aggregated(field(1, b"key") + field(3, field(1, 0))),
        aggregated(b"\x1a\x7fends within a field"),
        aggregated(b"\x0b"),
        aggregated(b"\x80"),
    ],
)
def test_what_is_no_aggregate(data: bytes) -> None:
    """It is a record of its own, as in Amazon's libraries."""
    assert producer_records(data, ALL) == [data]


def test_fields_that_are_not_known() -> None:
    """Tags, and fields of later formats, are ignored."""
    tag = field(4, field(1, b"name"))
    record = field(1, 0) + field(3, b"data") + tag + varint(9 << 3 | 1) + b"8 bytes."
    message = field(1, b"key") + field(4, b"tag") + varint(8 << 3 | 5) + b"4byt" + field(3, record)
    assert producer_records(aggregated(message), ALL) == [b"data"]

"""Records in blocks: pickled once, cut to size, and what cannot be pickled."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.sources import pickled_block
from dstreams.sources.pickled_block import decode_records, encode_records


def decoded(encoded: list[pickled_block.ReceivedBlock]) -> list[Any]:
    return list(decode_records(block.payload for block in encoded))


def test_records_come_back_in_order() -> None:
    """One block for few records, with their number."""
    records = [1, "two", (3, None), {"four": [4]}]
    encoded = encode_records(records)
    assert [block.records for block in encoded] == [4]
    assert decoded(encoded) == records


def test_no_records_are_no_block() -> None:
    """An empty list costs nothing."""
    assert encode_records([]) == []


def test_a_block_is_fixed_when_it_is_made() -> None:
    """What a receiver does with its objects afterwards changes nothing."""
    record = [1]
    encoded = encode_records([record])
    record.append(2)
    assert decoded(encoded) == [[1]]


def test_functions_and_local_classes_travel() -> None:
    """Records are pickled as PySpark pickles data."""

    class Local:
        value = 3

    (function, local) = decoded(encode_records([lambda x: x + 1, Local()]))
    assert function(1) == 2
    assert local.value == 3


def test_large_records_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of several records is larger than the target; the order stays."""
    monkeypatch.setattr(pickled_block, "TARGET_BYTES", 3000)
    records = [bytes([number]) * 1000 for number in range(10)]
    encoded = encode_records(records)
    assert decoded(encoded) == records
    assert len(encoded) > 3
    assert all(len(block.payload) <= 3000 for block in encoded)


def test_a_record_that_cannot_be_pickled_is_named() -> None:
    """None of the records of that call is stored."""
    with pytest.raises(InvalidStreamError, match="record of type lock cannot be pickled"):
        encode_records([1, threading.Lock(), 2])


def test_a_record_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has both sizes."""
    monkeypatch.setattr(pickled_block, "MAX_PAYLOAD_BYTES", 1000)
    with pytest.raises(InvalidStreamError, match=r"type bytes takes 10\d\d bytes .* at most 1000"):
        encode_records([b"x" * 1000])


def test_what_can_be_pickled_is_kept() -> None:
    """Single records that cannot be are left out, and each is told of."""
    refused: list[InvalidStreamError] = []
    encoded = encode_records([1, threading.Lock(), 2, threading.Lock(), 3], refused.append)
    assert decoded(encoded) == [1, 2, 3]
    assert sum(block.records for block in encoded) == 3
    assert len(refused) == 2

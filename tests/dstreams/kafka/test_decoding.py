"""Records of Kafka and their decoding."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import DecodeError, EnvironmentNotReadyError, InvalidStreamError
from dstreams.kafka.decoders import Decoder, JsonDecoder, Utf8Decoder, as_decoder, utf8_decoder
from dstreams.kafka.decoding import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    AsRecords,
    BadRecords,
    ConsumerRecord,
    DeadLetter,
    DecodedBlock,
    Decoding,
    RecordBlock,
)
from dstreams.kafka.offsets import OffsetRange

RANGE = OffsetRange("t", 2, 0, 10)


@dataclass
class Message:
    """The fields of the client's messages that records need."""

    said: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return lambda: self.said[name]


def message(
    offset: int,
    key: bytes | None = None,
    value: bytes | None = None,
    timestamp: tuple[int, int] = (1, 1000),
    headers: Any = None,
) -> Message:
    fields = {"offset": offset, "key": key, "value": value}
    return Message({**fields, "timestamp": timestamp, "headers": headers})


def test_each_field() -> None:
    """Keys, values, headers and times are there as they were sent, nulls too."""
    records = AsRecords()(
        RANGE,
        [
            message(4, b"k", b"v", headers=[("a", b"1"), ("a", None)]),
            message(5, timestamp=(2, 2000)),
            message(9, b"", b"", timestamp=(0, -1), headers=[]),
        ],
    )
    assert list(records.records) == [
        ConsumerRecord("t", 2, 4, 1000, CREATE_TIME, (("a", b"1"), ("a", None)), b"k", b"v"),
        ConsumerRecord("t", 2, 5, 2000, LOG_APPEND_TIME, (), None, None),
        ConsumerRecord("t", 2, 9, -1, NO_TIMESTAMP, (), b"", b""),
    ]
    assert all(isinstance(record, ConsumerRecord) for record in records.records)
    assert not records.rejected


Pair = tuple[bytes | None, bytes | None]


def block(*pairs: Pair, first: int = 100) -> RecordBlock:
    """Records of these keys and values, each with a time and a header of its own."""
    numbers = range(len(pairs))
    return RecordBlock(
        "clicks",
        3,
        [first + 2 * number for number in numbers],
        [1_000 + number for number in numbers],
        [0 for _ in numbers],
        [(("n", b"%d" % number),) for number in numbers],
        [key for key, _ in pairs],
        [value for _, value in pairs],
    )


def decoded(
    rule: BadRecords, *pairs: Pair, key: Any = utf8_decoder, value: Any = int
) -> DecodedBlock:
    return Decoding(as_decoder(key, "key"), as_decoder(value, "value"), rule)(block(*pairs))


def test_a_block_of_good_records() -> None:
    """Each has all that was read, and its key and value decoded."""
    records, rejected = decoded("FAILFAST", (b"ann", b"7"), (None, b"8"), (b"bob", None))
    assert records == [
        ConsumerRecord("clicks", 3, 100, 1000, 0, (("n", b"0"),), "ann", 7),
        ConsumerRecord("clicks", 3, 102, 1001, 0, (("n", b"1"),), None, 8),
        ConsumerRecord("clicks", 3, 104, 1002, 0, (("n", b"2"),), "bob", None),
    ]
    assert all(type(record) is ConsumerRecord for record in records)
    assert rejected == []


def test_bytes_stay_bytes() -> None:
    """Without decoders keys and values are what was read."""
    (record,), _ = decoded("FAILFAST", (b"\xff", b"x"), key=None, value=None)
    assert (record.key, record.value) == (b"\xff", b"x")


def test_an_empty_block() -> None:
    """A block without records is one."""
    assert decoded("FAILFAST") == ([], [])


def test_failfast_names_the_first_bad_record() -> None:
    """The error says where the record is, what could not decode it and why; it can be pickled."""
    with pytest.raises(DecodeError) as error:
        decoded("FAILFAST", (b"ann", b"7"), (b"bob", b"x7"), (b"\xff", b"9"))
    assert str(error.value) == (
        "topic 'clicks', partition 3, offset 102: builtins.int cannot decode the value "
        "(ValueError: invalid literal for int() with base 10: b'x7'); correct the decoder or the "
        "producer, or skip such records with badRecords='DROPMALFORMED'; then deadLetters() has "
        "them"
    )
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.offset, again.part) == (str(error.value), 102, "value")


def test_an_error_has_no_more_of_the_data_than_a_bit() -> None:
    """Neither the message nor the traceback, which goes into logs, has the whole of a value."""
    secret = b"card 4929 1111 2222 3333 " * 50
    with pytest.raises(DecodeError) as error:
        decoded("FAILFAST", (b"ann", b"\x1b[31m" + secret))
    said = "".join(traceback.format_exception(error.value))
    assert said.count("4929") <= 3
    assert "\x1b" not in said
    assert error.value.reason.endswith("...")
    assert len(error.value.reason) <= 140


def test_bad_records_are_set_aside() -> None:
    """The others keep their order; of a bad one all is there as it was read, and the reason."""
    records, rejected = decoded(
        "DROPMALFORMED",
        (b"ann", b"7"),
        (b"bob", b"x"),
        (b"\xff", b"y"),
        (None, None),
        (b"\xfe", b"9"),
    )
    assert [record.offset for record in records] == [100, 106]
    assert rejected[0] == DeadLetter(
        "clicks", 3, 102, 1001, 0, (("n", b"1"),), b"bob", b"x", "value",
        "ValueError: invalid literal for int() with base 10: b'x'",
    )  # fmt: skip
    assert [(letter.offset, letter.part) for letter in rejected[1:]] == [(104, "key"), (108, "key")]


def test_headers_of_a_dead_letter() -> None:
    """Those of the record, then where it is from and why, as text."""
    (letter,) = decoded("DROPMALFORMED", (b"bob", b"x")).rejected
    assert dict(letter.error_headers) == {
        "n": b"0",
        "__dstreams.errors.message": letter.reason.encode(),
        "__dstreams.errors.topic": b"clicks",
        "__dstreams.errors.partition": b"3",
        "__dstreams.errors.offset": b"100",
        "__dstreams.errors.part": b"value",
    }


class InBlocks(Decoder[int]):
    """Counts how it is called, and decodes a block only as a whole."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def decode(self, data: bytes, topic: str) -> int:
        self.calls.append("one")
        return int(data)

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[int | None]:
        self.calls.append("block")
        return [None if value is None else int(value) for value in values]


def test_a_block_is_decoded_at_once() -> None:
    """Only a block that has a bad record is decoded again, one by one."""
    decoder = InBlocks()
    decoding = Decoding(None, decoder, "DROPMALFORMED")
    decoding(block((None, b"1"), (None, b"2")))
    assert decoder.calls == ["block"]
    assert len(decoding(block((None, b"1"), (None, None), (None, b"x"))).rejected) == 1
    assert decoder.calls == ["block", "block", "one", "one"]


def test_a_decoder_that_loses_values() -> None:
    """A block of another length is an error of the decoder in every mode."""

    class Short(InBlocks):
        def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[int | None]:
            return [1]

    with pytest.raises(InvalidStreamError) as error:
        Decoding(None, Short(), "DROPMALFORMED")(block((None, b"1"), (None, b"2")))
    assert str(error.value) == (
        "Short() made 1 values of a block of 2; decode_block has to return one for each, None for "
        "None"
    )


@pytest.mark.parametrize("failure", [EnvironmentNotReadyError("no fastavro"), MemoryError()])
def test_trouble_that_is_not_of_a_record(failure: Exception) -> None:
    """It is raised as it is: no record is dropped for it."""

    def decode(data: bytes) -> None:
        raise failure

    with pytest.raises(type(failure)):
        decoded("DROPMALFORMED", (None, b"1"), value=decode)


def test_an_exception_that_cannot_be_printed() -> None:
    """A reason is given all the same."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def decode(data: bytes) -> None:
        raise MuteError

    (letter,) = decoded("DROPMALFORMED", (None, b"1"), value=decode).rejected
    assert letter.reason == "MuteError"


BYTES = st.one_of(
    st.none(), st.binary(max_size=4), st.integers().map(lambda number: b"%d" % number)
)


@given(st.lists(st.tuples(BYTES, BYTES)))
def test_every_record_is_in_one_place(pairs: list[Pair]) -> None:
    """Records and dead letters together are the block; each is where its bytes belong."""
    whole = block(*pairs)
    decoder = JsonDecoder(int)
    records, rejected = Decoding(Utf8Decoder(), decoder, "DROPMALFORMED")(whole)
    assert sorted([each.offset for each in [*records, *rejected]]) == whole.offsets
    for record in records:
        key, value = pairs[whole.offsets.index(record.offset)]
        assert (record.key is None) == (key is None)
        assert key is None or record.key.encode() == key
        assert (record.value is None) == (value is None)
        assert value is None or record.value == int(value)
    for letter in rejected:
        assert (letter.key, letter.value) == pairs[whole.offsets.index(letter.offset)]
        part, decode = (
            (letter.key, bytes.decode)
            if letter.part == "key"
            else (letter.value, lambda data: decoder.decode(data, "t"))
        )
        with pytest.raises(ValueError, match=r"."):
            decode(part)

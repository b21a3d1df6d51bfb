"""Decoders, and functions that are accepted as decoders."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders import Decoder, JsonDecoder, Utf8Decoder, as_decoder, utf8_decoder


class ByTopic(Decoder[str]):
    """Says where the bytes are from."""

    def decode(self, data: bytes, topic: str) -> str:
        return f"{topic}: {data.decode()}"


def parse(data: bytes) -> int:
    return int(data)


def test_a_block_is_decoded_by_its_records() -> None:
    """A decoder without decode_block is called for each record with its topic."""
    assert ByTopic().decode_block([b"a", None, b"b"], "t") == ["t: a", None, "t: b"]


def test_a_function_is_a_decoder() -> None:
    """It gets bytes and never None, one by one and in a block."""
    decoder = as_decoder(parse, "valueDecoder")
    assert decoder is not None
    assert decoder.decode(b"7", "t") == 7
    assert decoder.decode_block([b"7", None, b"8"], "t") == [7, None, 8]
    assert repr(decoder).endswith(f"test_decoders.parse:{parse.__code__.co_firstlineno}")


def test_bytes_stay_bytes_without_a_decoder() -> None:
    """None decodes nothing."""
    assert as_decoder(None, "valueDecoder") is None


def test_text() -> None:
    """UTF-8, as pyspark.streaming.kafka decoded it: None for None, an error for other bytes."""
    assert utf8_decoder("naïve".encode()) == "naïve"
    assert utf8_decoder(None) is None
    assert utf8_decoder(b"") == ""
    values = [b"", "naïve".encode()]
    assert Utf8Decoder().decode_block(values, "t") == ["", "naïve"]
    assert Utf8Decoder().decode_block([*values, None], "t") == ["", "naïve", None]
    for decode in (lambda: utf8_decoder(b"\xff"), lambda: Utf8Decoder().decode(b"\xff", "t")):
        with pytest.raises(UnicodeDecodeError):
            decode()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("utf-8", "valueDecoder needs a function bytes -> value, got 'utf-8' (str)"),
        (lambda: 1, "valueDecoder calls bytes -> value, but "),
        (JsonDecoder, "valueDecoder is the class JsonDecoder; give an instance: JsonDecoder("),
    ],
)
def test_what_is_no_decoder(given: Any, reason: str) -> None:
    """It is refused where the stream is defined."""
    with pytest.raises(InvalidStreamError) as error:
        as_decoder(given, "valueDecoder")
    assert str(error.value).startswith(reason)


def test_a_function_that_cannot_be_sent() -> None:
    """It is refused with what it carries along."""
    lock = threading.Lock()
    with pytest.raises(InvalidStreamError, match=r"because it uses .lock., of type _thread\.lock"):
        as_decoder(lambda data: (lock, data), "valueDecoder")

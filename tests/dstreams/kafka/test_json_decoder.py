"""JSON: of any shape, of a type, and behind the id of a schema."""

from __future__ import annotations

import json
import pickle
from dataclasses import make_dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders import JsonDecoder


class Click(msgspec.Struct):
    user: str
    pages: int = 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.deep
@given(st.lists(JSON))
def test_what_json_says(values: list[Any]) -> None:
    """Texts are read as the standard library writes them, one by one and in a block."""
    texts = [json.dumps(value).encode() for value in values]
    decoder: JsonDecoder[Any] = JsonDecoder()
    assert decoder.decode_block(texts, "t") == values
    assert [decoder.decode(text, "t") for text in texts] == values


@pytest.mark.parametrize("framed", [False, True])
def test_what_is_nested_too_deep(framed: bool) -> None:
    """A text that Python could read but not send on is a record that cannot be decoded."""
    header = b"\0\0\0\0\x22" if framed else b""
    deep, flat = (header + b"[" * depth + b"]" * depth for depth in (201, 200))
    decoder: JsonDecoder[Any] = JsonDecoder(framed=framed)
    pickle.dumps(decoder.decode_block([flat], "clicks"))
    for values in ([deep], [deep, None], [header + b'"' + b"[" * 500 + b'"', deep]):
        with pytest.raises(ValueError, match="nested deeper than 200 at character 201"):
            decoder.decode_block(values, "clicks")


def test_a_type() -> None:
    """Values are objects of the type, and what does not fit is an error."""
    decoder = JsonDecoder(Click)
    texts = [b'{"user": "ann", "pages": 3, "more": 1}', None, b'{"user": "bob"}']
    assert decoder.decode_block(texts, "t") == [Click("ann", 3), None, Click("bob", 0)]
    with pytest.raises(msgspec.ValidationError, match="Expected `str`, got `int`"):
        decoder.decode(b'{"user": 7}', "t")
    assert repr(decoder) == "JsonDecoder(Click)"
    assert repr(JsonDecoder()) == "JsonDecoder()"


def test_a_decoder_is_sent_to_workers() -> None:
    """It decodes there as here, also to a type of the program itself."""
    for decoder in (JsonDecoder(Click), JsonDecoder(dict[str, int]), JsonDecoder(framed=True)):
        sent = pickle.loads(cloudpickle.dumps(decoder))
        text = b'{"user": "ann"}' if decoder._of is Click else b'{"a": 1}'
        data = b"\0\0\0\0\x07" + text if decoder._framed else text
        assert sent.decode(data, "t") == decoder.decode(data, "t")


def test_behind_the_id_of_a_schema() -> None:
    """Only the format of Confluent's serializer is accepted."""
    decoder = JsonDecoder(framed=True)
    assert decoder.decode(b'\0\0\0\0\x07{"a": 1}', "t") == {"a": 1}
    assert decoder.decode_block([b"\0\0\0\0\x07[]", None], "t") == [[], None]
    with pytest.raises(ValueError, match="it begins with the byte 0x7b"):
        decoder.decode(b'{"a": 1}', "t")


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": 1} {', b"1,2", b"nul", b"\xff"])
def test_what_is_no_json(text: bytes) -> None:
    """A text that is not whole, or more than one, is an error."""
    with pytest.raises(ValueError, match=r"."):
        JsonDecoder().decode(text, "t")


def test_a_type_that_nothing_can_be_decoded_to() -> None:
    """It is refused where the decoder is made."""
    with pytest.raises(InvalidStreamError, match="JsonDecoder cannot decode to dict"):
        JsonDecoder(dict[bytes | int, Click | dict[str, Any]])


def test_types_of_the_main_program() -> None:
    """Classes that workers cannot import are pickled, except for Struct."""
    page = make_dataclass("Page", [("path", str)])
    visit = make_dataclass("Visit", [("user", str), ("pages", list[page])])  # type: ignore[valid-type]
    decoder = JsonDecoder(dict[str, visit])  # type: ignore[valid-type]
    text = b'{"a": {"user": "ann", "pages": [{"path": "/"}]}}'
    assert decoder.decode(text, "t")["a"].user == "ann"
    again = pickle.loads(cloudpickle.dumps(decoder))
    assert again.decode(text, "t")["a"].pages[0].path == "/"
    local = msgspec.defstruct("Local", [("user", str)])
    with pytest.raises(InvalidStreamError) as error:
        cloudpickle.dumps(JsonDecoder(list[local]))  # type: ignore[valid-type]
    assert str(error.value).startswith("JsonDecoder: Local is a Struct of the main program, which")
    assert "define it in a module that they import, or make it a dataclass" in str(error.value)

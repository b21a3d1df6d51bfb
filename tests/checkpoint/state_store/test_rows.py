"""Rows contain numbers exactly, and only numbers."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store.shapes import MAX_FIELDS, ROWS, Shapes, decode_row, decode_rows
from checkpoint.state_store.values import DataValues

numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats())
rows = st.one_of(numbers, st.lists(numbers, min_size=1, max_size=MAX_FIELDS).map(tuple))
NO_ROWS: list[Any] = [
    None, True, "1", b"1", 2**63, -(2**63) - 1, (), (1, None), (1, True), ((1,),), [1], 1j,
    (2**63, 0.5), (0,) * (MAX_FIELDS + 1),
]  # fmt: skip


encode = DataValues().encoder(Shapes())
encode_many = DataValues().many_encoder(Shapes())


def same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and repr(found) == repr(wanted)


@given(rows, st.binary(max_size=20))
def test_rows_come_back(value: Any, behind: bytes) -> None:
    """Numbers keep value, sign and type, whatever follows; a row ends with a dot."""
    raw = encode(value)
    assert raw[0] in ROWS
    assert raw.endswith(b".")
    assert same(decode_row(raw + behind), value)
    assert same(decode_rows([raw + behind] * 3), [value] * 3)


@pytest.mark.parametrize("value", NO_ROWS, ids=lambda value: repr(value)[:30])
def test_what_is_no_row(value: Any) -> None:
    """Only 64-bit numbers and short tuples of them are rows."""
    assert encode(value)[0] not in ROWS
    many = [value for value in (0, value, (1, 2.0), value, 1) if value is not None]
    assert encode_many(many) == list(map(encode, many))


@given(st.lists(rows, max_size=6))
def test_many_rows_are_the_same_bytes(values: list[Any]) -> None:
    """Encoding many rows gives the same bytes, and rows of one layout are decoded together."""
    each = list(map(encode, values))
    assert encode_many(values) == each
    found = decode_rows(each)
    assert found is None if len({raw[: 2 + raw[1]] for raw in each}) != 1 else same(found, values)


def test_many_that_are_not_all_rows() -> None:
    """If one record is not a row of the layout, they are not decoded together."""
    whole = encode((1, 2.0))
    for other in (None, "1", (1,), (1, 2, 3), (1, 2), 2.0, (1, 2**63)):
        assert decode_rows([whole, encode(other)]) is None
    for wrong in (b"", b"\x01", whole[:-1], whole[:-1] + b"!", b"\x02" + whole[1:], whole + b"."):
        assert decode_rows([whole, wrong]) is None
    assert decode_rows([]) is None


@given(rows, st.data())
def test_damaged_rows(value: Any, data: st.DataObject) -> None:
    """A damaged row is another value or a documented error."""
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for damaged in (bytes(raw), cut):
        with contextlib.suppress(ValueError, struct.error, IndexError):
            decode_row(damaged)
        decode_rows([damaged, damaged])


@pytest.mark.parametrize("value", [1, (1, 2.0)], ids=repr)
def test_rows_are_read_behind_other_bytes(value: Any) -> None:
    """Rows are decoded behind a prefix without copying."""
    raw = encode(value)
    assert decode_rows([b"head" + raw + b"behind"] * 3, 4) == [value] * 3
    assert decode_rows([b"head"], 4) is None
    assert decode_rows([b"he"], 4) is None

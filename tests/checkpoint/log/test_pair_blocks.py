"""Pair blocks: what is written is found again, and what is none is refused."""

from __future__ import annotations

import pickle

import pytest

from checkpoint import PairBlock, PairForm, pair_header, rows_of_fields, with_origin


@pytest.mark.parametrize("form", PairForm)
def test_the_parts_of_a_block(form: PairForm) -> None:
    """As they were put together; also where it says where it comes from."""
    data = pair_header(1, form, 3, 4) + b"keys" + b"values"
    block = PairBlock(data)
    assert (block.side_number, block.form, block.rows, block.origin) == (1, form, 3, (-1, -1))
    assert (bytes(block.key_column), bytes(block.value_column)) == (b"keys", b"values")
    assert (block.data, block.size) == (data, len(data))
    moved = PairBlock(memoryview(with_origin(data, 7, 9)))
    assert (moved.side_number, moved.form, moved.rows, moved.origin) == (1, form, 3, (7, 9))
    assert bytes(moved.key_column) == b"keys"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 9,
        pair_header(2, PairForm.COMMON, 0, 0),
        pair_header(0, PairForm.COMMON, 1, 5) + b"keys",
        b"\x00\x03" + bytes(8),
        pickle.dumps([("a", 1)], 5),
    ],
)
def test_what_is_no_block_is_refused(data: bytes) -> None:
    """As far as a header can tell."""
    with pytest.raises(ValueError, match=r"block|not a valid PairForm"):
        PairBlock(data)


def test_columns_of_fields_are_rows_again() -> None:
    """Also where a field is a tuple itself."""
    assert rows_of_fields([1, 2]) == [1, 2]
    assert rows_of_fields(([1, 2], (["a", "b"], [3, 4]))) == [(1, ("a", 3)), (2, ("b", 4))]

"""Ranges and prefixes contain exactly the intended keys."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store.keys import (
    KeyRange,
    after_prefix,
    encode_key,
    encode_whole,
    key_range,
    prefix_range,
)

texts = st.text("a\0\xff\uffff", max_size=3) | st.text("a", min_size=455, max_size=485)
tuples = st.lists(texts | st.integers(-2, 2), max_size=3).map(tuple)


def inside(wanted: KeyRange, key: Any) -> bool:
    """Return whether a scan would find *key* and keep it."""
    raw, last = encode_key(key), wanted.last
    is_found = wanted.first <= raw and (last is None or raw < last)
    whole = encode_whole(key)
    if wanted.is_exact:
        return is_found
    assert is_found or not wanted.holds(whole), "a scan must not miss a key"
    return is_found and wanted.holds(whole)


@given(texts, texts)
def test_prefix_of_texts(prefix: str, key: str) -> None:
    """A text is found by its prefixes, long ones included, and by no others."""
    assert inside(prefix_range(prefix), key) == key.startswith(prefix)
    assert not inside(prefix_range(prefix), key.encode())
    assert not inside(prefix_range(prefix), (key,))
    assert inside(prefix_range(prefix.encode()), key.encode()) == key.startswith(prefix)


@given(tuples, tuples)
def test_prefix_of_tuples(prefix: tuple[Any, ...], key: tuple[Any, ...]) -> None:
    """A tuple is found by its first elements."""
    assert inside(prefix_range(prefix), key) == (key[: len(prefix)] == prefix)


@given(texts, texts, texts)
def test_range_of_texts(start: str, stop: str, key: str) -> None:
    """A range has the texts between its bounds, however long they are."""
    assert inside(key_range(start, stop), key) == (start <= key < stop)
    assert inside(key_range(start, None), key) == (start <= key)
    assert inside(key_range(None, stop), key) == (key < stop)
    assert not inside(key_range(start, None), key.encode())


@given(*[st.integers(-(2**65), 2**65)] * 3)
def test_range_of_ints(start: int, stop: int, key: int) -> None:
    """Ints of any size are in one order."""
    assert inside(key_range(start, stop), key) == (start <= key < stop)
    assert inside(key_range(start, None), key) == (start <= key)
    assert inside(key_range(None, stop), key) == (key < stop)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(None, None), (1, "a"), (1.5, 2), (0.5, None), (None, frozenset()), (date(2024, 1, 1), 3)],
)
def test_no_ranges(start: Any, stop: Any) -> None:
    """Bounds of two kinds, or of a kind without order, are rejected."""
    with pytest.raises(TypeError, match="range"):
        key_range(start, stop)


@pytest.mark.parametrize("prefix", [1, None, ["a"], 0.5])
def test_no_prefixes(prefix: Any) -> None:
    """Only texts, bytes and tuples begin with something."""
    with pytest.raises(TypeError, match=r"must be a str, bytes, or a tuple of the first elements"):
        prefix_range(prefix)


@given(st.binary(max_size=3), st.binary(max_size=4))
def test_after_prefix(prefix: bytes, key: bytes) -> None:
    """What begins with a prefix is before its end, and what follows is not."""
    stop = after_prefix(prefix)
    assert (prefix <= key and (stop is None or key < stop)) == key.startswith(prefix)

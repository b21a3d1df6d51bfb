"""JSON from disk is checked field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from checkpoint.json_fields import (
    dump_json,
    int_field,
    list_field,
    load_json,
    object_field,
    text_field,
)


def test_equal_values_are_written_as_the_same_bytes() -> None:
    """The order of keys does not matter, and all is ASCII."""
    assert (
        dump_json({"b": 1, "a": "ü"}) == dump_json({"a": "ü", "b": 1}) == b'{"a":"\\u00fc","b":1}'
    )


@pytest.mark.parametrize("data", [b"", b"[1]", b"1", b"null", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_a_value_error(data: bytes) -> None:
    """Damage of any kind is one kind of error."""
    with pytest.raises(ValueError, match=r"."):
        load_json(data)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (int_field, [0, -1, 1 << 70], [True, 1.0, "1", None, []]),
        (text_field, ["", "a"], [1, None, b"a"]),
        (list_field, [[], [1]], [{}, "a", None, ()]),
        (object_field, [{}, {"a": 1}], [[], "a", None]),
    ],
)
def test_fields_are_of_their_type_and_nothing_is_converted(
    field: Callable[[Mapping[str, object], str], object], good: list[object], bad: list[object]
) -> None:
    """A field of the right type is returned; any other, or none, is refused by name."""
    for value in good:
        assert field({"x": value}, "x") == value
    for data in [{"x": value} for value in bad] + [{}]:
        with pytest.raises(ValueError, match="'x' must be"):
            field(data, "x")

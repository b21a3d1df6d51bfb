"""Values of Avro that would end the process, or fill its memory, cannot be decoded."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError
from dstreams.kafka.avro import AvroBounds, AvroDecoder
from dstreams.kafka.decoding import Decoding
from tests.dstreams.kafka.test_avro import block, written

LINKED = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "next", "type": ["null", "L"]}],
}
TREE = {
    "type": "record",
    "name": "ns.Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "of", "type": {"type": "map", "values": ["null", "Tree", "double"]}},
        {"name": "many", "type": {"type": "array", "items": ["Tree", "long", "boolean"]}},
        {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "id", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "real", "type": "float"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": {"type": "bytes"}},
    ],
}


def long(number: int) -> bytes:
    return written("long", number)


def nothing(name: str, depth: int) -> Any:
    """Nested empty records, each with the previous one twice."""
    if not depth:
        return {"type": "record", "name": f"{name}0", "fields": []}
    return {
        "type": "record",
        "name": f"{name}{depth}",
        "fields": [
            {"name": "a", "type": nothing(name, depth - 1)},
            {"name": "b", "type": f"{name}{depth - 1}"},
        ],
    }


def chain(depth: int) -> Any:
    """A union of types, each containing the previous one."""
    types: list[Any] = [{"type": "record", "name": "R0", "fields": []}]
    for number in range(1, depth + 1):
        field = {"name": "a", "type": f"R{number - 1}"}
        types.append({"type": "record", "name": f"R{number}", "fields": [field]})
    return types


HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "a linked list": (LINKED, b"\2" * 200 + b"\0", "nested deeper than 200 at byte 201"),
    "a long one": (LINKED, b"\2" * 1_000_000 + b"\0", "nested deeper than 200"),
    "one that does not end": (LINKED, b"\2" * 150, "it ends within its value"),
    "an array of null": ({"type": "array", "items": "null"}, long(2**30) + b"\0", "take no bytes"),
    "blocks of null": (
        {"type": "array", "items": "null"}, long(-(2**40)) + long(0) + b"\0", "take no bytes",
    ),
    "an array of empty records": (
        {"type": "array", "items": {"type": "record", "name": "R", "fields": []}},
        long(2**62) + b"\0", "take no bytes",
    ),
    "an array of nothing": (
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        long(2**30) + b"\0", "take no bytes",
    ),
    "records that double": (nothing("R", 40), b"", "take no bytes"),
    "a deep schema": (chain(5000), long(5000), "nested deeper than 200"),
    "a number without end": (TREE, b"\x80" * 20, "more than 10 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_values(case: tuple[Any, bytes, str]) -> None:
    """One is set aside with its reason; the next record is read."""
    schema, data, reason = case
    decoding = Decoding(None, AvroDecoder(schema=schema), "DROPMALFORMED")
    decoded = decoding(block(data, None))
    assert [record.offset for record in decoded.records] == [11]
    assert reason in decoded.rejected[0].reason


def test_a_deep_schema_is_refused() -> None:
    """fastavro would run out of stack."""
    schema = '{"type":"array","items":' * 3000 + '"long"' + "}" * 3000
    with pytest.raises(InvalidStreamError, match="nested deeper than 200"):
        AvroDecoder(schema=schema)


def bounds(schema: Any) -> AvroBounds:
    named: dict[str, Any] = {}
    return AvroBounds(fastavro.parse_schema(schema, named_schemas=named), named)


@pytest.mark.parametrize(
    "schema",
    [
        "long",
        {"type": "array", "items": ["null", "long"]},
        {"type": "map", "values": "null"},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]},
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": f"a{at}", "type": ["null", "string"]} for at in range(50)],
        },
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": {"type": "fixed", "name": "F", "size": 2}},
                {"name": "b", "type": {"type": "array", "items": "F"}},
            ],
        },
    ],
)
def test_values_that_are_not_looked_at(schema: Any) -> None:
    """Most schemas have no room for a hostile value, and cost nothing."""
    assert not bounds(schema).is_needed()


def test_what_is_in_reach() -> None:
    """A value of 200 levels, and an array of some nulls, are read."""
    assert AvroDecoder(schema=LINKED).decode(b"\2" * 199 + b"\0", "t")["next"]["next"]
    nulls = AvroDecoder(schema={"type": "array", "items": "null"})
    assert nulls.decode(long(50_000) + b"\0", "t") == [None] * 50_000


def trees(children: Any) -> Any:
    return st.fixed_dictionaries(
        {
            "name": st.text(max_size=5),
            "of": st.dictionaries(st.text(max_size=3), st.none() | children, max_size=3),
            "many": st.lists(st.integers(-(2**63), 2**63 - 1) | st.booleans(), max_size=3),
            "kind": st.sampled_from("AB"),
            "id": st.binary(min_size=3, max_size=3),
            "real": st.floats(width=32),
            "day": st.integers(-9, 9),
            "raw": st.binary(max_size=5),
        }
    )


@given(value=trees(trees(trees(st.just(1.5)))))
def test_each_value_of_a_tree_is_in_reach(value: Any) -> None:
    """The check goes over exactly the bytes of a value."""
    data = written(TREE, value)
    bounds(TREE).require(b"12345" + data, 5)
    with pytest.raises(ValueError, match="it ends within its value"):
        bounds(TREE).require(data[:-1], 0)


@given(data=st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """The check accepts what fastavro reads, except for numbers of more than 64 bits."""
    try:
        fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(TREE), None)
    except Exception:
        return
    bounds(TREE).require(data, 0)

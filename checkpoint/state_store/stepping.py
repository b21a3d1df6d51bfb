"""Values decoded, stepped and encoded, many of them, with as little as can be done for each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from checkpoint.state_store.encoding import PICKLE, ROWS, SCALARS, Ways, dumped
from checkpoint.state_store.plain_pickles import EXTENSIONS, LINE_END, PROTOCOL, STACK_GLOBAL
from checkpoint.state_store.rows import (
    NUMBER,
    ROW_KINDS,
    TUPLE,
    encode_rows,
    layout_of,
)
from checkpoint.state_store.shapes import Shape
from checkpoint.state_store.value_codec import Decoder, Encoder, Step, undecodable

_NUMBERS = ROW_KINDS - {tuple}


def _types(items: Any) -> tuple[type, ...]:
    return tuple(map(type, items))


class _Lane(NamedTuple):
    """What values have in common that are encoded together, once the last of them is there.

    They cannot change any more by then: they are numbers, tuples of numbers, or of one shape, with
    fields that are numbers, texts and the like.

    Args:
        kind: their class.
        items: those of the items, where they are tuples.
        shape: their shape, None for numbers.
        fields: the classes of their fields.
    """

    kind: type
    items: tuple[type, ...] | None
    shape: Shape | None
    fields: tuple[type, ...]

    @classmethod
    def of(cls, value: Any, ways: Ways) -> _Lane | None:
        """Return what *value* has in common with others, None if it may change."""
        kind, items = type(value), None
        if type(value) is tuple:
            items = tuple(map(type, value))
        kinds: tuple[type, ...] = (kind,) if items is None else items
        if layout_of(kinds, NUMBER if items is None else TUPLE) is not None:
            return cls(kind, items, None, kinds)
        shape = ways.shape(kind if items is None else items)
        if shape is None:
            return None
        try:
            fields = tuple(map(type, shape.flat(value)))
        except (LookupError, AttributeError):
            return None
        return cls(kind, items, shape, fields) if SCALARS.issuperset(fields) else None

    def holds(self) -> Callable[[Any], Any]:
        """Return the function that returns the fields of a value, None if it is of another kind."""
        kind, fields, shape = self.kind, self.fields, self.shape
        items: Any = self.items
        if shape is None and items is None:
            return lambda value: value if type(value) is kind else None
        if shape is None:

            def same(value: Any) -> Any:
                is_same = type(value) is kind and _types(value) == items
                return value if is_same else None

            return same
        flat = shape.flat

        def fields_of(value: Any) -> Any:
            if type(value) is not kind or (items is not None and _types(value) != items):
                return None
            try:
                found = flat(value)
            except (LookupError, AttributeError):
                return None
            return found if tuple(map(type, found)) == fields else None

        return fields_of

    def records(self, kept: list[Any]) -> list[bytes]:
        """Return the records of values of which these are the fields."""
        raws = encode_rows(kept) or list(map(dumped, kept))
        return raws if self.shape is None else [self.shape.head + raw for raw in raws]


def step_rows(
    pairs: Iterator[tuple[Any, Any]], step: Step, encode: Encoder, ways: Ways
) -> list[bytes | None]:
    """Step values of rows or shapes, and encode together what comes out, as far as that is like."""
    stepped = (step(new, value) for new, value in pairs)
    first = next(stepped, None)
    lane = None if first is None else _Lane.of(first, ways)
    records: list[bytes | None] = []
    if lane is None:
        records.append(_or_none(encode, first))
    else:
        holds = lane.holds()
        kept = [holds(first)]
        keep = kept.append
        for after in stepped:
            fields = holds(after)
            if fields is None:
                records += lane.records(kept)
                records.append(_or_none(encode, after))
                break
            keep(fields)
        else:
            return lane.records(kept)  # type: ignore[return-value]
    records += [_or_none(encode, after) for after in stepped]
    return records


def step_each(
    given: list[Any],
    before: list[bytes | None],
    step: Step,
    decode: Decoder,
    encode: Encoder,
    ways: Ways,
) -> list[bytes | None]:
    """Decode, step and encode one after the other, so that what was read is still near.

    Records and values without a class are read and written as by *decode* and *encode*, without
    calling them.
    """
    loads, dumps = pickle.loads, pickle.dumps
    asked, is_known, row_kinds = ways.asked, not EXTENSIONS, ROW_KINDS
    records: list[bytes | None] = []
    for new, record in zip(given, before, strict=True):
        if record is None:
            value = step(new, None)
        elif (
            record[0] != PICKLE
            or STACK_GLOBAL in record
            or (LINE_END in record and record.count(LINE_END) > 1)
            or EXTENSIONS
        ):
            value = step(new, decode(record))
        else:
            try:
                old = loads(record)
            except Exception as error:
                raise undecodable(record, error) from error
            value = step(new, old)
        if value is None:
            records.append(None)
        elif asked or not is_known or type(value) in row_kinds:
            records.append(raw := encode(value))
            if raw[0] not in ROWS:  # a tuple of other things, as those after it are mostly too
                row_kinds = _NUMBERS
        else:
            try:
                raw = dumps(value, PROTOCOL)
            except Exception:
                raw = encode(value)  # which says what is wrong
            records.append(encode(value) if STACK_GLOBAL in raw else raw)
    return records


def _or_none(encode: Encoder, value: Any) -> bytes | None:
    return None if value is None else encode(value)

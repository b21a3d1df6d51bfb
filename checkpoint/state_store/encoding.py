"""Plain data and instances of classes of data encoded, each kind by the cheapest way for it."""

from __future__ import annotations

import pickle
from typing import Any

from checkpoint.state_store.plain_pickles import (
    EXTENSIONS,
    PROTOCOL,
    STACK_GLOBAL,
    NotPlainError,
    PlainPickler,
)
from checkpoint.state_store.rows import (
    NUMBER,
    ROW_KINDS,
    TUPLE,
    encode_row,
    encode_rows,
    layout_of,
)
from checkpoint.state_store.shapes import Shape
from checkpoint.state_store.value_codec import Encoder, ManyEncoder

PICKLE = 0x80  # how every pickle begins that a codec writes
ROWS = (TUPLE, NUMBER)
_MAX_WAYS = 256
SCALARS = frozenset((int, float, bool, complex, str, bytes, type(None)))
_CLASS = bytes((STACK_GLOBAL,))


class Ways:
    """How values are written, by their class, or by those of the items of a tuple.

    They are asked for where a class that a pickle must name has been seen; before that values are
    plain, mostly.

    Args:
        pickler: writes what only it can, and knows the classes.
    """

    def __init__(self, pickler: PlainPickler) -> None:
        self.careful = pickler.encode
        self.asked = pickler.asked
        self._known = pickler.known
        self._ways: dict[Any, Encoder] = {}
        self._shapes: dict[Any, Shape | None] = {}
        self._encode = self.encoder()

    def encoder(self) -> Encoder:
        """Return a function for one writer."""
        asked, dumps = self.asked, pickle.dumps
        ways, new_way = self._ways, self._new_way

        def encode(value: Any) -> bytes:
            kind = type(value)
            if not asked and not EXTENSIONS:
                if kind in ROW_KINDS:
                    row = encode_row(value)
                    if row is not None:
                        return row
                try:
                    raw = dumps(value, PROTOCOL)
                except Exception:
                    raw = _CLASS  # a class may be why
                if STACK_GLOBAL not in raw:
                    return raw
            by = tuple(map(type, value)) if kind is tuple else kind
            return (ways.get(by) or new_way(by))(value)

        return encode

    def shape(self, by: Any) -> Shape | None:
        """Return the shape of values, None if they have none."""
        if by not in self._shapes:
            if len(self._shapes) >= _MAX_WAYS:
                self._shapes.clear()
            self._shapes[by] = self._known.shape(by)
        return self._shapes[by]

    def _new_way(self, by: Any) -> Encoder:
        if len(self._ways) >= _MAX_WAYS:
            self._ways.clear()
        way = self._ways[by] = self._way(by)
        return way

    def _way(self, by: Any) -> Encoder:
        is_tuple = isinstance(by, tuple)
        kinds = by if is_tuple else (by,)
        if layout_of(kinds, TUPLE if is_tuple else NUMBER) is not None:
            return self._row
        if SCALARS.issuperset(kinds):
            return dumped
        shape = self.shape(by)
        return self.careful if shape is None else self._shaped(shape)

    def _row(self, value: Any) -> bytes:
        return encode_row(value) or dumped(value)

    def _shaped(self, shape: Shape) -> Encoder:
        (head, flat), encode, careful = shape, self._encode, self.careful

        def encode_shape(value: Any) -> bytes:
            try:
                return head + encode(flat(value))
            except (LookupError, AttributeError, NotPlainError, RecursionError):
                return careful(value)  # which finds another way, or says what is wrong

        return encode_shape


def dumped(value: Any) -> bytes:
    """Return the pickle of what is plain."""
    return pickle.dumps(value, PROTOCOL)


def many_encoder_of(ways: Ways) -> ManyEncoder:
    """Return a function for one writer that encodes many values."""
    encode, dumps = ways.encoder(), pickle.dumps

    def encode_many(values: list[Any]) -> list[bytes]:
        rows = encode_rows(values)
        if rows is not None:
            return rows
        if not values:
            return []
        shaped = encode_shapes(values)
        if shaped is not None:
            return shaped
        if ways.asked or EXTENSIONS or encode_row(values[0]) is not None:
            return list(map(encode, values))
        try:  # where the first is no row, mostly none is
            raws = [dumps(value, PROTOCOL) for value in values]
        except Exception:
            return list(map(encode, values))  # which says what is wrong
        return [
            encode(value) if STACK_GLOBAL in raw else raw
            for value, raw in zip(values, raws, strict=True)
        ]

    def encode_shapes(values: list[Any]) -> list[bytes] | None:
        """Return values of one shape as records, None if they are not all of one."""
        is_tuple = type(values[0]) is tuple
        by: Any = tuple(map(type, values[0])) if is_tuple else type(values[0])
        shape = ways.shape(by)
        if shape is None or set(map(type, values)) != {type(values[0])}:
            return None
        if is_tuple and {tuple(map(type, value)) for value in values} != {by}:
            return None
        try:
            flats = list(map(shape.flat, values))
            rows = encode_rows(flats)
            if rows is not None:
                return [shape.head + raw for raw in rows]
            if EXTENSIONS:
                return None
            raws = [dumps(flat, PROTOCOL) for flat in flats]
        except Exception:
            return None  # encode finds another way, or says what is wrong
        return [
            shape.head + raw
            if STACK_GLOBAL not in raw or SCALARS.issuperset(map(type, flat))
            else encode(value)
            for value, flat, raw in zip(values, flats, raws, strict=True)
        ]

    return encode_many

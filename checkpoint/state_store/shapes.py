"""Compact encodings of values: rows of numbers, and shapes of data classes.

A row takes half the time of a pickle, and many rows of one layout are read in one call::

    01 | B fields | a letter for each field | numbers, eight bytes each | a dot     a tuple
    02 | 01       | a letter                | number                    | a dot     a number

Letters are ``q`` for int and ``d`` for float, as in ``struct``; numbers are little-endian. No
pickle begins with these bytes. Ints beyond 64 bits, bools and longer tuples are not rows.

A shape is an instance of a data class, or a tuple with such instances as items. It is written as
one flat tuple of all fields, after the digest of its schema, which is stored once per version
(:class:`Shapes`)::

    03 | digest, eight bytes | record of the flat tuple

An instance anywhere else in a value is a persistent id of its pickle. An instance that occurs
twice is restored as two.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any, NamedTuple

from checkpoint.state_store.classes import Classes, Maker, Take, Written, schema_of_text

ROWS = TUPLE, NUMBER = 1, 2
MAX_FIELDS = 32
DOT = b"."

_LETTERS: dict[type, bytes] = {int: b"q", float: b"d"}


class Layout(NamedTuple):
    """The layout of rows with one head."""

    head: bytes
    size: int
    pack: Callable[..., bytes]
    unpack: Callable[[bytes], tuple[Any, ...]]


@lru_cache(maxsize=256)
def layout_of(kinds: tuple[type, ...], tag: int) -> Layout | None:
    """Return the layout of rows whose fields have these types."""
    letters = [_LETTERS.get(kind) for kind in kinds]
    if None in letters or not 1 <= len(kinds) <= MAX_FIELDS:
        return None
    return _layout(bytes((tag, len(kinds))) + b"".join(letters))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _layout(head: bytes) -> Layout:
    """Return the layout of rows with this head. Raises ValueError."""
    letters = head[2:].decode("ascii", "replace")
    is_number = head[0] == NUMBER and len(letters) == 1
    if not (is_number or head[0] == TUPLE) or len(letters) != head[1] or set(letters) - set("qd"):
        raise ValueError(f"{head!r} is not the head of a row")
    packed = struct.Struct(f"<{len(head)}s{letters}c")
    unpacked = struct.Struct(f"<{len(head)}x{letters}")
    return Layout(head, packed.size, packed.pack, unpacked.unpack_from)


@lru_cache(maxsize=256)
def behind(outer: bytes, layout: Layout) -> Layout:
    """Return a layout that packs further bytes in front of each row."""
    head = outer + layout.head
    pack = struct.Struct(f"<{len(head)}s{layout.head[2:].decode()}c").pack
    return layout._replace(head=head, pack=pack)


@lru_cache(maxsize=256)
def _unpacker(skip: int, head: bytes, size: int) -> Callable[[bytes], Iterator[tuple[Any, ...]]]:
    """Return a reader of consecutive rows, each in *size* bytes together with its surroundings."""
    start = skip + len(head)
    rest = size - start - 8 * head[1]
    return struct.Struct(f"<{start}x{head[2:].decode()}{rest}x").iter_unpack


def pack_rows(layout: Layout, columns: Iterable[Sequence[Any]]) -> list[bytes] | None:
    """Return rows of one layout, given a column for each field; None if an int is too large."""
    try:
        return list(map(layout.pack, repeat(layout.head), *columns, repeat(DOT)))
    except struct.error:
        return None


def decode_row(record: bytes) -> Any:
    """Return the value of a row; bytes after it are ignored.

    Raises ValueError, struct.error or IndexError.
    """
    layout = _layout(record[: 2 + record[1]])
    row = layout.unpack(record)
    if record[layout.size - 1] != DOT[0]:
        raise ValueError(f"a row does not end after {layout.size} bytes")
    return row if record[0] == TUPLE else row[0]


def decode_rows(records: Sequence[bytes], skip: int = 0) -> list[Any] | None:
    """Return the values of rows, None unless all have one layout and one size."""
    first = records[0] if records else b""
    if len(first) < skip + 2 or first[skip] not in ROWS:
        return None
    head, size = first[skip : skip + 2 + first[skip + 1]], len(first)
    try:
        layout = _layout(head)
    except ValueError:
        return None
    if skip + layout.size > size or set(map(len, records)) != {size}:
        return None
    whole = b"".join(records)
    same = first[: skip + len(head)]
    for at, byte in (*enumerate(same), (skip + layout.size - 1, DOT[0])):
        if whole[at::size].count(byte) != len(records):
            return None
    rows = _unpacker(skip, head, size)(whole)
    return list(rows) if head[0] == TUPLE else list(chain.from_iterable(rows))


SHAPE = 3
"""The first byte of the record of a shape."""

_SHAPE_BYTE = bytes((SHAPE,))
_DIGEST_BYTES = 8
HEAD_BYTES = len(_SHAPE_BYTE) + _DIGEST_BYTES
_NAME = "shape "
_MAX_CHARACTERS = 30_000  # of all schemas, as every file of the store repeats them in its header
_TUPLE, _NEXT = "(", "\n"

Flat = tuple[Any, ...]


class Shapes:
    """The schemas of a version's shapes, by digest; they are part of its stored codec.

    Records hold a digest, not a number, so a record that is damaged or belongs to another version
    is never decoded as another class.
    """

    def __init__(self, codec: Mapping[str, str] | None = None) -> None:
        self._schemas = {name: text for name, text in (codec or {}).items() if _is_name(name)}

    def to_codec(self) -> Mapping[str, str]:
        """Return the entries to store in the codec of a version."""
        return self._schemas

    def add(self, schema: str) -> bytes | None:
        """Return the head of records with a schema, None if the codec has no room for it."""
        head = _head(schema)
        if _name(head) not in self._schemas:
            if sum(map(len, self._schemas.values())) + len(schema) > _MAX_CHARACTERS:
                return None
            self._schemas[_name(head)] = schema
        return head

    def schema(self, head: bytes) -> str:
        """Return the schema of records with a head. Raises ValueError."""
        schema = self._schemas.get(_name(head))
        if schema is None or _head(schema) != head:
            raise ValueError(f"the schema of its {_name(head)} is not stored with the version")
        return schema


def _head(schema: str) -> bytes:
    return _SHAPE_BYTE + blake2b(schema.encode(), digest_size=_DIGEST_BYTES).digest()


def _name(head: bytes) -> str:
    """Return the name of a schema in the codec."""
    return _NAME + head[len(_SHAPE_BYTE) :].hex()


def _is_name(name: str) -> bool:
    return name.startswith(_NAME)


class Shape(NamedTuple):
    """The encoding of values of one shape.

    Args:
        head: the first bytes of their records.
        flat: ``value -> its fields``; raises ``LookupError`` or ``AttributeError`` for a value
            whose instances have other attributes or other classes.
    """

    head: bytes
    flat: Take


def shape_of(
    parts: list[Written | None], kinds: tuple[type, ...], shapes: Shapes, *, is_tuple: bool
) -> Shape | None:
    """Return the shape of values with these parts, None if they have none."""
    known = [part for part in parts if part is not None]
    if not known or any(part.schema is None for part in known):
        return None
    items = [part.schema.to_text() if part and part.schema else "" for part in parts]
    head = shapes.add((_TUPLE if is_tuple else "") + _NEXT.join(items))
    if head is None:
        return None
    return Shape(head, _flat_tuple(parts, kinds) if is_tuple else known[0].take)


def _flat_tuple(parts: list[Written | None], kinds: tuple[type, ...]) -> Take:
    """Return a function for the fields of a tuple that contains instances."""
    width = len(parts)
    places = [
        (at, part.take, kind)
        for at, (part, kind) in enumerate(zip(parts, kinds, strict=True))
        if part is not None
    ]
    (first, take_first, first_kind), *further = reversed(places)

    def flat(value: Flat) -> Flat:
        item = value[first]
        if len(value) != width or type(item) is not first_kind:
            raise LookupError
        fields = take_first(item) + value[first + 1 :]
        if first:
            fields = value[:first] + fields
        for at, take, kind in further:  # backwards, so that places stay valid
            item = value[at]
            if type(item) is not kind:
                raise LookupError
            fields = fields[:at] + take(item) + fields[at + 1 :]
        return fields

    return flat


def head_of(record: bytes) -> bytes:
    """Return the head of the record of a shape."""
    if len(record) <= HEAD_BYTES:
        raise ValueError(f"the record of a shape ends after {len(record)} bytes")
    return record[:HEAD_BYTES]


class ShapeReader(NamedTuple):
    """The decoding of values of one shape."""

    one: Callable[[Flat], Any]
    many: Callable[[list[Flat]], list[Any]]


def shape_reader(schema: str, classes: Classes) -> ShapeReader:
    """Return how values of a schema are restored. Raises ValueError or StoredClassError."""
    is_tuple = schema[:1] == _TUPLE
    items = schema[1:].split(_NEXT) if is_tuple else [schema]
    parts: list[tuple[int, Maker | None]] = []  # field count, and maker if it is an instance
    for item in items:
        found = schema_of_text(item) if item or not is_tuple else None
        width = 1 if found is None else len(found.fields) + len(found.others)
        parts.append((width, None if found is None else classes.maker(found)))
    return _reader(parts, is_tuple=is_tuple)


def _reader(parts: list[tuple[int, Maker | None]], *, is_tuple: bool) -> ShapeReader:
    width = sum(count for count, _ in parts)

    def one(flat: Flat) -> Any:
        if type(flat) is not tuple or len(flat) != width:
            raise ValueError(f"{type(flat).__name__} instead of {width} fields")
        items: list[Any] = []
        start = 0
        for count, maker in parts:
            end = start + count
            items.append(flat[start] if maker is None else maker.one(*flat[start:end]))
            start = end
        return tuple(items) if is_tuple else items[0]

    def many(flats: list[Flat]) -> list[Any]:
        columns = list(zip(*flats, strict=True)) if set(map(type, flats)) == {tuple} else []
        if not width or len(columns) != width:
            return list(map(one, flats))
        items: list[Any] = []
        start = 0
        for count, maker in parts:
            end = start + count
            if maker is None:
                items.append(columns[start])
            elif count:
                items.append(maker.many(columns[start:end]))
            else:
                items.append([maker.one() for _ in flats])
            start = end
        return list(zip(*items, strict=True)) if is_tuple else items[0]

    return ShapeReader(one, many)

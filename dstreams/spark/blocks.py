"""Columnar blocks: serialized pairs, the keys in one column and the values in another.

Two pickled columns cost less than half of the same pairs pickled one by one, and a block whose
values change keeps the bytes of its keys. State is kept in blocks between batches, and records are
shuffled in them.

>>> from dstreams.spark.blocks import Side, Block, encode_block
>>> block = encode_block(Side.BATCH, ["a", "b"], [1, 2])
>>> Block(block).keys(), Block(block).values()
(['a', 'b'], [1, 2])

:mod:`checkpoint.log.state_files` has the layout. A block has the form ``SEPARATE`` if several
rows share a mutable object, which a common pickle would restore as one object, and the form
``FIELDS`` if all values are tuples of the same length with plain values.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from itertools import chain, islice
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, TypeAlias
from uuid import UUID

from pyspark import cloudpickle

from checkpoint import PairBlock, PairForm, pair_header, rows_of_fields

_MAX_FIELDS, _MAX_DEPTH = 32, 3
_PROTOCOL: Final = 5
_NUMBERS: Final = (int, float, bool, complex, Decimal, Fraction)
_TIMES: Final = (date, datetime, time, timedelta, timezone)
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType)
_ATOMIC: Final = frozenset((*_NUMBERS, *_TIMES, *_FUNCTIONS, str, bytes, UUID, type(None)))

TARGET_BYTES: Final = 1 << 20
"""Target size of a block."""

MAX_BYTES: Final = 4 * TARGET_BYTES
"""Maximum size of a block of more than one row."""

MAX_ROWS: Final = 10_000
"""Maximum number of rows of a block, at which the cost of the block itself is negligible."""


class Side(IntEnum):
    """The kind of values in a block; OUTPUT occurs only in Arrow blocks."""

    BATCH = 0
    STATE = 1
    OUTPUT = 2


class Block(PairBlock):
    """A view of an encoded block, whose columns are unpickled on demand."""

    __slots__ = ()

    @property
    def side(self) -> Side:
        return Side(self.side_number)

    def keys(self) -> list[Any]:
        return pickle.loads(self.key_column)  # type: ignore[no-any-return]

    def values(self) -> list[Any]:
        """Unpickle the values; they share no mutable object."""
        return rows_of_fields(self.column())

    def column(self) -> Column:
        """Unpickle the values as a list, or as the columns of their fields."""
        values = pickle.loads(self.value_column)
        if self.form is PairForm.SEPARATE:
            return list(map(pickle.loads, values))
        return values  # type: ignore[no-any-return]


def encode_block(
    side: Side,
    keys: list[Any],
    values: Column,
    key_column: memoryview | None = None,
    kinds: set[type] | None = None,
) -> bytes:
    """Encode two columns of the same length.

    A *key_column* of an earlier block replaces *keys*; *kinds* are the types of the values, if the
    caller knows them.
    """
    try:
        form, column = _form_of(values, kinds)
        value_bytes = _dumps(column)
        key_bytes = _dumps(keys) if key_column is None else key_column
    except Exception as error:
        raise _explain_unpicklable(
            keys if key_column is None else pickle.loads(key_column), rows_of_fields(values)
        ) from error
    rows = len(keys) if isinstance(values, tuple) else len(values)
    return b"".join((pair_header(side, form, rows, len(key_bytes)), key_bytes, value_bytes))


def _form_of(values: Column, kinds: set[type] | None) -> tuple[PairForm, Column]:
    """Return the form of the values in a block, and the object to pickle."""
    if isinstance(values, tuple):
        fields = _plain_fields(values, 0)
        if fields is not None:
            return PairForm.FIELDS, fields
        values = rows_of_fields(values)
    kinds = kinds or set(map(type, values))
    if not _ATOMIC.issuperset(kinds):
        fields = _fields_of(values, kinds)
        if fields is not None:
            return PairForm.FIELDS, fields
        if _share_a_mutable(values):
            return PairForm.SEPARATE, list(map(_dumps, values))
    return PairForm.COMMON, values


def _fields_of(values: list[Any], kinds: set[type], depth: int = 0) -> Column | None:
    """Return tuples as columns, None if their lengths differ or they hold other than plain values.

    Columns are pickled in half the time of tuples.
    """
    if kinds <= _ATOMIC:
        return values
    if kinds != {tuple} or depth == _MAX_DEPTH:
        return None
    if len(values) > 1 and values[0] is values[-1]:  # a repeated tuple is pickled only once
        return None
    width = len(values[0])
    if not 1 <= width <= _MAX_FIELDS or set(map(len, values)) != {width}:
        return None
    return _plain_fields(tuple(map(list, zip(*values, strict=True))), depth)


def _plain_fields(columns: tuple[Column, ...], depth: int) -> Column | None:
    """Split the columns of nested tuples into columns too, as :func:`_fields_of` does."""
    fields: list[Column] = []
    for column in columns:
        if isinstance(column, tuple):
            field = _plain_fields(column, depth + 1)
        else:
            field = _fields_of(column, set(map(type, column)), depth + 1)
        if field is None:
            return None
        fields.append(field)
    return tuple(fields)


def _dumps(value: Any) -> bytes:
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception:  # a class of __main__, which workers cannot import
        return cloudpickle.dumps(value, _PROTOCOL)  # type: ignore[no-any-return]


class UnpicklableError(TypeError):
    """A key or value cannot be pickled."""


def _explain_unpicklable(keys: list[Any], values: list[Any]) -> UnpicklableError:
    for key, value in zip(keys, values, strict=True):
        for name, part in (("value", value), ("key", key)):
            try:
                _dumps(part)
            except Exception as error:
                return UnpicklableError(
                    f"the {name} of type {type(part).__name__} of key {shorten(key)} cannot be "
                    f"pickled ({error}); use plain data"
                )
    return UnpicklableError("the values of a block cannot be pickled together")


def _share_a_mutable(values: list[Any]) -> bool:
    """Return whether a mutable object can be reached from *values* on two paths."""
    above: list[set[int]] = []
    level = values
    while True:
        kinds = set(map(type, level))
        # Classes and Enum members are pickled as names.
        fixed = {kind for kind in kinds if kind in _ATOMIC or issubclass(kind, (type, Enum))}
        if fixed == kinds:
            return False
        if fixed:
            level = [value for value in level if type(value) not in fixed]
        ids = set(map(id, level))
        if len(ids) < len(level) or not all(map(ids.isdisjoint, above)):
            if not all(map(is_immutable, _repeated(level, above))):
                return True
            level = list({id(value): value for value in level}.values())
        above.append(ids)
        # The objects that pickling these values would visit next, found without Python code.
        level = gc.get_referents(*level)


def _repeated(level: list[Any], above: list[set[int]]) -> Iterator[Any]:
    seen = set().union(*above)
    for value in level:
        if id(value) in seen:
            yield value
        seen.add(id(value))


def is_immutable(value: Any) -> bool:
    """Return whether a value and all its parts are immutable; a named tuple may be."""
    kind = type(value)
    if kind in _ATOMIC:
        return True
    is_tuple = isinstance(value, tuple) and not kind.__dictoffset__
    return (is_tuple or kind is frozenset) and all(map(is_immutable, value))


class BlockBuilder:
    """Collects pairs into blocks of about :data:`TARGET_BYTES`.

    *limit*, the number of rows of the next block, follows from the row sizes of earlier blocks.
    """

    def __init__(self, side: Side, max_rows: int = MAX_ROWS) -> None:
        self._side = side
        self._max_rows = max_rows
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._fields: tuple[list[Any], ...] = ()  # replaces _values after extend_fields
        self.limit = 64

    def add(self, key: Any, value: Any) -> bytes | None:
        """Add a pair; return a block if it is full."""
        self._keys.append(key)
        self._values.append(value)
        return self._encode() if len(self._keys) >= self.limit else None

    def extend(self, keys: Iterable[Any], values: Iterable[Any]) -> Iterator[bytes]:
        """Add two columns of the same length; yield the blocks that are full."""
        self._keys.extend(keys)
        self._values.extend(values)
        while len(self._keys) >= self.limit:
            yield self._encode()

    def extend_fields(self, keys: Iterable[Any], *fields: Iterable[Any]) -> Iterator[bytes]:
        """Add keys, and the columns of the fields of their values; do not mix with *extend*."""
        self._fields = self._fields or tuple([] for _ in fields)
        self._keys.extend(keys)
        for column, field in zip(self._fields, fields, strict=True):
            column.extend(field)
        while len(self._keys) >= self.limit:
            yield self._encode()

    def flush(self) -> Iterator[bytes]:
        while self._keys:
            yield self._encode()

    def _encode(self) -> bytes:
        rows = min(self.limit, len(self._keys))
        block = self._block(rows)
        while len(block) > MAX_BYTES and rows > 1:
            rows = TARGET_BYTES * rows // len(block) or 1
            block = self._block(rows)
        for column in (self._keys, self._values, *self._fields):
            del column[:rows]
        fitting = TARGET_BYTES * rows // len(block)
        # Grow in steps: the first rows may be much smaller than later ones.
        self.limit = max(1, min(self._max_rows, fitting, self.limit * 16))
        return block

    def _block(self, rows: int) -> bytes:
        fields = tuple(column[:rows] for column in self._fields)
        return encode_block(self._side, self._keys[:rows], fields or self._values[:rows])


def shorten(value: Any, limit: int = 80) -> str:
    """Return the repr of a user's object, shortened for a message; never raises."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


Column: TypeAlias = "list[Any] | tuple[Column, ...]"
"""Values in a list; or, if each value is a tuple, the columns of its fields."""

Columns: TypeAlias = "tuple[list[Any], Column]"
"""The keys and the values of some pairs."""

CHUNK_ROWS = 1000
"""Default number of rows in a chunk of columns."""


class PairColumns(Iterator[tuple[Any, Any]]):
    """Pairs that can be read once, one by one or in columns."""

    def __init__(self, columns: Iterable[Columns]) -> None:
        self._columns = iter(columns)
        # No generator over rows: they come at the speed of zip.
        self._pairs = chain.from_iterable(
            zip(first, rows_of_fields(second), strict=True) for first, second in self._columns
        )

    def columns(self) -> Iterator[Columns]:
        """Return the columns of all pairs that were not read yet."""
        return self._columns

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs

    def __next__(self) -> tuple[Any, Any]:
        return next(self._pairs)


def columns_of(pairs: Iterable[Any], most_rows: int = CHUNK_ROWS) -> Iterator[Columns]:
    """Return pairs in columns: those of PairColumns, or else of *most_rows* at a time."""
    return pairs.columns() if isinstance(pairs, PairColumns) else _gathered(iter(pairs), most_rows)


def _gathered(pairs: Iterator[Any], most_rows: int) -> Iterator[Columns]:
    while chunk := list(islice(pairs, most_rows)):
        first, second = map(list, zip(*chunk, strict=True))
        yield first, second


def two_columns(column: Column) -> tuple[list[Any], Column]:
    """Return the columns of the fields of values that are pairs."""
    if isinstance(column, tuple):
        first, second = column
        return first, second  # type: ignore[return-value]
    first, second = map(list, zip(*column, strict=True)) if column else ([], [])
    return first, second

"""Columnar blocks: pairs in bytes, the keys in one column and the values in another.

Two pickled columns cost less than half of what the same pairs cost one by one, and a block whose
values change keeps the bytes of its keys. State lies in such blocks between batches, and records
are shuffled in them.

>>> from dstreams.spark.blocks import Side, Block, encode_block
>>> block = encode_block(Side.BATCH, ["a", "b"], [1, 2])
>>> Block(block).keys(), Block(block).values()
(['a', 'b'], [1, 2])

:mod:`checkpoint.log.block_formats` has the layout. A block has the form ``SEPARATE`` when several
rows hold one mutable object, which a common pickle would return as one object again, and the form
``FIELDS`` when all values are tuples of one length that hold plain values only.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final
from uuid import UUID

from pyspark import cloudpickle

from checkpoint import PairBlock, PairForm, pair_header, rows_of_fields
from dstreams.spark.pair_columns import Column

_MAX_FIELDS, _MAX_DEPTH = 32, 3
_PROTOCOL: Final = 5
_NUMBERS: Final = (int, float, bool, complex, Decimal, Fraction)
_TIMES: Final = (date, datetime, time, timedelta, timezone)
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType)
_ATOMIC: Final = frozenset((*_NUMBERS, *_TIMES, *_FUNCTIONS, str, bytes, UUID, type(None)))

TARGET_BYTES: Final = 1 << 20
"""Size that a block should have."""

MAX_BYTES: Final = 4 * TARGET_BYTES
"""Size that a block of more than one row has at most."""

MAX_ROWS: Final = 10_000
"""Rows a block has at most: enough to make the cost of a block vanish behind that of its rows."""


class Side(IntEnum):
    """What the values of a block are: new values of the batch, states, or what a step gave besides.

    Blocks of pairs are of the first two alone.
    """

    BATCH = 0
    STATE = 1
    OUTPUT = 2


class Block(PairBlock):
    """A decoded view of one block; the columns are unpickled when they are asked for."""

    __slots__ = ()

    @property
    def side(self) -> Side:
        return Side(self.side_number)

    def keys(self) -> list[Any]:
        return pickle.loads(self.key_column)  # type: ignore[no-any-return]

    def values(self) -> list[Any]:
        """Unpickle the values, each a private copy."""
        return rows_of_fields(self.column())

    def column(self) -> Column:
        """Unpickle the values; where they lie in columns of fields, these."""
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

    A *key_column*, of an earlier block, stands in place of the *keys*; *kinds* are the types of the
    values, where the caller knows them.
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
    """Return the form in which values lie in a block, and what is pickled of them."""
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
    """Return tuples as columns, None if they differ in length or hold anything but plain values.

    Such columns are pickled in half the time.
    """
    if kinds <= _ATOMIC:
        return values
    if kinds != {tuple} or depth == _MAX_DEPTH:
        return None
    if (
        len(values) > 1 and values[0] is values[-1]
    ):  # one tuple again and again: a pickle has it once
        return None
    width = len(values[0])
    if not 1 <= width <= _MAX_FIELDS or set(map(len, values)) != {width}:
        return None
    return _plain_fields(tuple(map(list, zip(*values, strict=True))), depth)


def _plain_fields(columns: tuple[Column, ...], depth: int) -> Column | None:
    """Return the columns of the fields of tuples, each taken apart in turn; None as above."""
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
    except Exception:  # a class of __main__, which has another name in a worker
        return cloudpickle.dumps(value, _PROTOCOL)  # type: ignore[no-any-return]


class UnpicklableError(TypeError):
    """A key or value that cannot travel."""


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
    """Whether some object that can be changed is reached twice, by any way, from *values*."""
    above: list[set[int]] = []
    level = values
    while True:
        kinds = set(map(type, level))
        # Classes and members of an Enum are pickled by their name.
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
        # What pickling these values would visit next, at the speed of C.
        level = gc.get_referents(*level)


def _repeated(level: list[Any], above: list[set[int]]) -> Iterator[Any]:
    seen = set().union(*above)
    for value in level:
        if id(value) in seen:
            yield value
        seen.add(id(value))


def is_immutable(value: Any) -> bool:
    """Return whether nothing can change a value, or a part of it."""
    return type(value) in _ATOMIC or (
        type(value) in (tuple, frozenset) and all(map(is_immutable, value))
    )


class BlockBuilder:
    """Collects pairs into blocks of about :data:`TARGET_BYTES`.

    It learns the size of a row from the blocks made so far; *limit* is the number of rows of the
    next.
    """

    def __init__(self, side: Side, max_rows: int = MAX_ROWS) -> None:
        self._side = side
        self._max_rows = max_rows
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._fields: tuple[list[Any], ...] = ()  # of values, where they are added so
        self.limit = 64

    def add(self, key: Any, value: Any) -> bytes | None:
        """Add one pair; returns a block when one is full."""
        self._keys.append(key)
        self._values.append(value)
        return self._encode() if len(self._keys) >= self.limit else None

    def extend(self, keys: Iterable[Any], values: Iterable[Any]) -> Iterator[bytes]:
        """Add two columns of the same length; yields each block that gets full."""
        self._keys.extend(keys)
        self._values.extend(values)
        while len(self._keys) >= self.limit:
            yield self._encode()

    def extend_fields(self, keys: Iterable[Any], *fields: Iterable[Any]) -> Iterator[bytes]:
        """Add keys, and values by the columns of their fields, as with all values of a builder."""
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
        # Grow by steps: the first rows may be much smaller than those to come.
        self.limit = max(1, min(self._max_rows, fitting, self.limit * 16))
        return block

    def _block(self, rows: int) -> bytes:
        fields = tuple(column[:rows] for column in self._fields)
        return encode_block(self._side, self._keys[:rows], fields or self._values[:rows])


def shorten(value: Any, limit: int = 80) -> str:
    """Return the repr of a user's object, short enough for a message, and never fail."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."

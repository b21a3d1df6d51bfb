"""Values as bytes: plain data and data classes by default, any object with ``PickleValues``.

``DataValues`` writes numbers and tuples of numbers as rows and instances of data classes as shapes
(:mod:`checkpoint.state_store.shapes`), and everything else as restricted pickles
(:mod:`checkpoint.state_store.plain_pickles`). It reads nothing else, so reading a checkpoint runs
no code. ``PickleValues`` trusts everyone who can write the checkpoint.

Every encoding ends with a dot, and decoding ignores what follows it: a record holds more.
"""

from __future__ import annotations

import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, ClassVar, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from checkpoint.errors import CheckpointError
from checkpoint.state_store.classes import LOADED, Classes, StoredClassError, Take, schema_of_id
from checkpoint.state_store.plain_pickles import (
    EXTENSIONS,
    LINE_END,
    PROTOCOL,
    STACK_GLOBAL,
    NotPlainError,
    PlainPickler,
    careful_loads,
)
from checkpoint.state_store.shapes import (
    DOT,
    NUMBER,
    ROWS,
    SHAPE,
    TUPLE,
    Layout,
    Shape,
    Shapes,
    behind,
    decode_row,
    decode_rows,
    head_of,
    layout_of,
    pack_rows,
    shape_reader,
)

MAX_VALUE_BYTES = 32 << 20
_MAX_KNOWN = 256
_ANY_CLASS = bytes((STACK_GLOBAL,))
_SHAPE_BYTE = bytes((SHAPE,))
_PICKLE = 0x80  # the first byte of every pickle that a codec writes
_SCALARS = frozenset((int, float, bool, complex, str, bytes, type(None)))
# Pickled without the name of a class, unless they contain one.
_NAMELESS = _SCALARS | {tuple, list, dict, set, frozenset, bytearray}

Encoder = Callable[[Any], bytes]
ManyEncoder = Callable[[Iterable[Any]], "list[bytes | None]"]
Decoder = Callable[[bytes], Any]
ManyDecoder = Callable[[Sequence["bytes | None"]], Iterable[Any]]


class UndecodableValueError(CheckpointError, ValueError):
    """Bytes that the codec cannot decode."""


class ValueCodec(ABC):
    """Converts values to bytes and back. Codecs are small and can be pickled.

    The methods take the shapes of the version; an encoder adds to them.
    """

    name: ClassVar[str]
    """The name of the codec on disk."""

    classes: Classes
    """The classes whose instances may be restored."""

    @abstractmethod
    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function for one writer. It raises ``TypeError`` for values it cannot encode."""

    @abstractmethod
    def decoder(self, shapes: Shapes) -> Decoder:
        """Return a function that makes a new value at each call.

        It raises :class:`UndecodableValueError` for other bytes, and :class:`StoredClassError` for
        an instance of a class that is gone or has changed.
        """

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function for one writer that encodes each value before it pulls the next.

        None, for a missing value, stays None.
        """
        encode = self.encoder(shapes)
        return lambda values: [None if value is None else encode(value) for value in values]

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return a function that decodes many records, at once or lazily; None stays None."""
        decode = self.decoder(shapes)
        return lambda records: _each(records, decode)


def _each(records: Iterable[bytes | None], decode: Decoder) -> Iterator[Any]:
    return (None if record is None else decode(record) for record in records)


@dataclass(frozen=True)
class PickleValues(ValueCodec):
    """Codec for any object: pickle, and cloudpickle for what pickle rejects.

    Everyone who can write the checkpoint can run code where it is read. An instance of a class that
    is defined in the program itself is stored with its class, which is slow and large, and ties the
    state to that version of the program.
    """

    name = f"pickle-{PROTOCOL}"
    classes = LOADED

    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function that encodes a value."""
        dumps = pickle.dumps

        def encode(value: Any) -> bytes:
            try:
                return dumps(value, PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError):
                return cloudpickle.dumps(value, PROTOCOL)  # type: ignore[no-any-return]

        return encode

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return a function that decodes a value."""

        def decode(record: bytes) -> Any:
            try:
                return pickle.loads(record)  # noqa: S301
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode


@dataclass(frozen=True)
class DataValues(ValueCodec):
    """Codec for plain data and for instances of data classes.

    Plain data are None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
    frozenset, date, datetime, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, UUID,
    OrderedDict, defaultdict with a builtin factory, Counter and deque, and containers of these.
    Data classes are dataclasses, attrs classes, named tuples, enums and the Row of Spark.

    Args:
        classes: the data classes that the program registers.
    """

    name = "data-1"
    classes: Classes = field(default_factory=Classes)

    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function that encodes a value."""
        return _DataEncoder(self.classes, shapes).encode

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function that encodes many values; see :meth:`ValueCodec.many_encoder`."""
        return _DataEncoder(self.classes, shapes).encode_many

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return a function that decodes a value."""
        return _DataDecoder(self.classes, shapes).decode

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return a function that decodes many records; see :meth:`ValueCodec.many_decoder`."""
        return _DataDecoder(self.classes, shapes).decode_many


class _Run(NamedTuple):
    """The common encoding of values that are like the first of a run.

    Args:
        kind: their class.
        head: the first bytes of their records.
        take: returns the fields of a value; None if the value itself is written.
        fields: the classes of the fields.
        layout: how the fields are packed; None if they are pickled.
    """

    kind: type
    head: bytes
    take: Take | None
    fields: list[type]
    layout: Layout | None


class _DataEncoder:
    """Picks the cheapest encoding for the class of a value, or the classes of a tuple's items."""

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        self._pickler = PlainPickler(classes, shapes)
        self._encoders: dict[Any, Encoder] = {}
        self.encode = self._encoder()

    def _encoder(self) -> Encoder:
        encoders, add_encoder = self._encoders, self._add_encoder

        def encode(value: Any) -> bytes:
            kind = type(value)
            by = tuple(map(type, value)) if kind is tuple else kind
            return (encoders.get(by) or add_encoder(by))(value)

        return encode

    def _add_encoder(self, by: Any) -> Encoder:
        if len(self._encoders) >= _MAX_KNOWN:
            self._encoders.clear()
        encoder = self._encoders[by] = self._new_encoder(by)
        return encoder

    def _new_encoder(self, by: Any) -> Encoder:
        is_tuple = isinstance(by, tuple)
        kinds = by if is_tuple else (by,)
        layout = layout_of(kinds, TUPLE if is_tuple else NUMBER)
        if layout is not None:
            return _row_encoder(layout, is_tuple=is_tuple)
        if _SCALARS.issuperset(kinds):
            return _dumped
        shape = self._pickler.shape(by)
        if shape is not None:
            return self._shape_encoder(shape)
        return self._dump_or_ask if _NAMELESS.issuperset(kinds) else self._pickler.encode

    def _shape_encoder(self, shape: Shape) -> Encoder:
        (head, flat), encode, careful = shape, self.encode, self._pickler.encode

        def encode_shape(value: Any) -> bytes:
            try:
                return head + encode(flat(value))
            except (LookupError, AttributeError, NotPlainError, RecursionError):
                return careful(value)  # or its error, which names the part

        return encode_shape

    def _dump_or_ask(self, value: Any) -> bytes:
        """Pickle plain data; if a value turns out to hold classes, remember that for its class."""
        try:
            raw = pickle.dumps(value, PROTOCOL)
        except Exception:
            raw = _ANY_CLASS
        if STACK_GLOBAL not in raw and not EXTENSIONS:
            return raw
        raw = self._pickler.encode(value)
        if self._pickler.has_asked:
            self._encoders[_key_of(value)] = self._pickler.encode
        return raw

    def encode_many(self, values: Iterable[Any]) -> list[bytes | None]:
        """Encode each value before pulling the next; None stays None.

        Only numbers and tuples of numbers are kept and packed together: their exact types say that
        no later step can change them. Usually all values are like the first.
        """
        packed = _packed_alike(values) if isinstance(values, list) else None
        if packed is not None:
            return packed  # type: ignore[return-value]
        encode, values = self.encode, iter(values)
        records: list[bytes | None] = []
        for value in values:
            records.append(None if value is None else encode(value))
            if value is not None:
                run = self._run_like(value)
                if run is None:
                    records += [None if value is None else encode(value) for value in values]
                elif run.layout is None:
                    self._pickle_run(run, values, records)
                else:
                    self._pack_run(run, run.layout, values, records)
        return records

    def _run_like(self, value: Any) -> _Run | None:
        """Return the encoding that values like this one share, None if they may name classes."""
        kind = type(value)
        head, take = self._pickler.shape(_key_of(value)) or (b"", None)
        try:
            row: Any = value if take is None else take(value)
        except (LookupError, AttributeError):
            return None
        by = _key_of(row)
        if EXTENSIONS or self._encoders[by] == self._pickler.encode:
            return None
        fields = list(by) if isinstance(by, tuple) else [by]
        layout = layout_of(tuple(fields), TUPLE if isinstance(by, tuple) else NUMBER)
        return _Run(kind, head, take, fields, layout)

    def _pickle_run(self, run: _Run, values: Iterator[Any], records: list[bytes | None]) -> None:
        (kind, head, take, *_), encode, dumps = run, self.encode, pickle.dumps
        for value in values:
            if type(value) is kind:
                try:
                    raw = dumps(value if take is None else take(value), PROTOCOL)
                except Exception:
                    raw = _ANY_CLASS  # encode finds another encoding, or raises
                if STACK_GLOBAL not in raw:
                    records.append(head + raw)
                    continue
            records.append(None if value is None else encode(value))

    def _pack_run(
        self, run: _Run, layout: Layout, values: Iterator[Any], records: list[bytes | None]
    ) -> None:
        (kind, head, take, fields, _), encode = run, self.encode
        is_number = layout.head[0] == NUMBER
        kept: list[Any] = []
        keep = kept.append
        for value in values:
            if type(value) is kind:
                if is_number:
                    keep(value)
                    continue
                try:
                    row: Any = value if take is None else take(value)
                except (LookupError, AttributeError):  # it has other attributes
                    row = ()
                if [*map(type, row)] == fields:
                    keep(row)
                    continue
            records += _packed(head, layout, kept, encode)
            kept.clear()
            records.append(None if value is None else encode(value))
        records += _packed(head, layout, kept, encode)


def _key_of(value: Any) -> Any:
    """Return the key under which the encoder of a value is remembered."""
    return tuple(map(type, value)) if type(value) is tuple else type(value)


def _packed_alike(values: list[Any]) -> list[bytes] | None:
    """Return the records of values that are all rows of one layout, else None."""
    kinds = set(map(type, values))
    if kinds == {tuple}:
        if len(set(map(len, values))) > 1:
            return None
        columns = list(zip(*values, strict=True))
        of_fields = [set(map(type, column)) for column in columns]
        tag = TUPLE
    else:
        columns, of_fields, tag = [tuple(values)], [kinds], NUMBER
    if any(len(kinds) != 1 for kinds in of_fields):
        return None
    layout = layout_of(tuple(kind for kinds in of_fields for kind in kinds), tag)
    return None if layout is None else pack_rows(layout, columns)


def _packed(head: bytes, layout: Layout, rows: list[Any], encode: Encoder) -> list[bytes]:
    """Return the records of numbers, or of tuples of numbers, of one layout."""
    if not rows:
        return []
    columns = [rows] if layout.head[0] == NUMBER else zip(*rows, strict=True)
    records = pack_rows(behind(head, layout), columns)
    return [head + encode(row) for row in rows] if records is None else records


def _dumped(value: Any) -> bytes:
    return pickle.dumps(value, PROTOCOL)


def _row_encoder(layout: Layout, *, is_tuple: bool) -> Encoder:
    pack, head = layout.pack, layout.head

    def encode_row(value: Any) -> bytes:
        try:
            return pack(head, *value, DOT) if is_tuple else pack(head, value, DOT)
        except struct.error:  # an int of more than 64 bits
            return _dumped(value)

    return encode_row


class _DataDecoder:
    """Decodes the values of one version."""

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        known = lru_cache(maxsize=_MAX_KNOWN)
        self._maker = known(lambda text: classes.maker(schema_of_id(text)))
        self._reader = known(lambda head: shape_reader(shapes.schema(head), classes))
        self.decode = self._decoder()

    def _decoder(self) -> Decoder:
        maker, reader, loads = self._maker, self._reader, pickle.loads

        def decode(record: bytes) -> Any:
            try:
                first = record[0]
                if first != _PICKLE:
                    if first in ROWS:
                        return decode_row(record)
                    if first == SHAPE:
                        head = head_of(record)
                        return reader(head).one(decode(record[len(head) :]))
                if (
                    STACK_GLOBAL in record
                    or (LINE_END in record and record.count(LINE_END) > 1)
                    or EXTENSIONS
                ):
                    return careful_loads(record, maker)
                return loads(record)  # it cannot name a class: only plain data is left
            except (StoredClassError, UndecodableValueError):
                raise
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode

    def decode_many(self, records: Sequence[bytes | None]) -> Iterable[Any]:
        """Return the values of records; None stays None."""
        there = [record for record in records if record is not None]
        values = self._decode_alike(there) if there else ()
        if values is None:
            return _each(records, self.decode)
        if len(there) == len(records):
            return values
        found = iter(values)
        return [None if record is None else next(found) for record in records]

    def _decode_alike(self, records: list[bytes]) -> list[Any] | None:
        """Return the values of rows of one layout, or of shapes with one head; else None."""
        rows = decode_rows(records)
        if rows is not None or records[0][:1] != _SHAPE_BYTE:
            return rows
        try:
            head = head_of(records[0])
            flats = decode_rows(records, len(head))
            if flats is None:
                if not all(map(bytes.startswith, records, repeat(head))):
                    return None
                flats = [self.decode(record[len(head) :]) for record in records]
            return self._reader(head).many(flats)
        except (UndecodableValueError, StoredClassError):
            raise
        except Exception:
            return None  # decoding one by one raises the error of the damaged record


def _undecodable(record: bytes, error: Exception) -> UndecodableValueError:
    return UndecodableValueError(
        f"a record of {len(record)} bytes is not a value of this codec: {error}; read it with the "
        "codec that wrote it"
    )

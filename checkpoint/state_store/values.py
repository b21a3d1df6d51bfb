"""Values as bytes: plain data and classes of data by default, any object where that is asked for.

``DataValues`` writes numbers and tuples of numbers as rows (:mod:`checkpoint.state_store.shapes`),
instances of dataclasses and the like as shapes (:mod:`checkpoint.state_store.shapes`), and all else
as pickles that need no class but those of a short list
(:mod:`checkpoint.state_store.plain_pickles`). It reads no others, so reading a checkpoint runs no
code. ``PickleValues`` writes and reads everything, and trusts whoever can write the checkpoint.

Both stop reading where the value stops, so that a record can hold more behind it.
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
_PICKLE = 0x80  # how every pickle begins that a codec writes
_SCALARS = frozenset((int, float, bool, complex, str, bytes, type(None)))
# What is pickled without the name of a class, unless one is in it.
_NAMELESS = _SCALARS | {tuple, list, dict, set, frozenset, bytearray}

Encoder = Callable[[Any], bytes]
ManyEncoder = Callable[[Iterable[Any]], "list[bytes | None]"]
Decoder = Callable[[bytes], Any]
ManyDecoder = Callable[[Sequence["bytes | None"]], Iterable[Any]]


class UndecodableValueError(CheckpointError, ValueError):
    """Bytes that are no value of the codec that reads them."""


class ValueCodec(ABC):
    """How values become bytes. Codecs are small and can be pickled.

    The shapes that its methods take are those of the content: an encoder adds to them what is to be
    stored beside its records.
    """

    name: ClassVar[str]
    """Name of the codec on disk."""

    classes: Classes
    """The classes whose instances may be made."""

    @abstractmethod
    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function for one writer; it raises ``TypeError`` for what it cannot encode.

        Its bytes end with a dot and never change with what the caller does to the value later.
        """

    @abstractmethod
    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the function that makes a value, new at each call, and ignores what follows it.

        It raises :class:`UndecodableValueError` for what no encoder wrote, and
        :class:`StoredClassError` for an instance of a class that is gone or has changed.
        """

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function for one writer that encodes each value before it asks for the next.

        None stands for no value.
        """
        encode = self.encoder(shapes)
        return lambda values: [None if value is None else encode(value) for value in values]

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return a function that decodes many records, at once or as they are asked for.

        None stands for no record.
        """
        decode = self.decoder(shapes)
        return lambda records: _each(records, decode)


def _each(records: Iterable[bytes | None], decode: Decoder) -> Iterator[Any]:
    return (None if record is None else decode(record) for record in records)


@dataclass(frozen=True)
class PickleValues(ValueCodec):
    """Codec of any object: pickle, and cloudpickle for what pickle refuses.

    Whoever can write the checkpoint can run code where it is read. Instances of classes that are
    defined in the program itself carry their class with them, which is slow and large, and ties
    the state to that version of the program.
    """

    name = f"pickle-{PROTOCOL}"
    classes = LOADED

    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function for one writer."""
        dumps = pickle.dumps

        def encode(value: Any) -> bytes:
            try:
                return dumps(value, PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError):
                return cloudpickle.dumps(value, PROTOCOL)  # type: ignore[no-any-return]

        return encode

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the function that makes a value of bytes."""

        def decode(record: bytes) -> Any:
            try:
                return pickle.loads(record)  # noqa: S301
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode


@dataclass(frozen=True)
class DataValues(ValueCodec):
    """Codec of plain data, and of instances of classes of data.

    Plain are None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
    frozenset, date, datetime, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, UUID,
    OrderedDict, defaultdict of a builtin factory, Counter and deque, and containers of these.
    Classes of data are dataclasses, classes of attrs, named tuples, enums and the Row of Spark.

    Args:
        classes: the classes of data that the program names.
    """

    name = "data-1"
    classes: Classes = field(default_factory=Classes)

    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function for one writer."""
        return _DataEncoder(self.classes, shapes).encode

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function for one writer; see :meth:`ValueCodec.many_encoder`."""
        return _DataEncoder(self.classes, shapes).encode_many

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the function that makes a value of bytes."""
        return _DataDecoder(self.classes, shapes).decode

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return the function that does so for many; see :meth:`ValueCodec.many_decoder`."""
        return _DataDecoder(self.classes, shapes).decode_many


class _Run(NamedTuple):
    """What values have in common that are written like the first of them.

    Args:
        kind: their class.
        head: what their records begin with.
        take: takes the fields of a value; None where the value itself is written.
        fields: the classes of its fields, if these are numbers that are packed.
        layout: how they are packed; None if they are pickled.
    """

    kind: type
    head: bytes
    take: Take | None
    fields: list[type]
    layout: Layout | None


class _DataEncoder:
    """Writes values, each in the cheapest way for its class, or for those of a tuple's items."""

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        self._pickler = PlainPickler(classes, shapes)
        self._ways: dict[Any, Encoder] = {}
        self.encode = self._encoder()

    def _encoder(self) -> Encoder:
        ways, new_way = self._ways, self._new_way

        def encode(value: Any) -> bytes:
            kind = type(value)
            by = tuple(map(type, value)) if kind is tuple else kind
            return (ways.get(by) or new_way(by))(value)

        return encode

    def encode_many(self, values: Iterable[Any]) -> list[bytes | None]:
        """Encode each value before the next is asked for; None stands for no value.

        Only numbers and tuples of them wait, and are packed together: as their exact types say, no
        later step can change them. Mostly all values are like the first.
        """
        packed = _packed_alike(values) if isinstance(values, list) else None
        if packed is not None:
            return packed  # type: ignore[return-value]
        encode, values = self.encode, iter(values)
        records: list[bytes | None] = []
        for value in values:
            if value is not None:
                break
            records.append(None)
        else:
            return records
        records.append(encode(value))
        run = self._run_like(value)
        if run is None:
            records += [None if value is None else encode(value) for value in values]
        elif run.layout is None:
            self._pickle_run(run, values, records)
        else:
            self._pack_run(run, run.layout, values, records)
        return records

    def _pickle_run(self, run: _Run, values: Iterator[Any], records: list[bytes | None]) -> None:
        (kind, head, take, *_), encode, dumps = run, self.encode, pickle.dumps
        for value in values:
            if type(value) is kind:
                try:
                    raw = dumps(value if take is None else take(value), PROTOCOL)
                except Exception:
                    raw = _ANY_CLASS  # encode finds another way, or says what is wrong
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
                except (LookupError, AttributeError):  # it has attributes beside its fields
                    row = ()
                if [*map(type, row)] == fields:
                    keep(row)
                    continue
            records += _packed(head, layout, kept, encode)
            kept.clear()
            records.append(None if value is None else encode(value))
        records += _packed(head, layout, kept, encode)

    def _run_like(self, value: Any) -> _Run | None:
        """Return what values have in common with this one, None if they may name classes."""
        kind = type(value)
        head, take = self._pickler.shape(_key_of(value)) or (b"", None)
        try:
            row: Any = value if take is None else take(value)
        except (LookupError, AttributeError):
            return None
        by = _key_of(row)
        if EXTENSIONS or self._ways[by] == self._pickler.encode:
            return None
        fields = list(by) if isinstance(by, tuple) else [by]
        layout = layout_of(tuple(fields), TUPLE if isinstance(by, tuple) else NUMBER)
        return _Run(kind, head, take, fields, layout)

    def _new_way(self, by: Any) -> Encoder:
        if len(self._ways) >= _MAX_KNOWN:
            self._ways.clear()
        way = self._ways[by] = self._way(by)
        return way

    def _way(self, by: Any) -> Encoder:
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
                return careful(value)  # which finds another way, or says what is wrong

        return encode_shape

    def _dump_or_ask(self, value: Any) -> bytes:
        """Pickle what is plain, mostly; remember of which kind values are that are not."""
        try:
            raw = pickle.dumps(value, PROTOCOL)
        except Exception:
            raw = _ANY_CLASS
        if STACK_GLOBAL not in raw and not EXTENSIONS:
            return raw
        raw = self._pickler.encode(value)
        if self._pickler.has_asked:
            self._ways[_key_of(value)] = self._pickler.encode
        return raw


def _key_of(value: Any) -> Any:
    """Return by what the way is known that a value is written."""
    return tuple(map(type, value)) if type(value) is tuple else type(value)


def _packed_alike(values: list[Any]) -> list[bytes] | None:
    """Return the records of values that are there already, where all are rows of one layout."""
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
    """Return the records of numbers, or of tuples of them, of one layout."""
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
        except struct.error:  # an int outside of 64 bits
            return _dumped(value)

    return encode_row


class _DataDecoder:
    """Reads values of one content."""

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
                return loads(record)  # it cannot name a class, and all else is plain
            except (StoredClassError, UndecodableValueError):
                raise
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode

    def decode_many(self, records: Sequence[bytes | None]) -> Iterable[Any]:
        """Return the values of records, None where there is none."""
        there = [record for record in records if record is not None]
        values = self._decode_alike(there) if there else ()
        if values is None:
            return _each(records, self.decode)
        if len(there) == len(records):
            return values
        found = iter(values)
        return [None if record is None else next(found) for record in records]

    def _decode_alike(self, records: list[bytes]) -> list[Any] | None:
        """Return the values of rows of one layout, or of shapes of one head; of others None."""
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
            return None  # to decode them one by one says what is wrong


def _undecodable(record: bytes, error: Exception) -> UndecodableValueError:
    return UndecodableValueError(
        f"a record of {len(record)} bytes holds no value of this codec: {error}; read it with the "
        "codec that wrote it"
    )

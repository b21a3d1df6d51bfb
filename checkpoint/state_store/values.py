"""Values as bytes: plain data and classes of data by default, any object where that is asked for.

``DataValues`` writes numbers and tuples of numbers as rows (:mod:`checkpoint.state_store.rows`),
and all else as pickles, the one format that keeps Python's types exactly. Its pickles need no class
but those of a short list, and it reads no others: reading a checkpoint then runs no code that
somebody has put there. Instances of dataclasses and the like are stored by their fields
(:mod:`checkpoint.state_store.classes`), of the classes that the program names.

``PickleValues`` writes and reads everything, and trusts whoever can write the checkpoint.

Both stop reading where the value stops, so that a record can hold more behind it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import cloudpickle  # type: ignore[import-untyped]

from checkpoint.errors import CheckpointError
from checkpoint.state_store.classes import LOADED, Classes, StoredClassError
from checkpoint.state_store.plain_pickles import (
    EXTENSIONS,
    LINE_END,
    PROTOCOL,
    STACK_GLOBAL,
    NotPlainError,
    PlainPickler,
    careful_loads,
    maker_of,
)
from checkpoint.state_store.rows import (
    NUMBER,
    ROW_KINDS,
    TUPLE,
    decode_row,
    decode_rows,
    encode_row,
    encode_rows,
    layout_of,
)
from checkpoint.state_store.shapes import SHAPE, Shape, ShapeReader, head_of, reader_of

MAX_VALUE_BYTES = 32 << 20

Encoder = Callable[[Any], bytes]
ManyEncoder = Callable[[list[Any]], list[bytes]]
Decoder = Callable[[bytes], Any]
ManyDecoder = Callable[[list[bytes]], list[Any]]
Step = Callable[[Any, Any], Any]
Stepper = Callable[[list[Any], list["bytes | None"], Step], list["bytes | None"]]

_PICKLE = 0x80  # how every pickle begins that a codec writes
_ROWS = (TUPLE, NUMBER)
_SHAPE = bytes((SHAPE,))
_NUMBERS = ROW_KINDS - {tuple}
_MAX_HEADS = _MAX_WAYS = 256
_SCALARS = frozenset((int, float, bool, complex, str, bytes, type(None)))
_CLASS = bytes((STACK_GLOBAL,))


class UndecodableValueError(CheckpointError, ValueError):
    """Bytes that are no value of the codec that reads them."""


class ValueCodec(Protocol):
    """How values become bytes. Values of this type are small and can be pickled."""

    @property
    def name(self) -> str:
        """Name of the codec on disk."""
        ...

    @property
    def classes(self) -> Classes:
        """The classes whose instances may be made."""
        ...

    def encoder(self) -> Encoder:
        """Return a function for one writer; it raises ``TypeError`` for what it cannot encode.

        Its bytes end with a dot and never change with what the caller does to the value later.
        """
        ...

    def decoder(self) -> Decoder:
        """Return the function that makes a value, new at each call, and ignores what follows it.

        It raises :class:`UndecodableValueError` for what no encoder wrote, and
        :class:`StoredClassError` for an instance of a class that is gone or has changed.
        """
        ...

    def many_encoder(self) -> ManyEncoder:
        """Return a function for one writer that does what the encoder does for many."""
        ...

    def many_decoder(self) -> ManyDecoder:
        """Return the function that does what the decoder does for many, in less time."""
        ...

    def stepper(self) -> Stepper:
        """Return a function for one writer that decodes, steps and encodes many values.

        It takes what is given for each key, the records before, and the step; it returns encoded
        values, whatever later steps do to what an earlier one returned. None stands for no value,
        before and after.
        """
        ...


@dataclass(frozen=True)
class DataValues:
    """Codec of plain data, and of instances of classes of data.

    Plain are None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
    frozenset, date, datetime, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, UUID,
    OrderedDict, defaultdict of a builtin factory, Counter and deque, and containers of these.
    Classes of data are dataclasses, classes of attrs, named tuples, enums and the Row of Spark.

    Args:
        classes: the classes of data that the program names.
    """

    classes: Classes = field(default_factory=Classes)

    @property
    def name(self) -> str:
        """``data-1``."""
        return "data-1"

    def encoder(self) -> Encoder:
        """Return a function for one writer."""
        return _Ways(PlainPickler(self.classes)).encoder()

    def decoder(self) -> Decoder:
        """Return the function that makes a value of bytes."""
        find = maker_of(self.classes)
        loads, memory = pickle.loads, io.BytesIO
        readers = _Readers(self.classes)

        def decode(record: bytes) -> Any:
            try:
                first = record[0]
                if first != _PICKLE:
                    if first in _ROWS:
                        return decode_row(record)
                    if first == SHAPE:
                        head = head_of(record)
                        return readers.of(head).one(decode(record[len(head) :]))
                if (
                    STACK_GLOBAL in record
                    or (LINE_END in record and record.count(LINE_END) > 1)
                    or EXTENSIONS
                ):
                    return careful_loads(memory(record), find)
                return loads(record)  # it cannot name a class, and all else is plain
            except (StoredClassError, UndecodableValueError):
                raise
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode

    def many_encoder(self) -> ManyEncoder:
        """Return a function for one writer."""
        return _many_encoder(_Ways(PlainPickler(self.classes)))

    def many_decoder(self) -> ManyDecoder:
        """Return the function that makes values of the bytes of many."""
        decode, loads = self.decoder(), pickle.loads
        readers = _Readers(self.classes)

        def decode_many(records: list[bytes]) -> list[Any]:
            rows = decode_rows(records)
            if rows is not None:
                return rows
            if EXTENSIONS:
                return list(map(decode, records))
            try:  # as in the decoder, without calling it
                head = _common_head(records)
                if head is not None:
                    flats = decode_many([record[len(head) :] for record in records])
                    return readers.of(head).many(flats)
                return [
                    loads(record)
                    if record[0] == _PICKLE
                    and STACK_GLOBAL not in record
                    and (LINE_END not in record or record.count(LINE_END) == 1)
                    else decode(record)
                    for record in records
                ]
            except (UndecodableValueError, StoredClassError):
                raise
            except Exception:
                return list(map(decode, records))  # which says what is wrong

        return decode_many

    def stepper(self) -> Stepper:
        """Return a function that decodes, steps and encodes many values."""
        ways = _Ways(PlainPickler(self.classes))
        encode, decode, decode_many = ways.encoder(), self.decoder(), self.many_decoder()

        def step_all(
            given: list[Any], before: list[bytes | None], step: Step
        ) -> list[bytes | None]:
            there = list(filter(None, before))
            rows = decode_rows(there)
            if not before:
                return []
            if rows is None and there:
                if _common_head(there) is None:
                    return _step_each(given, before, step, decode, encode, ways)
                rows = decode_many(there)
            if len(there) == len(before):
                values: Iterator[Any] = iter(rows or ())
            else:
                found = iter(rows or ())
                values = (None if record is None else next(found) for record in before)
            return _step_rows(zip(given, values, strict=True), step, encode, ways)

        return step_all


class _Ways:
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
        if _SCALARS.issuperset(kinds):
            return _dumped
        shape = self.shape(by)
        return self.careful if shape is None else self._shaped(shape)

    def _row(self, value: Any) -> bytes:
        return encode_row(value) or _dumped(value)

    def _shaped(self, shape: Shape) -> Encoder:
        (head, flat), encode, careful = shape, self._encode, self.careful

        def encode_shape(value: Any) -> bytes:
            try:
                return head + encode(flat(value))
            except (LookupError, AttributeError, NotPlainError, RecursionError):
                return careful(value)  # which finds another way, or says what is wrong

        return encode_shape


def _dumped(value: Any) -> bytes:
    return pickle.dumps(value, PROTOCOL)


def _many_encoder(ways: _Ways) -> ManyEncoder:
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
            return [shape.head + raw for raw in encode_rows(flats) or map(encode, flats)]
        except (LookupError, AttributeError, NotPlainError, RecursionError):
            return None

    return encode_many


class _Readers:
    """What makes values of shapes, by their heads.

    Args:
        classes: the classes that the program names.
    """

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._known: dict[bytes, ShapeReader] = {}

    def of(self, head: bytes) -> ShapeReader:
        """Return what makes a value of its fields."""
        found = self._known.get(head)
        if found is None:
            if len(self._known) >= _MAX_HEADS:
                self._known.clear()
            found = self._known[head] = reader_of(head, self._classes)
        return found


def _common_head(records: list[bytes]) -> bytes | None:
    """Return the head that all records have, None if they have none or not one."""
    if not records or records[0][:1] != _SHAPE:
        return None
    head = head_of(records[0])
    return head if all(record.startswith(head) for record in records) else None


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
    def of(cls, value: Any, ways: _Ways) -> _Lane | None:
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
        return cls(kind, items, shape, fields) if _SCALARS.issuperset(fields) else None

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
        raws = encode_rows(kept) or list(map(_dumped, kept))
        return raws if self.shape is None else [self.shape.head + raw for raw in raws]


def _step_rows(
    pairs: Iterator[tuple[Any, Any]], step: Step, encode: Encoder, ways: _Ways
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


def _step_each(
    given: list[Any],
    before: list[bytes | None],
    step: Step,
    decode: Decoder,
    encode: Encoder,
    ways: _Ways,
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
            record[0] != _PICKLE
            or STACK_GLOBAL in record
            or (LINE_END in record and record.count(LINE_END) > 1)
            or EXTENSIONS
        ):
            value = step(new, decode(record))
        else:
            try:
                old = loads(record)
            except Exception as error:
                raise _undecodable(record, error) from error
            value = step(new, old)
        if value is None:
            records.append(None)
        elif asked or not is_known or type(value) in row_kinds:
            records.append(raw := encode(value))
            if raw[0] not in _ROWS:  # a tuple of other things, as those after it are mostly too
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


@dataclass(frozen=True)
class PickleValues:
    """Codec of any object: pickle, and cloudpickle for what pickle refuses.

    Whoever can write the checkpoint can run code where it is read. Instances of classes that are
    defined in the program itself carry their class with them, which is slow and large, and ties
    the state to that version of the program.
    """

    @property
    def name(self) -> str:
        """``pickle-5``."""
        return f"pickle-{PROTOCOL}"

    @property
    def classes(self) -> Classes:
        """All that are loaded."""
        return LOADED

    def encoder(self) -> Encoder:
        """Return a function for one writer."""
        dumps = pickle.dumps

        def encode(value: Any) -> bytes:
            try:
                return dumps(value, PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError):
                return cloudpickle.dumps(value, PROTOCOL)  # type: ignore[no-any-return]

        return encode

    def decoder(self) -> Decoder:
        """Return the function that makes a value of bytes."""

        def decode(record: bytes) -> Any:
            try:
                return pickle.loads(record)
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode

    def many_encoder(self) -> ManyEncoder:
        """Return a function for one writer."""
        encode = self.encoder()
        return lambda values: list(map(encode, values))

    def many_decoder(self) -> ManyDecoder:
        """Return the function that makes values of the bytes of many."""
        decode = self.decoder()
        return lambda records: list(map(decode, records))

    def stepper(self) -> Stepper:
        """Return a function that decodes, steps and encodes many values."""
        encode, decode = self.encoder(), self.decoder()

        def step_all(
            given: list[Any], before: list[bytes | None], step: Step
        ) -> list[bytes | None]:
            after: list[bytes | None] = []
            for new, record in zip(given, before, strict=True):
                value = step(new, None if record is None else decode(record))
                after.append(None if value is None else encode(value))
            return after

        return step_all


def _undecodable(record: bytes, error: Exception) -> UndecodableValueError:
    return UndecodableValueError(
        f"a record of {len(record)} bytes holds no value of this codec: {error}; read it with the "
        "codec that wrote it"
    )

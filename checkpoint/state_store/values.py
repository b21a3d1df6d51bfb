"""Values as bytes: plain data by default, any object where that is asked for.

``DataValues`` writes numbers and tuples of numbers as rows (:mod:`checkpoint.state_store.rows`),
and all else as pickles, the one format that keeps Python's types exactly. Its pickles need no class
but those of a short list, and it reads no others: reading a checkpoint then runs no code that
somebody has put there.

``PickleValues`` writes and reads everything, and trusts whoever can write the checkpoint.

Both stop reading where the value stops, so that a record can hold more behind it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle  # type: ignore[import-untyped]

from checkpoint.errors import CheckpointError
from checkpoint.state_store.plain_pickles import (
    EXTENSIONS,
    LINE_END,
    PROTOCOL,
    STACK_GLOBAL,
    PlainPickler,
    name_of,
    unpickler,
)
from checkpoint.state_store.rows import (
    NUMBER,
    ROW_KINDS,
    TUPLE,
    decode_row,
    decode_rows,
    encode_row,
    encode_rows,
)

MAX_VALUE_BYTES = 32 << 20

Encoder = Callable[[Any], bytes]
ManyEncoder = Callable[[list[Any]], list[bytes]]
Decoder = Callable[[bytes], Any]
ManyDecoder = Callable[[list[bytes]], list[Any]]
Step = Callable[[Any, Any], Any]
Stepper = Callable[[list[Any], list["bytes | None"], Step], list["bytes | None"]]

_PICKLE = 0x80  # how every pickle begins that a codec writes
_ROWS = (TUPLE, NUMBER)
_NUMBERS = ROW_KINDS - {tuple}
_NOTHING: dict[Any, None] = {}


class UndecodableValueError(CheckpointError, ValueError):
    """Bytes that are no value of the codec that reads them."""


class ValueCodec(Protocol):
    """How values become bytes. Values of this type are small and can be pickled."""

    @property
    def name(self) -> str:
        """Name of the codec on disk."""
        ...

    def encoder(self) -> Encoder:
        """Return a function for one writer; it raises ``TypeError`` for what it cannot encode.

        Its bytes end with a dot and never change with what the caller does to the value later.
        """
        ...

    def decoder(self) -> Decoder:
        """Return the function that makes a value, new at each call, and ignores what follows it.

        It raises :class:`UndecodableValueError` for what no encoder wrote.
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
    """Codec of plain data.

    That is None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
    frozenset, date, datetime, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, UUID,
    OrderedDict, Counter and deque, and containers of these. Subclasses are not plain: neither
    named tuples nor enums.

    Args:
        allow: further classes, found by name wherever values are read. Allow none whose making
            does anything but make it.
    """

    allow: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", tuple(self.allow))
        for kind in self.allow:
            if not isinstance(kind, type):
                raise TypeError(f"allow takes classes, got {kind!r}")

    @property
    def name(self) -> str:
        """``data-1``, and the classes that are allowed."""
        names = sorted(".".join(name_of(kind)) for kind in self.allow)
        return "data-1" + "".join(f" {name}" for name in names)

    def encoder(self) -> Encoder:
        """Return a function for one writer."""
        return self._encoder(PlainPickler(self.allow))

    def _encoder(self, pickler: PlainPickler) -> Encoder:
        careful, asked, dumps = pickler.encode, pickler.asked, pickle.dumps

        def encode(value: Any) -> bytes:
            if type(value) in ROW_KINDS:
                row = encode_row(value)
                if row is not None:
                    return row
            if asked or EXTENSIONS:
                return careful(value)
            try:
                raw = dumps(value, PROTOCOL)
            except Exception:
                return careful(value)  # which says what is wrong
            return careful(value) if STACK_GLOBAL in raw else raw

        return encode

    def decoder(self) -> Decoder:
        """Return the function that makes a value of bytes."""
        careful = unpickler(self.allow)
        loads, memory = pickle.loads, io.BytesIO

        def decode(record: bytes) -> Any:
            try:
                if record[0] != _PICKLE and record[0] in _ROWS:
                    return decode_row(record)
                if (
                    STACK_GLOBAL in record
                    or (LINE_END in record and record.count(LINE_END) > 1)
                    or EXTENSIONS
                ):
                    return careful(memory(record)).load()
                return loads(record)  # it cannot name a class, and all else is plain
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode

    def many_encoder(self) -> ManyEncoder:
        """Return a function for one writer."""
        pickler = PlainPickler(self.allow)
        encode, careful = self._encoder(pickler), pickler.encode
        asked, dumps = pickler.asked, pickle.dumps

        def encode_many(values: list[Any]) -> list[bytes]:
            rows = encode_rows(values)
            if rows is not None:
                return rows
            if asked or EXTENSIONS or not values or encode_row(values[0]) is not None:
                return list(map(encode, values))
            try:  # where the first is no row, mostly none is
                raws = [dumps(value, PROTOCOL) for value in values]
            except Exception:
                return list(map(encode, values))  # which says what is wrong
            return [
                careful(value) if STACK_GLOBAL in raw else raw
                for value, raw in zip(values, raws, strict=True)
            ]

        return encode_many

    def many_decoder(self) -> ManyDecoder:
        """Return the function that makes values of the bytes of many."""
        decode, loads = self.decoder(), pickle.loads

        def decode_many(records: list[bytes]) -> list[Any]:
            rows = decode_rows(records)
            if rows is not None:
                return rows
            if EXTENSIONS:
                return list(map(decode, records))
            try:  # as in the decoder, without calling it
                return [
                    loads(record)
                    if record[0] == _PICKLE
                    and STACK_GLOBAL not in record
                    and (LINE_END not in record or record.count(LINE_END) == 1)
                    else decode(record)
                    for record in records
                ]
            except UndecodableValueError:
                raise
            except Exception:
                return list(map(decode, records))  # which says what is wrong

        return decode_many

    def stepper(self) -> Stepper:
        """Return a function that decodes, steps and encodes many values."""
        pickler = PlainPickler(self.allow)
        encode, decode = self._encoder(pickler), self.decoder()

        def step_all(
            given: list[Any], before: list[bytes | None], step: Step
        ) -> list[bytes | None]:
            there = list(filter(None, before))
            rows = decode_rows(there)
            # Of what is allowed some may change and have a hash all the same.
            if self.allow or (rows is None and there):
                return _step_each(given, before, step, decode, encode, pickler)
            if len(there) == len(before):
                values: Iterator[Any] = iter(rows or ())
            else:
                found = iter(rows or ())
                values = (None if record is None else next(found) for record in before)
            return _step_rows(zip(given, values, strict=True), step, encode)

        return step_all


def _step_rows(pairs: Iterator[tuple[Any, Any]], step: Step, encode: Encoder) -> list[bytes | None]:
    """Step values of rows, and encode what comes out together, as far as it cannot change."""
    stepped: list[Any] = []
    keep = stepped.append
    for new, value in pairs:
        after = step(new, value)
        try:
            after in _NOTHING  # noqa: B015 (asks for its hash)
        except TypeError:  # a list or the like, which a later step may change
            break
        keep(after)
    else:
        rows: list[bytes | None] | None = encode_rows(stepped)  # type: ignore[assignment]
        return rows or [_or_none(encode, value) for value in stepped]
    records = [_or_none(encode, value) for value in (*stepped, after)]
    for new, value in pairs:
        records.append(_or_none(encode, step(new, value)))
    return records


def _step_each(
    given: list[Any],
    before: list[bytes | None],
    step: Step,
    decode: Decoder,
    encode: Encoder,
    pickler: PlainPickler,
) -> list[bytes | None]:
    """Decode, step and encode one after the other, so that what was read is still near.

    Records and values without a class are read and written as by *decode* and *encode*, without
    calling them.
    """
    loads, dumps = pickle.loads, pickle.dumps
    asked, is_known, row_kinds = pickler.asked, not EXTENSIONS, ROW_KINDS
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
            if raw[0] == _PICKLE:  # a tuple of other things, as those after it are mostly too
                row_kinds = _NUMBERS
        else:
            try:
                raw = dumps(value, PROTOCOL)
            except Exception:
                raw = encode(value)  # which says what is wrong
            records.append(pickler.encode(value) if STACK_GLOBAL in raw else raw)
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
        "codec and the allowed classes that wrote it"
    )

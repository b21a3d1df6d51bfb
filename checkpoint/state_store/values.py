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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from checkpoint.state_store.classes import LOADED, Classes
from checkpoint.state_store.encoding import PICKLE, ROWS, Ways, many_encoder_of
from checkpoint.state_store.plain_pickles import (
    EXTENSIONS,
    LINE_END,
    PROTOCOL,
    STACK_GLOBAL,
    PlainPickler,
)
from checkpoint.state_store.plain_reading import careful_loads, maker_of
from checkpoint.state_store.rows import (
    decode_row,
    decode_rows,
)
from checkpoint.state_store.schemas import StoredClassError
from checkpoint.state_store.shapes import (
    SHAPE,
    ShapeReader,
    Shapes,
    are_shapes,
    behind_head,
    head_of,
    reader_of,
)
from checkpoint.state_store.stepping import step_alike, step_each
from checkpoint.state_store.value_codec import (
    Decoder,
    Encoder,
    ManyDecoder,
    ManyEncoder,
    Step,
    Stepper,
    UndecodableValueError,
    undecodable,
)

_MAX_HEADS = 256


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

    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function for one writer."""
        return Ways(PlainPickler(self.classes, shapes)).encoder()

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the function that makes a value of bytes."""
        find = maker_of(self.classes)
        loads, memory = pickle.loads, io.BytesIO
        readers = _Readers(self.classes, shapes)

        def decode(record: bytes) -> Any:
            try:
                first = record[0]
                if first != PICKLE:
                    if first in ROWS:
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
                raise undecodable(record, error) from error

        return decode

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function for one writer."""
        return many_encoder_of(Ways(PlainPickler(self.classes, shapes)))

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return the function that makes values of the bytes of many."""
        decode = self.decoder(shapes)
        decode_alike = self._alike_decoder(decode, shapes)

        def decode_many(records: list[bytes]) -> list[Any]:
            alike = decode_alike(records)
            return _loaded(records, decode) if alike is None else alike

        return decode_many

    def _alike_decoder(
        self, decode: Decoder, shapes: Shapes
    ) -> Callable[[list[bytes]], list[Any] | None]:
        """Return what does so for rows of one layout and for shapes of one head, else None."""
        readers = _Readers(self.classes, shapes)

        def decode_alike(records: list[bytes]) -> list[Any] | None:
            rows = decode_rows(records)
            if rows is not None:
                return rows
            if not are_shapes(records):
                return None
            try:
                head = head_of(records[0])
                flats = decode_rows(records, len(head))
                if flats is None:
                    behind = behind_head(records, head)
                    if behind is None:
                        return None
                    flats = _loaded(behind, decode)
                return readers.of(head).many(flats)
            except (UndecodableValueError, StoredClassError):
                raise
            except Exception:
                return list(map(decode, records))  # which says what is wrong

        return decode_alike

    def stepper(self, shapes: Shapes) -> Stepper:
        """Return a function that decodes, steps and encodes many values."""
        ways = Ways(PlainPickler(self.classes, shapes))
        encode, decode = ways.encoder(), self.decoder(shapes)
        decode_alike = self._alike_decoder(decode, shapes)

        def step_all(
            given: list[Any], before: list[bytes | None], step: Step
        ) -> list[bytes | None]:
            if not before:
                return []
            there = list(filter(None, before))
            values = decode_alike(there)
            if values is None and there:
                return step_each(given, before, step, decode, encode, ways)
            if len(there) < len(before):
                found = iter(values or ())
                values = [None if record is None else next(found) for record in before]
            return step_alike(zip(given, values or (), strict=True), step, encode, ways)

        return step_all


def _loaded(records: list[bytes], decode: Decoder) -> list[Any]:
    """Return values that are pickles, mostly: as by *decode*, without calling it."""
    if EXTENSIONS:
        return list(map(decode, records))
    loads = pickle.loads
    try:
        return [
            loads(record)
            if record[0] == PICKLE
            and STACK_GLOBAL not in record
            and (LINE_END not in record or record.count(LINE_END) == 1)
            else decode(record)
            for record in records
        ]
    except (UndecodableValueError, StoredClassError):
        raise
    except Exception:
        return list(map(decode, records))  # which says what is wrong


class _Readers:
    """What makes values of shapes, by their heads.

    Args:
        classes: the classes that the program names.
        shapes: those of the content.
    """

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        self._classes = classes
        self._shapes = shapes
        self._known: dict[bytes, ShapeReader] = {}

    def of(self, head: bytes) -> ShapeReader:
        """Return what makes a value of its fields."""
        found = self._known.get(head)
        if found is None:
            if len(self._known) >= _MAX_HEADS:
                self._known.clear()
            found = self._known[head] = reader_of(self._shapes.schema(head), self._classes)
        return found


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
                raise undecodable(record, error) from error

        return decode

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function for one writer."""
        encode = self.encoder(shapes)
        return lambda values: list(map(encode, values))

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return the function that makes values of the bytes of many."""
        decode = self.decoder(shapes)
        return lambda records: list(map(decode, records))

    def stepper(self, shapes: Shapes) -> Stepper:
        """Return a function that decodes, steps and encodes many values."""
        encode, decode = self.encoder(shapes), self.decoder(shapes)

        def step_all(
            given: list[Any], before: list[bytes | None], step: Step
        ) -> list[bytes | None]:
            after: list[bytes | None] = []
            for new, record in zip(given, before, strict=True):
                value = step(new, None if record is None else decode(record))
                after.append(None if value is None else encode(value))
            return after

        return step_all

"""Values as bytes: plain data by default, any object where that is asked for.

Both codecs write pickles, the one format that keeps Python's types exactly, and both stop reading
where the pickle stops, so that a record can hold more behind it.

``DataValues`` writes pickles that need no class but those of a short list, and reads no others:
reading a checkpoint then runs no code that somebody has put there. Writing is as fast as pickle,
because C asks back only about what is not plain; reading looks for the few bytes by which a pickle
can name a class, and only where one is found, by chance or not, looks up every name in the list.

``PickleValues`` writes and reads everything, and trusts whoever can write the checkpoint.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import FunctionType
from typing import Any, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

import cloudpickle  # type: ignore[import-untyped]

from checkpoint.errors import CheckpointError

PROTOCOL = 5  # part of the format, whatever Python's default is
MAX_VALUE_BYTES = 32 << 20

Encoder = Callable[[Any], bytes]
Decoder = Callable[[bytes], Any]
ManyDecoder = Callable[[list[bytes]], list[Any]]
Step = Callable[[Any, Any], Any]
Stepper = Callable[[list[Any], list["bytes | None"], Step], list["bytes | None"]]

# A pickle names a class by STACK_GLOBAL; by GLOBAL or INST, which two lines follow; or by a number
# that the program itself has given to a class by copyreg.add_extension.
_STACK_GLOBAL = 0x93
_LINE_END = 0x0A
_EXTENSIONS: Mapping[int, Any] = vars(copyreg)["_inverted_registry"]


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

    def many_decoder(self) -> ManyDecoder:
        """Return the function that does what the decoder does for many, in less time."""
        ...

    def stepper(self) -> Stepper:
        """Return a function for one writer that decodes, steps and encodes many values.

        It takes what is given for each key, the records before, and the step; it returns encoded
        values. A value is encoded before the next step runs. None stands for no value, before and
        after.
        """
        ...


def _fraction(numerator: int, denominator: int) -> Fraction:
    # Fraction itself also takes text, and "1e999999999" takes for ever.
    if type(numerator) is int and type(denominator) is int:
        return Fraction(numerator, denominator)
    raise pickle.UnpicklingError("a fraction is made of two ints")


def _zone(key: str) -> ZoneInfo:
    return ZoneInfo(key)


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


_PLAIN: tuple[type, ...] = (
    date,
    datetime,
    time,
    timedelta,
    timezone,
    Decimal,
    complex,
    Counter,
    OrderedDict,
    deque,
)

_REBUILT: Mapping[type, Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    Fraction: lambda value: (_fraction, (value.numerator, value.denominator)),
    UUID: lambda value: (_uuid, (value.bytes,)),
    ZoneInfo: lambda value: (_zone, (_zone_key(value),)),
}

_MAKERS: tuple[Callable[..., Any], ...] = (_fraction, _uuid, _zone)


def _zone_key(value: ZoneInfo) -> str:
    if value.key is None:
        raise TypeError("a ZoneInfo without key cannot be stored; make it by ZoneInfo(name)")
    return value.key


def _name_of(kind: Any) -> tuple[str, str]:
    return (kind.__module__, kind.__qualname__)


class _DataPickler(pickle.Pickler):
    """Asked by C about every object that is not None, bool, number, text, bytes or a container."""

    def __init__(self, file: Any, allowed: frozenset[type]) -> None:
        super().__init__(file, PROTOCOL)
        self._allowed = allowed

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind in self._allowed:
            return NotImplemented
        rebuild = _REBUILT.get(kind)
        if rebuild is not None:
            return rebuild(value)
        if (kind is type and value in self._allowed) or (kind is FunctionType and value in _MAKERS):
            return NotImplemented  # the class itself, on the way to the file
        raise TypeError(
            f"a value that holds a {kind.__module__}.{kind.__qualname__} is not plain data; store "
            "a tuple or dict of its fields, or allow the class by DataValues(allow=[...]), or "
            "take PickleValues(), which trusts whoever can write the checkpoint"
        )


@lru_cache(maxsize=64)
def _unpickler(allow: tuple[type, ...]) -> type[pickle.Unpickler]:
    """Return a class of unpicklers that find what is plain or allowed; without a constructor."""
    allowed = {_name_of(kind): kind for kind in (*_PLAIN, *_MAKERS, *allow)}

    class DataUnpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = allowed.get((module, name))
            if found is None:
                raise pickle.UnpicklingError(f"it names {module}.{name}, which is not plain data")
            return found

    return DataUnpickler


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
        names = sorted(".".join(_name_of(kind)) for kind in self.allow)
        return "data-1" + "".join(f" {name}" for name in names)

    def encoder(self) -> Encoder:
        """Return a function for one writer."""
        return self._pickler().encode

    def _pickler(self) -> _PickleOnce:
        return _PickleOnce(frozenset((*_PLAIN, *self.allow)))

    def stepper(self) -> Stepper:
        """Return a function that decodes, steps and encodes many values."""
        decode, pickler = self.decoder(), self._pickler()
        loads = pickle.loads

        def step_all(
            given: list[Any], before: list[bytes | None], step: Step
        ) -> list[bytes | None]:
            after: list[bytes | None] = []
            dump, forget = pickler.start(after)
            is_careful = bool(_EXTENSIONS)
            for wanted, new, record in zip(range(1, len(given) + 1), given, before, strict=True):
                if record is None:
                    value = step(new, None)
                elif (
                    _STACK_GLOBAL in record
                    or (_LINE_END in record and record.count(_LINE_END) > 1)
                    or is_careful
                ):
                    value = step(new, decode(record))
                else:  # as in the decoder, without calling it
                    try:
                        old = loads(record)
                    except Exception as error:
                        raise _undecodable(record, error) from error
                    value = step(new, old)
                if value is None:
                    after.append(None)
                else:
                    dump(value)
                    forget()
                if len(after) != wanted:  # large strings are written on their own
                    after[wanted - 1 :] = [b"".join(after[wanted - 1 :])]  # type: ignore[arg-type]
            return after

        return step_all

    def decoder(self) -> Decoder:
        """Return the function that makes a value of bytes."""
        careful = _unpickler(self.allow)
        loads, memory = pickle.loads, io.BytesIO

        def decode(record: bytes) -> Any:
            try:
                if (
                    _STACK_GLOBAL in record
                    or (_LINE_END in record and record.count(_LINE_END) > 1)
                    or _EXTENSIONS
                ):
                    return careful(memory(record)).load()
                return loads(record)  # it cannot name a class, and all else is plain
            except Exception as error:
                raise _undecodable(record, error) from error

        return decode

    def many_decoder(self) -> ManyDecoder:
        """Return the function that makes values of the bytes of many."""
        decode, loads = self.decoder(), pickle.loads

        def decode_many(records: list[bytes]) -> list[Any]:
            if _EXTENSIONS:
                return list(map(decode, records))
            try:  # as in the decoder, without calling it
                return [
                    decode(record)
                    if _STACK_GLOBAL in record
                    or (_LINE_END in record and record.count(_LINE_END) > 1)
                    else loads(record)
                    for record in records
                ]
            except UndecodableValueError:
                raise
            except Exception:
                return list(map(decode, records))  # which says what is wrong

        return decode_many


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


class _PickleOnce:
    """One pickler for many values: making one for each would take four times as long."""

    def __init__(self, allowed: frozenset[type]) -> None:
        self._allowed = allowed
        self._written: list[Any] = []
        self._dump, self._forget = self.start(self._written)

    def start(self, written: list[Any]) -> tuple[Callable[[Any], None], Callable[[], None]]:
        """Return a function that appends to *written*, and one to call between two values."""
        pickler = _DataPickler(_Sink(written.append), self._allowed)
        return pickler.dump, pickler.clear_memo

    def encode(self, value: Any) -> bytes:
        """Return the bytes of one value."""
        written = self._written
        try:
            self._dump(value)
        except BaseException:
            written.clear()
            self._dump, self._forget = self.start(written)
            raise
        self._forget()
        whole: bytes = written.pop() if len(written) == 1 else b"".join(written)
        written.clear()
        return whole


class _Sink:
    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write


def _undecodable(record: bytes, error: Exception) -> UndecodableValueError:
    return UndecodableValueError(
        f"a record of {len(record)} bytes holds no value of this codec: {error}; read it with the "
        "codec and the allowed classes that wrote it"
    )

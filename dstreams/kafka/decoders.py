"""Decoders of keys and values: functions of bytes, text, JSON and Protocol Buffers."""

from __future__ import annotations

import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from dstreams.common.callables import describe, require_function
from dstreams.errors import InvalidStreamError
from dstreams.spark.nesting import MOST_NESTED, require_shallow

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

HEADER_BYTES = 5
_HEADER = struct.Struct(">bI")
_MSGSPEC_CACHE = "__msgspec_cache__"
_Path = tuple[int, ...]
_FIRST: _Path = (0,)


class Decoder(ABC, Generic[T_co]):
    """Decodes the keys or the values of records.

    Null keys and values stay None and are not decoded. Any exception rejects the record; its type
    and a short text are reported with topic, partition and offset. An error of ``dstreams.errors``
    fails the batch instead, in every mode.

    Each task gets a copy of the decoder: create connections and caches on first use in the worker,
    and keep them in your module.

    >>> class Upper(Decoder):
    ...     def decode(self, data, topic):
    ...         return data.decode().upper()
    >>> Upper().decode_block([b"a", None], "letters")
    ['A', None]
    """

    @abstractmethod
    def decode(self, data: bytes, topic: str) -> T_co:
        """Return the value of one record of *topic*."""

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[T_co | None]:
        """Return the values of many records of one partition in order, None for None.

        If it raises, the records of the block are decoded one by one.
        """
        decode = self.decode
        return [None if data is None else decode(data, topic) for data in values]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


Decode: TypeAlias = "Decoder[Any] | Callable[[bytes], Any]"
"""A decoder, or a function ``bytes -> value``, which is never called with None."""


def utf8_decoder(s: bytes | None) -> str | None:
    """Return UTF-8 as text, None for None.

    Semantics: utf8_decoder of pyspark.streaming.kafka (2.4) and pyspark.streaming.kinesis.

    >>> utf8_decoder(b"caf\\xc3\\xa9"), utf8_decoder(None)
    ('café', None)
    """
    return None if s is None else s.decode("utf-8")


class FunctionDecoder(Decoder[Any]):
    """Decodes by a function of bytes."""

    def __init__(self, function: Callable[[bytes], Any]) -> None:
        self._function = function

    def decode(self, data: bytes, topic: str) -> Any:
        return self._function(data)

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[Any]:
        function = self._function
        return [None if data is None else function(data) for data in values]

    def __repr__(self) -> str:
        return describe(self._function)


def as_decoder(decode: Decode | None, what: str) -> Decoder[Any] | None:
    """Return a decoder, None to keep bytes; *what* names the parameter.

    Raises:
        InvalidStreamError: it is neither a decoder nor a function of bytes, or cannot be pickled.
    """
    if decode is None or isinstance(decode, Decoder):
        return decode
    if isinstance(decode, type) and issubclass(decode, Decoder):
        raise InvalidStreamError(
            f"{what} is the class {decode.__name__}; give an instance: {decode.__name__}(...)"
        )
    require_function(decode, what, "bytes -> value")
    return FunctionDecoder(decode)


class Utf8Decoder(Decoder[str]):
    """Text; bytes that are not UTF-8 are rejected.

    >>> Utf8Decoder().decode_block([b"a", None], "letters")
    ['a', None]
    """

    def decode(self, data: bytes, topic: str) -> str:
        return data.decode("utf-8")

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[str | None]:
        if None in values:
            return super().decode_block(values, topic)
        return list(map(bytes.decode, values))  # type: ignore[arg-type]  # None is excluded above


def schema_id(data: bytes) -> int:
    """Return the schema id that serializers of a Schema Registry write before a value.

    >>> schema_id(b"\\x00\\x00\\x00\\x00\\x07and the value")
    7

    Raises:
        ValueError: the header is missing.
    """
    if len(data) < HEADER_BYTES:
        raise ValueError(
            f"{len(data)} bytes are too few for the {HEADER_BYTES} of a schema id; was it written "
            "by a serializer of a Schema Registry?"
        )
    magic, number = _HEADER.unpack_from(data)
    if magic != 0:
        raise ValueError(
            f"it begins with the byte {data[0]:#04x} and not with the zero before a schema id; was "
            "it written by a serializer of a Schema Registry?"
        )
    return int(number)


class JsonDecoder(Decoder[T]):
    """JSON, decoded by msgspec; with a type, values are checked against it.

    >>> JsonDecoder().decode(b'{"user": "ann", "pages": 3}', "clicks")
    {'user': 'ann', 'pages': 3}
    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Click:
    ...     user: str
    ...     pages: int = 0
    >>> JsonDecoder(Click).decode(b'{"user": "ann"}', "clicks")
    Click(user='ann', pages=0)
    >>> JsonDecoder(Click).decode(b'{"user": 7}', "clicks")
    Traceback (most recent call last):
    msgspec.ValidationError: Expected `str`, got `int` - at `$.user`

    Lists and objects that are nested deeper than 200 are rejected.

    Args:
        of: any type that msgspec supports: a dataclass, a TypedDict, a ``dict[str, int]``, a
            Struct. Unknown fields are ignored. A Struct must be defined in a module that workers
            can import; other types may be defined in the main program.
        framed: the JSON follows the five bytes that serializers of a Schema Registry write. The
            schema is not fetched, as it is not needed to read the value.

    Raises:
        InvalidStreamError: msgspec does not support this type.
    """

    def __init__(self, of: type[T] | Any = Any, *, framed: bool = False) -> None:
        self._of = of
        self._framed = framed
        self._json = self._decoder()

    def decode(self, data: bytes, topic: str) -> T:
        if self._framed:
            schema_id(data)
            data = data[HEADER_BYTES:]
        require_shallow(data)
        return self._json.decode(data)

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[T | None]:
        if self._framed or None in values:
            return super().decode_block(values, topic)
        texts = cast("Sequence[bytes]", values)
        if max(map(len, texts), default=0) > MOST_NESTED:
            for text in texts:
                require_shallow(text)
        return list(map(self._json.decode, texts))

    def _decoder(self) -> msgspec.json.Decoder[T]:
        try:
            return msgspec.json.Decoder(self._of)
        except TypeError as error:
            raise InvalidStreamError(
                f"JsonDecoder cannot decode to {self._of!r} ({error}); give it a type that msgspec "
                "knows, such as a dataclass"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        for each in _classes_in(self._of):
            _make_picklable(each)
        return {"_of": self._of, "_framed": self._framed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._json = self._decoder()

    def __repr__(self) -> str:
        if self._of is Any:
            return "JsonDecoder()"
        is_class = isinstance(self._of, type) and get_origin(self._of) is None
        return f"JsonDecoder({self._of.__name__ if is_class else self._of})"


def _classes_in(of: Any, seen: frozenset[Any] = frozenset()) -> Iterator[type]:
    """Yield the classes with fields that a type consists of."""
    if isinstance(of, type) and get_origin(of) is None:
        if of in seen or of.__module__ == "builtins":
            return
        yield of
        seen, parts = seen | {of}, tuple(get_type_hints(of).values())
    else:
        parts = get_args(of)
    for part in parts:
        yield from _classes_in(part, seen)


def _make_picklable(cls: type) -> None:
    """Prepare a class that workers cannot import to be pickled by value.

    Raises:
        InvalidStreamError: it cannot be.
    """
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is cls and cls.__module__ != "__main__":
        return
    if issubclass(cls, msgspec.Struct):
        raise InvalidStreamError(
            f"JsonDecoder: {cls.__qualname__} is a Struct of the main program, which cannot be "
            "sent to workers; define it in a module that they import, or make it a dataclass"
        )
    if _MSGSPEC_CACHE in vars(cls):
        delattr(cls, _MSGSPEC_CACHE)  # it cannot be pickled, and msgspec makes it again


class ProtobufDecoder(Decoder[Any]):
    """Messages of Protocol Buffers, as written by the serializers of Confluent.

    The schema id is followed by the index of the message in its .proto file, then the message. Only
    the index is checked: a message with another index is of another type and is rejected.

    >>> from google.protobuf.timestamp_pb2 import Timestamp
    >>> ProtobufDecoder(Timestamp).decode(bytes([0, 0, 0, 0, 9, 0, 8, 60]), "times").seconds
    60

    Args:
        message: class of the messages. If a topic has several, or the .proto file of the writer
            orders them differently: classes by index, ``{(0,): Order, (1,): Refund}``; ``(2, 0)``
            is the first message within the third.
        framed: False if the bytes are a message only; then there must be one class.

    Raises:
        InvalidStreamError: *message* is not a class generated by protoc.
    """

    def __init__(self, message: type[Any] | Mapping[_Path, type[Any]], *, framed: bool = True):
        classes = message if isinstance(message, Mapping) else {None: message}
        for generated in classes.values():
            _require_generated(generated)
        if isinstance(message, Mapping) and (not framed or not message):
            raise InvalidStreamError(
                "ProtobufDecoder takes classes by index only if framed and not empty: framed is "
                f"{framed}, and there are {len(message)} classes"
            )
        self._classes: dict[_Path, type[Any]] = {
            _path_of(generated.DESCRIPTOR) if path is None else path: generated
            for path, generated in classes.items()
        }
        self._framed = framed

    def decode(self, data: bytes, topic: str) -> Any:
        if not self._framed:
            (only,) = self._classes.values()
            return only.FromString(data)
        schema_id(data)
        path, begin = _path(data)
        if path not in self._classes:
            known = ", ".join(f"{name.__name__} at {at}" for at, name in self._classes.items())
            raise ValueError(
                f"it is the message at {path} of its .proto file, and ProtobufDecoder has {known}"
            )
        return self._classes[path].FromString(data[begin:])

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[Any]:
        first = self._classes.get(_FIRST)
        if not self._framed or first is None:
            return super().decode_block(values, topic)
        parse, decode, begin = first.FromString, self.decode, HEADER_BYTES + 1
        # Nearly all messages are the first of their file, whose index is written as one zero.
        return [
            None
            if data is None
            else parse(data[begin:])
            if data[:1] == data[HEADER_BYTES:begin] == b"\0"
            else decode(data, topic)
            for data in values
        ]

    def __repr__(self) -> str:
        return f"ProtobufDecoder({', '.join(each.__name__ for each in self._classes.values())})"


def _require_generated(generated: object) -> None:
    is_message = isinstance(generated, type) and hasattr(generated, "DESCRIPTOR")
    if not is_message or not hasattr(generated, "FromString"):
        raise InvalidStreamError(
            f"ProtobufDecoder needs a message class that protoc has generated, got {generated!r}"
        )


def _path_of(descriptor: Any) -> _Path:
    """Return the index of a message in its file, as serializers write it."""
    outer = descriptor.containing_type
    file = descriptor.file
    siblings = outer.nested_types if outer is not None else file.message_types_by_name.values()
    at = [sibling.full_name for sibling in siblings].index(descriptor.full_name)
    return (at,) if outer is None else (*_path_of(outer), at)


def _path(data: bytes) -> tuple[_Path, int]:
    """Return the index of a message, and the position where the message begins."""
    count, at = _zigzag(data, HEADER_BYTES)
    if count == 0:  # short for the first message
        return _FIRST, at
    path = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        path.append(index)
    return tuple(path), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    number = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            number = (number >> 1) ^ -(number & 1)
            if number < 0:
                break
            return number, at
        shift += 7
    raise ValueError("the index of its message in the .proto file is damaged")

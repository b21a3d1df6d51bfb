"""Protocol Buffers, by the classes that protoc generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders.decoder import Decoder
from dstreams.kafka.decoders.schema_framing import HEADER_BYTES, schema_id

_Path = tuple[int, ...]
_FIRST: _Path = (0,)


class ProtobufDecoder(Decoder[Any]):
    """Messages of Protocol Buffers.

    The bytes are what the serializers of Confluent write: the id of a schema, the place of the
    message in its .proto file, then the message. Only the place is looked at: a message that stands
    elsewhere than the given one is of another kind, and would be read as nonsense.

    >>> from google.protobuf.timestamp_pb2 import Timestamp
    >>> ProtobufDecoder(Timestamp).decode(bytes([0, 0, 0, 0, 9, 0, 8, 60]), "times").seconds
    60

    Args:
        message: class of the messages. Where a topic has several, or the .proto file of the writer
            has them in another order: classes by their places, ``{(0,): Order, (1,): Refund}``;
            ``(2, 0)`` is the first message within the third.
        framed: False: the bytes are a message and nothing else; then there is one class.

    Raises:
        InvalidStreamError: *message* is no class that protoc has generated.
    """

    def __init__(self, message: type[Any] | Mapping[_Path, type[Any]], *, framed: bool = True):
        classes = message if isinstance(message, Mapping) else {None: message}
        for generated in classes.values():
            _require_generated(generated)
        if isinstance(message, Mapping) and (not framed or not message):
            raise InvalidStreamError(
                "ProtobufDecoder takes classes by their places where these are written: "
                f"framed is {framed}, and there are {len(message)} classes"
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
        # Nearly all messages are the first of their file, of which one zero is the place.
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
    """Return the place of a message in its file, as serializers write it."""
    outer = descriptor.containing_type
    siblings = outer.nested_types if outer is not None else _top_level(descriptor.file)
    at = [sibling.full_name for sibling in siblings].index(descriptor.full_name)
    return (at,) if outer is None else (*_path_of(outer), at)


def _top_level(file: Any) -> list[Any]:
    return list(file.message_types_by_name.values())


def _path(data: bytes) -> tuple[_Path, int]:
    """Return the place of a message and where the message begins."""
    count, at = _zigzag(data, HEADER_BYTES)
    if count == 0:  # stands for the first message
        return _FIRST, at
    path = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        path.append(index)
    return tuple(path), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and what is the next byte."""
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
    raise ValueError("the place of its message in the .proto file is damaged")

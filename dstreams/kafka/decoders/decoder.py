"""What a decoder is: a function of bytes, or a :class:`Decoder`, which sees a block at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from dstreams.common.callables import describe, require_function
from dstreams.errors import InvalidStreamError

T_co = TypeVar("T_co", covariant=True)


class Decoder(ABC, Generic[T_co]):
    """Makes values of the bytes that are the key or the value of a record.

    A null key or value is None and never decoded. What cannot be decoded raises any exception, of
    which the kind and a short text are reported with topic, partition and offset. An error of
    ``dstreams.errors`` is none of the record's: it fails the batch, whatever is done with bad
    records.

    A decoder is sent to the workers, in each task anew: connections and caches are made there, when
    they are first used, and are kept in the module.

    >>> class Upper(Decoder):
    ...     def decode(self, data, topic):
    ...         return data.decode().upper()
    >>> Upper().decode_block([b"a", None], "letters")
    ['A', None]
    """

    @abstractmethod
    def decode(self, data: bytes, topic: str) -> T_co:
        """Return the value of one record; *topic* is where it is from."""

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[T_co | None]:
        """Return the values of many records of one partition, in their order, None for None.

        It may raise at the first that cannot be decoded: then each of the block is decoded by
        itself.
        """
        decode = self.decode
        return [None if data is None else decode(data, topic) for data in values]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


Decode: TypeAlias = "Decoder[Any] | Callable[[bytes], Any]"
"""A decoder, or a function ``bytes -> value``, which is never called with None."""


def utf8_decoder(s: bytes | None) -> str | None:
    """Return the text of UTF-8, None for None.

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
    """Return what decodes, None where keys or values stay bytes; *what* names the parameter.

    Raises:
        InvalidStreamError: it is neither a decoder nor a function of bytes, or cannot be sent to
            the workers.
    """
    if decode is None or isinstance(decode, Decoder):
        return decode
    if isinstance(decode, type) and issubclass(decode, Decoder):
        raise InvalidStreamError(
            f"{what} is the class {decode.__name__}; give an object of it: {decode.__name__}(...)"
        )
    require_function(decode, what, "bytes -> value")
    return FunctionDecoder(decode)

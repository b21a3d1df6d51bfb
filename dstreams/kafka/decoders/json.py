"""JSON, by msgspec."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders.decoder import Decoder
from dstreams.kafka.decoders.schema_framing import HEADER_BYTES, schema_id
from dstreams.spark.nesting import MOST_NESTED, require_shallow

T = TypeVar("T")

_MSGSPEC_CACHE = "__msgspec_cache__"


class JsonDecoder(Decoder[T]):
    """What a JSON text says: of any shape, or of one type, which is checked.

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

    Lists and objects that are nested deeper than 200 cannot be decoded.

    Args:
        of: type of the values, as msgspec takes it: a dataclass, a TypedDict, a ``dict[str, int]``,
            a Struct; fields that it does not have are passed over. Workers import a Struct from
            its module; the others may be of the main program.
        framed: the text stands behind the five bytes that serializers of a Schema Registry write.
            The schema is not asked for: it says how the text was checked, not how it is read.

    Raises:
        InvalidStreamError: msgspec cannot decode to this type.
    """

    def __init__(self, of: type[T] | Any = Any, *, framed: bool = False) -> None:
        self._of = of
        self._framed = framed
        self._text = self._decoder()

    def decode(self, data: bytes, topic: str) -> T:
        if self._framed:
            schema_id(data)
            data = data[HEADER_BYTES:]
        require_shallow(data)
        return self._text.decode(data)

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[T | None]:
        if self._framed or None in values:
            return super().decode_block(values, topic)
        texts = cast("Sequence[bytes]", values)
        if max(map(len, texts), default=0) > MOST_NESTED:
            for text in texts:
                require_shallow(text)
        return list(map(self._text.decode, texts))

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
            _make_ready_to_send(each)
        return {"_of": self._of, "_framed": self._framed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._text = self._decoder()

    def __repr__(self) -> str:
        if self._of is Any:
            return "JsonDecoder()"
        is_class = isinstance(self._of, type) and get_origin(self._of) is None
        return f"JsonDecoder({self._of.__name__ if is_class else self._of})"


def _classes_in(of: Any, seen: frozenset[Any] = frozenset()) -> Iterator[type]:
    """Yield the classes with fields that a type is made of."""
    if isinstance(of, type) and get_origin(of) is None:
        if of in seen or of.__module__ == "builtins":
            return
        yield of
        seen, parts = seen | {of}, tuple(get_type_hints(of).values())
    else:
        parts = get_args(of)
    for part in parts:
        yield from _classes_in(part, seen)


def _make_ready_to_send(cls: type) -> None:
    """Let a class be pickled as it is, where workers cannot import it.

    Raises:
        InvalidStreamError: it cannot be.
    """
    if _is_importable(cls):
        return
    if issubclass(cls, msgspec.Struct):
        raise InvalidStreamError(
            f"JsonDecoder: {cls.__qualname__} is a Struct of the main program, which cannot be "
            "sent to workers; define it in a module that they import, or make it a dataclass"
        )
    if _MSGSPEC_CACHE in vars(cls):
        delattr(cls, _MSGSPEC_CACHE)  # msgspec makes it again; it cannot be pickled


def _is_importable(cls: type) -> bool:
    """Whether a worker finds a class under its name; else it is pickled as it is."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls and cls.__module__ != "__main__"

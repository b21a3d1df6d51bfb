"""What a reader and a writer have in common: to look at one content."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, TypeVar

from checkpoint.state_store.base import Base
from checkpoint.state_store.life import Life
from checkpoint.state_store.ranges import EVERYTHING, KeyRange, key_range, prefix_range
from checkpoint.state_store.records import extras_of
from checkpoint.state_store.reference import Reference, StoreId
from checkpoint.state_store.scanning import decoded, key_of
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.timeouts import index_stop, split_entry
from checkpoint.state_store.value_codec import ValueCodec

_V = TypeVar("_V", bound="View")


class View:
    """A content that is open; who derives from it says where records come from.

    Args:
        what: how messages call it.
        store: the store.
        base: the content.
        values: codec of its values.
    """

    def __init__(
        self, what: Literal["reader", "writer"], store: StoreId, base: Base, values: ValueCodec
    ) -> None:
        self.store = store
        self._base = base
        self._shapes = Shapes(base.codec)
        self._decode = values.decoder(self._shapes)
        self._decode_many = values.many_decoder(self._shapes)
        self._classes = values.classes
        self._life = Life(what, store, base.reference)

    @property
    def reference(self) -> Reference:
        """The content that was opened."""
        return self._base.reference

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        record = self._record(key)
        return None if record is None else self._decode(record)

    def timeout_ms(self, key: Any) -> int | None:
        """Return when a key is due, None if never or if it is not there."""
        record = self._record(key)
        return None if record is None else extras_of(record).timeout_ms

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value), in the order of encoded keys."""
        return self._scan(EVERYTHING)

    def prefix(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs whose keys begin with a text, bytes, or elements of a tuple."""
        return self._scan(prefix_range(prefix))

    def range(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs with keys from *start* up to before *stop*."""
        return self._scan(key_range(start, stop))

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, timeout in ms) of the keys that are due before *until_ms*."""
        self._life.require()
        return self._due(until_ms)

    def count(self) -> int:
        """Return the number of keys."""
        self._life.require()
        return self._base.count()

    def size_bytes(self) -> int:
        """Return about how much room the content takes."""
        self._life.require()
        return self._base.size_bytes()

    def __enter__(self: _V) -> _V:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """End it, if it has not come to its end."""
        raise NotImplementedError

    def _record(self, key: Any) -> bytes | None:
        """Return the record of a key."""
        raise NotImplementedError

    def _at(self, raw: bytes) -> bytes | None:
        """Return the record of an encoded key."""
        raise NotImplementedError

    def _stream(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over encoded keys and records in order, None for one that is not there."""
        raise NotImplementedError

    def _entries(self, stop: bytes) -> Iterator[bytes]:
        """Iterate over the entries of the timeout index in order, up to before *stop*."""
        raise NotImplementedError

    def _put_off(self, raw: bytes, record: bytes) -> None:
        """Note that the timeout index names a key before it is due."""
        raise NotImplementedError

    def _scan(self, wanted: KeyRange) -> Iterator[tuple[Any, Any]]:
        self._life.require()
        stream = self._stream(wanted.first, wanted.last)
        return decoded(stream, wanted, self._decode, self._decode_many, self._classes, self._life)

    def _due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        self._life.require()
        for entry in self._entries(index_stop(until_ms)):
            indexed_ms, raw = split_entry(entry)
            record = self._at(raw)
            if record is None:
                continue
            extras = extras_of(record)
            timeout_ms = extras.timeout_ms
            if extras.indexed_ms != indexed_ms or timeout_ms is None:
                continue  # put anew since this iteration began
            if timeout_ms < until_ms:
                key = key_of(raw, record, self._decode, self._classes)
                yield key, self._decode(record), timeout_ms
                self._life.require()
            else:
                self._put_off(raw, record)

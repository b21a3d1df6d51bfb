"""A reader of one content."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from checkpoint.state_store.base import Base
from checkpoint.state_store.keys import encode_key
from checkpoint.state_store.life import Life
from checkpoint.state_store.ranges import EVERYTHING, KeyRange, key_range, prefix_range
from checkpoint.state_store.records import extras_of
from checkpoint.state_store.reference import Reference, StoreId
from checkpoint.state_store.scanning import decoded, key_of
from checkpoint.state_store.timeouts import index_stop, split_entry
from checkpoint.state_store.values import ValueCodec


class Reader:
    """One content of a store; see :class:`checkpoint.state_store.protocol.StateReader`."""

    def __init__(self, store: StoreId, base: Base, values: ValueCodec) -> None:
        self.store = store
        self._base = base
        self._find = base.get
        self._values = values
        self._decode = values.decoder()
        self._life = Life("reader", store, base.reference)

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

    def close(self) -> None:
        """Give the content back; again is fine."""
        if self._life.is_open:
            self._life.finish("closed")
            self._base.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _record(self, key: Any) -> bytes | None:
        self._life.require()
        return self._find(encode_key(key))

    def _scan(self, wanted: KeyRange) -> Iterator[tuple[Any, Any]]:
        self._life.require()
        stream = self._base.scan(wanted.first, wanted.last)
        return decoded(stream, wanted, self._values, self._life)

    def _due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        self._life.require()
        for entry in self._base.scan_index(index_stop(until_ms)):
            indexed_ms, raw = split_entry(entry)
            record = self._find(raw)
            if record is None:
                continue
            extras = extras_of(record)
            timeout_ms = extras.timeout_ms
            if extras.indexed_ms == indexed_ms and timeout_ms is not None and timeout_ms < until_ms:
                yield key_of(raw, record, self._decode), self._decode(record), timeout_ms
                self._life.require()

"""A reader of one content.

Keys: see :mod:`checkpoint.state_store.keys`. Values: whatever the codec takes, but None, which
means that there is none. What a store hands out is new at each call; to change it in place changes
nothing in the store until it is put.

Any key may have a timeout. A store finds the keys that are due; whether they are removed is up to
who asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeVar

from checkpoint.state_store.base import Base
from checkpoint.state_store.keys import encode_key
from checkpoint.state_store.life import Life
from checkpoint.state_store.overlay import Overlay
from checkpoint.state_store.ranges import EVERYTHING, KeyRange, key_range, prefix_range
from checkpoint.state_store.records import extras_of
from checkpoint.state_store.scanning import decoded, key_of
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.timeouts import index_stop, split_entry
from checkpoint.state_store.values import ValueCodec
from checkpoint.stored_state import Reference, StoreId

_R = TypeVar("_R", bound="StateReader")


class StateReader:
    """One content of a store.

    Every method but :meth:`close` raises :class:`StateStoreUseError` after it, and so do the
    iterators. Keys that cannot be are refused with ``TypeError`` or ``ValueError``.

    Args:
        store: the store.
        base: the content.
        values: codec of its values.
        shapes: those of the content.
    """

    _what = "reader"

    def __init__(
        self, store: StoreId, base: Base | Overlay, values: ValueCodec, shapes: Shapes
    ) -> None:
        self.store = store
        self._content = base
        self._get = base.get
        self._decode = values.decoder(shapes)
        self._decode_many = values.many_decoder(shapes)
        self._classes = values.classes
        self._life = Life(self._what, store, base.reference)

    @property
    def reference(self) -> Reference:
        """The content that was opened."""
        return self._content.reference

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        record = self._record(key)
        return None if record is None else self._decode(record)

    def timeout_ms(self, key: Any) -> int | None:
        """Return when a key is due, None if never or if it is not there."""
        record = self._record(key)
        return None if record is None else extras_of(record).timeout_ms

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value), in the order of encoded keys.

        Keys come as they were put last, or as the plainest key that equals that.
        """
        return self._scan(EVERYTHING)

    def prefix(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs whose keys begin with *prefix*, in order.

        Args:
            prefix: str, bytes, or a tuple of the first elements.
        """
        return self._scan(prefix_range(prefix))

    def range(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs with keys from *start* up to before *stop*, in order.

        Args:
            start: int, str, bytes, date, datetime without zone, timedelta, UUID or tuple; None for
                the first key of the kind of *stop*.
            stop: of the same kind; None for no end.
        """
        return self._scan(key_range(start, stop))

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, timeout in ms) of the keys that are due before *until_ms*.

        They are found without a scan. Keys come in the order of the timeouts they had when they
        entered the index, so that running again gives the same order.
        """
        self._life.require()
        return self._due(until_ms)

    def count(self) -> int:
        """Return the number of keys."""
        self._life.require()
        return self._content.count()

    def size_bytes(self) -> int:
        """Return about how much room the content takes."""
        self._life.require()
        return self._content.size_bytes()

    def close(self) -> None:
        """Give the content back; again is fine."""
        if self._life.is_open:
            self._life.finish("closed")
            self._content.close()

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _record(self, key: Any) -> bytes | None:
        """Return the record of a key."""
        self._life.require()
        return self._get(encode_key(key))

    def _put_off(self, raw: bytes, record: bytes) -> None:
        """Note that the timeout index names a key before it is due: the next writer moves it."""

    def _scan(self, wanted: KeyRange) -> Iterator[tuple[Any, Any]]:
        self._life.require()
        stream = self._content.scan(wanted.first, wanted.last)
        return decoded(stream, wanted, self._decode, self._decode_many, self._classes, self._life)

    def _due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        self._life.require()
        for entry in self._content.scan_index(index_stop(until_ms)):
            indexed_ms, raw = split_entry(entry)
            record = self._get(raw)
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

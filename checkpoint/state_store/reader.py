"""A reader of one content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checkpoint.state_store.base import Base
from checkpoint.state_store.keys import encode_key
from checkpoint.state_store.value_codec import ValueCodec
from checkpoint.state_store.view import View
from checkpoint.stored_state import StoreId


class Reader(View):
    """One content of a store; see :class:`checkpoint.state_store.protocol.StateReader`."""

    def __init__(self, store: StoreId, base: Base, values: ValueCodec) -> None:
        super().__init__("reader", store, base, values)
        self._find = base.get

    def close(self) -> None:
        """Give the content back; again is fine."""
        if self._life.is_open:
            self._life.finish("closed")
            self._base.close()

    def _leave(self) -> None:
        self.close()

    def _record(self, key: Any) -> bytes | None:
        self._life.require()
        return self._find(encode_key(key))

    def _at(self, raw: bytes) -> bytes | None:
        return self._find(raw)

    def _stream(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        return self._base.scan(start, stop)

    def _entries(self, stop: bytes) -> Iterator[bytes]:
        return self._base.scan_index(stop)

    def _put_off(self, raw: bytes, record: bytes) -> None:
        pass  # the next writer that comes by moves it

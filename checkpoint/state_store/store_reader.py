"""A reader of one version of a store.

Keys may be of the kinds in :mod:`checkpoint.state_store.keys`, values anything that the codec
accepts except None. Every call returns new values; changing one in place changes nothing in the
store until it is put. Any key may have a timeout: the store finds due keys, the caller removes
them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from checkpoint.errors import CheckpointError
from checkpoint.log.version_records import StoreId, VersionId
from checkpoint.state_store.backend import RawVersion
from checkpoint.state_store.key_decoding import decode_key, decode_keys
from checkpoint.state_store.keys import (
    EVERYTHING,
    MAX_INLINE_BYTES,
    KeyRange,
    encode_key,
    key_range,
    prefix_range,
)
from checkpoint.state_store.records import (
    PLAIN_END,
    extras_of,
    index_stop,
    is_timed,
    split_entry,
    times_of,
)
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import ValueCodec
from checkpoint.state_store.write_buffer import WriteBuffer

_FIRST_CHUNK, _LAST_CHUNK = 8, 512
_PLAIN = {PLAIN_END}
_REMEDY = {
    "committed": "open a writer of what the commit returned",
    "aborted": "open another writer",
    "closed": "open another reader",
}


class StateStoreUseError(CheckpointError, RuntimeError):
    """A reader or writer was used after it ended."""


class CodecMismatchError(CheckpointError, ValueError):
    """A version was opened with another codec or schema than it was written with."""


class WriterState(enum.Enum):
    """The lifecycle state of a writer."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


_R = TypeVar("_R", bound="StateReader")


class StateReader:
    """One version of a store.

    After :meth:`close` every other method and every iterator raises :class:`StateStoreUseError`.
    Invalid keys raise ``TypeError`` or ``ValueError``.

    Args:
        store: the store.
        content: a version, or one with changes to it.
        values: codec of its values.
        shapes: shapes of the version.
    """

    _what = "reader"

    def __init__(
        self, store: StoreId, content: RawVersion | WriteBuffer, values: ValueCodec, shapes: Shapes
    ) -> None:
        self.store = store
        self._content = content
        self._get = content.get
        self._decode = values.decoder(shapes)
        self._decode_many = values.many_decoder(shapes)
        self._classes = values.classes
        self._version_id = content.version_id
        self._ended = ""

    @property
    def version_id(self) -> VersionId:
        """The version that was opened."""
        return self._version_id

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if it is missing."""
        record = self._record(key)
        return None if record is None else self._decode(record)

    def timeout_ms(self, key: Any) -> int | None:
        """Return when a key is due, None if never or if it is missing."""
        record = self._record(key)
        return None if record is None else extras_of(record).timeout_ms

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value), in the order of encoded keys.

        A key is returned as it was last put, or as the plainest key that equals it.
        """
        return self._scan(EVERYTHING)

    def prefix(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs whose keys begin with *prefix*, in order.

        Args:
            prefix: str, bytes, or a tuple of the first elements.
        """
        return self._scan(prefix_range(prefix))

    def range(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs with keys from *start* to before *stop*, in order.

        Args:
            start: int, str, bytes, date, datetime without zone, timedelta, UUID or tuple; None for
                the first key of the kind of *stop*.
            stop: of the same kind; None for the last key of the kind of *start*.
        """
        return self._scan(key_range(start, stop))

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, timeout in ms) of the keys that are due before *until_ms*.

        They are found without a scan. They are in the order of the timeouts with which they entered
        the index, so a repeated run has the same order.
        """
        self._require_open()
        return self._due(until_ms)

    def count(self) -> int:
        """Return the number of keys."""
        self._require_open()
        return self._content.count()

    def size_bytes(self) -> int:
        """Return the approximate size of the version."""
        self._require_open()
        return self._content.size_bytes()

    def close(self) -> None:
        """Release the version. May be called again."""
        if not self._ended:
            self._ended = "closed"
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
        self._require_open()
        return self._get(encode_key(key))

    def _reschedule(self, raw: bytes, record: bytes) -> None:
        """Handle an index entry that is too early; only a writer moves it."""

    def _require_open(self) -> None:
        """Raise :class:`StateStoreUseError` unless it is open."""
        if self._ended:
            store = self.store
            raise StateStoreUseError(
                f"the {self._what} of version {self.version_id.version} of store {store.store!r} "
                f"of operator {store.operator_uid!r}, partition {store.partition}, is "
                f"{self._ended}; "
                f"{_REMEDY[self._ended]}"
            )

    def _scan(self, wanted: KeyRange) -> Iterator[tuple[Any, Any]]:
        self._require_open()
        return self._decoded(self._content.scan(wanted.first, wanted.last), wanted)

    def _decoded(
        self, stream: Iterator[tuple[bytes, bytes | None]], wanted: KeyRange
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value) of a stream of records, skipping removed keys.

        Decodes several at once, but not many more than are pulled.
        """
        self._require_open()
        is_exact, decode = wanted.is_exact, self._decode
        wanted_count = _FIRST_CHUNK
        while chunk := list(islice(stream, wanted_count)):
            wanted_count = min(2 * wanted_count, _LAST_CHUNK)
            pairs = self._decoded_together(chunk) if is_exact else None
            if pairs is None:
                pairs = [
                    (self._key_of(raw, record), decode(record))
                    for raw, record in chunk
                    if record is not None
                    and (is_exact or wanted.holds(extras_of(record).whole or raw))
                ]
            for pair in pairs:
                yield pair
                if self._ended:
                    self._require_open()

    def _decoded_together(
        self, chunk: list[tuple[bytes, bytes | None]]
    ) -> Iterable[tuple[Any, Any]] | None:
        """Decode pairs that are all present, short and plain; else None."""
        raws, records = map(list, zip(*chunk, strict=True))
        try:
            ends = {record[-1] for record in records}
        except TypeError:  # None: one was removed
            return None
        if ends != _PLAIN or len(max(raws, key=len)) > MAX_INLINE_BYTES:
            return None
        return zip(decode_keys(raws, self._classes), self._decode_many(records), strict=True)

    def _key_of(self, raw: bytes, record: bytes) -> Any:
        """Return the key of a record, as it was put or as the plainest equal key."""
        if len(raw) <= MAX_INLINE_BYTES and (record[-1] == PLAIN_END or is_timed(record)):
            return decode_key(raw, self._classes)
        extras = extras_of(record)
        if extras.original is not None:
            return self._decode(extras.original)
        return decode_key(raw if extras.whole is None else extras.whole, self._classes)

    def _due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        self._require_open()
        for entry in self._content.scan_index(index_stop(until_ms)):
            indexed_ms, raw = split_entry(entry)
            record = self._get(raw)
            if record is None:
                continue
            timeout_ms, entry_ms = times_of(record)
            if entry_ms != indexed_ms or timeout_ms is None:
                continue  # put again after this iteration began
            if timeout_ms < until_ms:
                yield self._key_of(raw, record), self._decode(record), timeout_ms
                self._require_open()
            else:
                self._reschedule(raw, record)

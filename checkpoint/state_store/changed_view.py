"""One content under changes that nobody else sees yet: what a writer reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from checkpoint.state_store.base import Base
from checkpoint.state_store.overlay import (
    CHUNK_KEYS,
    Columns,
    OrderedChanges,
    columns_of,
    entries_between,
    overlaid,
)
from checkpoint.state_store.spill import Runs
from checkpoint.state_store.value_codec import ValueCodec
from checkpoint.state_store.view import View
from checkpoint.stored_state import StoreId

ENTRY = b"+"
"""An entry of the timeout index that is there."""


class ChangedView(View):
    """A content and changes to it, in memory and in files.

    Args:
        store: the store.
        base: the content.
        values: codec of its values.
        spill_directory: where changes go for which there is no memory.
    """

    def __init__(
        self, store: StoreId, base: Base, values: ValueCodec, spill_directory: str | None
    ) -> None:
        super().__init__("writer", store, base, values)
        self._changed: dict[bytes, bytes | None] = {}  # None: removed
        self._ordered = OrderedChanges()  # put in their order; as long as nothing is in _changed
        self._index: dict[bytes, bytes | None] = {}
        self._runs = Runs(spill_directory)
        self._below: Callable[[bytes], bytes | None] = base.get

    def _fold(self) -> None:
        """Bring all changes where one of them can be found by its key."""
        if self._ordered:
            self._ordered.move_to(self._changed)

    def _follow(self, raws: list[bytes]) -> bool:
        """Whether keys that are in order stand behind all that was changed."""
        return not self._changed and self._ordered.follow(raws)

    def _records(self, raws: list[bytes]) -> list[bytes | None]:
        self._fold()
        changed = self._changed
        if changed.keys().isdisjoint(raws):
            return self._records_below(raws)
        rest = iter(self._records_below([raw for raw in raws if raw not in changed]))
        return [changed[raw] if raw in changed else next(rest) for raw in raws]

    def _records_below(self, raws: list[bytes]) -> list[bytes | None]:
        return list(map(self._below, raws)) if len(self._runs) else self._base.get_many(raws)

    def _spilled_or_below(self, raw: bytes) -> bytes | None:
        spilled = self._runs.get(raw)
        return self._base.get(raw) if spilled is None else spilled or None

    def _at(self, raw: bytes) -> bytes | None:
        self._fold()
        changed = self._changed
        return changed[raw] if raw in changed else self._below(raw)

    def _stream(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        base: Iterator[tuple[bytes, bytes | None]] = self._base.scan(start, stop)
        yield from overlaid(base, self._own(start, stop)) if self._has_changes() else base

    def _entries(self, stop: bytes) -> Iterator[bytes]:
        base = ((entry, ENTRY) for entry in self._base.scan_index(stop))
        for entry, present in overlaid(base, self._own_index(stop)):
            if present is not None:
                yield entry

    def _has_changes(self) -> bool:
        return bool(self._ordered or self._changed or self._index or len(self._runs))

    def _own(
        self, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | None]]:
        self._fold()
        in_memory = entries_between(self._changed, start, stop)
        return overlaid(self._runs.scan(start, stop), in_memory) if len(self._runs) else in_memory

    def _own_index(self, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        in_memory = entries_between(self._index, b"", stop)
        return overlaid(self._runs.scan_index(stop), in_memory) if len(self._runs) else in_memory

    def _own_columns(self) -> Iterator[Columns]:
        """Yield keys and records of all changes, in parts, in key order."""
        if len(self._runs):
            return _in_columns(self._own())
        if self._ordered:
            return self._ordered.columns()
        return _in_parts(*columns_of(self._changed))

    def _own_index_columns(self) -> Iterator[Columns]:
        """Yield entries of the timeout index and None for those that leave it, likewise."""
        if len(self._runs):
            return _in_columns(self._own_index())
        return _in_parts(*columns_of(self._index))


def _in_columns(pairs: Iterator[tuple[bytes, bytes | None]]) -> Iterator[Columns]:
    while part := list(islice(pairs, CHUNK_KEYS)):
        raws, records = map(list, zip(*part, strict=True))
        yield raws, records


def _in_parts(raws: list[bytes], records: list[bytes | None]) -> Iterator[Columns]:
    for start in range(0, len(raws), CHUNK_KEYS):
        chunk = slice(start, start + CHUNK_KEYS)
        yield raws[chunk], records[chunk]

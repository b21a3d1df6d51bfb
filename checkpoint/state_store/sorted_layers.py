"""Layers of changes: sorted streams in which the upper one wins, and their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice, repeat
from operator import lt
from typing import TypeVar

from checkpoint.state_store.backend import Changes, Pairs, RawVersion
from checkpoint.state_store.columns import Column

CHUNK_KEYS = 50_000

Columns = tuple[Sequence[bytes], Sequence["bytes | None"]]
"""Keys and what stands for them, apart."""

_V = TypeVar("_V")


class OrderedChanges:
    """Records that were put in the order of their keys, joined as they come."""

    def __init__(self) -> None:
        self._first = self._last = b""
        self._columns: list[tuple[Column, Column]] = []

    def __bool__(self) -> bool:
        return bool(self._columns)

    def follow(self, raws: list[bytes]) -> bool:
        """Whether keys that are in order stand behind all that are here."""
        return bool(raws) and self._last < raws[0]

    def meets(self, start: bytes, stop: bytes | None) -> bool:
        """Whether keys from *start* up to before *stop* may be here."""
        return bool(self._columns) and self._last >= start and (stop is None or self._first < stop)

    def add(self, raws: list[bytes], records: Sequence[bytes]) -> None:
        """Add keys that follow, and their records."""
        self._first = self._first or raws[0]
        self._last = raws[-1]
        self._columns.append((Column.of(raws), Column.of(records)))

    def columns(self) -> Iterator[tuple[Column, Column]]:
        """Yield all keys and records, in parts of a bounded number."""
        part: list[tuple[Column, Column]] = []
        count = 0
        for raws, records in self._columns:
            if count + len(raws) > CHUNK_KEYS:
                yield _joined(part)
                part, count = [], 0
            part.append((raws, records))
            count += len(raws)
        if part:
            yield _joined(part)

    def move_to(self, changed: dict[bytes, bytes | None]) -> None:
        """Put them all into *changed*, and begin anew."""
        for raws, records in self._columns:
            changed.update(zip(raws, records, strict=True))
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._first = self._last = b""
        self._columns.clear()


def _joined(part: list[tuple[Column, Column]]) -> tuple[Column, Column]:
    raws, records = zip(*part, strict=True)
    return Column.joined(raws), Column.joined(records)


class Apart:
    """Keys, or entries of the timeout index, that are all changed in one way, each once."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._first = self._last = b""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def meets(self, start: bytes, stop: bytes | None) -> bool:
        """Whether some may be from *start* up to *stop*."""
        return bool(self._keys) and self._last >= start and (stop is None or self._first <= stop)

    def add(self, keys: list[bytes]) -> None:
        """Add some, of which none is here."""
        if keys:
            first, last = min(keys), max(keys)
            self._first = min(self._first, first) if self._keys else first
            self._last = max(self._last, last)
            self._keys += keys

    def move_to(self, changed: dict[bytes, bytes | None], value: bytes | None) -> None:
        """Give all of them a value in *changed*, and begin anew."""
        if self._keys:
            changed.update(zip(self._keys, repeat(value)))
            self.clear()

    def parts(self) -> Iterator[list[bytes]]:
        """Yield all of them in order, in parts of a bounded number."""
        ordered = sorted(self._keys)
        for start in range(0, len(ordered), CHUNK_KEYS):
            yield ordered[start : start + CHUNK_KEYS]

    def clear(self) -> None:
        """Begin anew."""
        self._keys.clear()
        self._first = self._last = b""


def are_in_order(raws: list[bytes]) -> bool:
    """Whether each is less than the one after it."""
    return all(map(lt, raws, islice(raws, 1, None)))


def overlaid(
    below: Iterator[tuple[bytes, _V]], above: Iterator[tuple[bytes, _V]]
) -> Iterator[tuple[bytes, _V]]:
    """Merge two streams that are sorted by key; of a key that is in both, *above* counts."""
    end: tuple[None, None] = (None, None)
    key, value = next(above, end)
    if key is None:
        yield from below
        return
    for lower in below:
        while key is not None and key <= lower[0]:
            yield key, value  # type: ignore[misc]
            if key == lower[0]:
                key, value = next(above, end)
                break
            key, value = next(above, end)
        else:
            yield lower
    if key is not None:
        yield key, value  # type: ignore[misc]
        yield from above


def entries_between(
    changed: dict[bytes, _V], start: bytes = b"", stop: bytes | None = None
) -> Iterator[tuple[bytes, _V]]:
    """Return what is in *changed* now, sorted by key, from *start* up to before *stop*."""
    keys: Iterable[bytes] = changed
    if stop is not None:
        keys = [key for key in changed if start <= key < stop]
    elif start != b"":
        keys = [key for key in changed if start <= key]
    ordered = sorted(keys)
    return iter(list(zip(ordered, map(changed.__getitem__, ordered), strict=True)))


def columns_of(changed: dict[bytes, bytes | None]) -> Iterator[Columns]:
    """Yield what is in *changed*, sorted by key, in parts of a bounded number."""
    ordered = sorted(changed)
    for start in range(0, len(ordered), CHUNK_KEYS):
        raws = ordered[start : start + CHUNK_KEYS]
        yield raws, list(map(changed.__getitem__, raws))


def parts_of(
    columns: Iterator[Columns],
    index: Iterator[Columns],
    apart: list[Iterator[list[bytes]]],
    has_removed: bool,
    removes_from: RawVersion | None,
    count: int,
    checksum: int | None,
) -> Iterator[Changes]:
    """Yield the changes of a commit, in parts; one at least.

    What stands *apart* are keys that are removed, and entries that enter and leave the index: of
    these each kind is either there or in the other columns.
    """
    is_first = True
    while True:
        raws, records = next(columns, ([], []))
        entries, present = next(index, ([], []))
        gone, entering, leaving = (next(parts, []) for parts in apart)
        if not (raws or entries or gone or entering or leaving or is_first):
            return
        is_first = False
        removes: Sequence[bytes] = gone
        if has_removed:
            raws, records, removes = _parted(raws, records)
            if removes_from is not None:
                there = removes_from.get_many(removes)
                removes = [raw for raw, old in zip(removes, there, strict=True) if old is not None]
        if entries:
            entering, _, leaving = _parted(entries, present)  # type: ignore[assignment]
        yield Changes(
            puts=Pairs(raws, records),  # type: ignore[arg-type]
            removes=removes,
            index_puts=entering,
            index_removes=leaving,
            count=count,
            checksum=checksum,
        )


def _parted(
    raws: Sequence[bytes], records: Sequence[bytes | None]
) -> tuple[Sequence[bytes], Sequence[bytes | None], Sequence[bytes]]:
    """Return keys and records of those that are there, and the keys of those that are not."""
    if None not in records:
        return raws, records, []
    is_there = [record is not None for record in records]
    gone = [raw for raw, record in zip(raws, records, strict=True) if record is None]
    return list(compress(raws, is_there)), list(compress(records, is_there)), gone


def without_repeats(raws: list[bytes]) -> Iterator[slice]:
    """Yield the parts of a list, as long as can be, in which no key is there twice."""
    seen = set(raws)
    if len(seen) == len(raws):
        yield slice(0, len(raws))
        return
    start = 0
    seen.clear()
    for at, raw in enumerate(raws):
        if raw in seen:
            yield slice(start, at)
            start = at
            seen.clear()
        seen.add(raw)
    yield slice(start, len(raws))

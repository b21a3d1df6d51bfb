"""Layers of changes over a base: sorted streams in which the upper one wins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TypeVar

_V = TypeVar("_V")


def overlaid(
    below: Iterator[tuple[bytes, _V]], above: Iterator[tuple[bytes, _V]]
) -> Iterator[tuple[bytes, _V]]:
    """Merge two streams that are sorted by key; of a key that is in both, *above* counts."""
    end: tuple[None, None] = (None, None)
    key, value = next(above, end)
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
    pairs: Iterable[tuple[bytes, _V]] = changed.items()
    if start != b"" or stop is not None:
        pairs = (pair for pair in pairs if start <= pair[0] and (stop is None or pair[0] < stop))
    return iter(sorted(pairs, key=itemgetter(0)))

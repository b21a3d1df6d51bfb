"""Ranges of keys: which scans a store offers, and where they begin and end in bytes.

A prefix is a text, bytes, or a tuple, and finds the keys that begin with it; a tuple, those whose
first elements equal its elements. A range has two bounds of one kind, whose encodings are in the
order of the keys: int, text (by code point), bytes, date, datetime without zone, timedelta, UUID,
or tuples; of tuples each place should hold one of these kinds, or the order of the places that
differ is none that Python knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checkpoint.state_store.keys import KEPT_BYTES, encode_whole

# By the tag of a bound: where the encodings of its kind begin, and where they end.
_KINDS = {tag: (bytes((tag,)), bytes((tag + 1,))) for tag in b"sbtdwmu"}
_KINDS |= dict.fromkeys(b"hij", (b"h", b"k"))


@dataclass(frozen=True)
class KeyRange:
    """Encodings from *start* up to before *stop*; None is no end.

    Bounds may be longer than what is kept of a long key. Then :attr:`first` and :attr:`last` find
    some keys too many, and :meth:`holds` says of a whole encoding whether it is inside.
    """

    start: bytes = b""
    stop: bytes | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all keys from *first* to *last* are inside."""
        return max(len(self.start), len(self.stop or b"")) <= KEPT_BYTES

    @property
    def first(self) -> bytes:
        """Where to begin to scan."""
        return self.start[:KEPT_BYTES]

    @property
    def last(self) -> bytes | None:
        """Before which key to end."""
        if self.stop is None or len(self.stop) <= KEPT_BYTES:
            return self.stop
        return after_prefix(self.stop[:KEPT_BYTES])

    def holds(self, whole: bytes) -> bool:
        """Whether a whole encoding is inside."""
        return self.start <= whole and (self.stop is None or whole < self.stop)


EVERYTHING = KeyRange()


def prefix_range(prefix: Any) -> KeyRange:
    """Return the range of the keys that begin with *prefix*. Raises TypeError."""
    if isinstance(prefix, (str, bytes, tuple)):
        whole = encode_whole(prefix)
        # The next element of a tuple begins with a tag; a byte of 255 goes on with the last text.
        is_tuple = isinstance(prefix, tuple)
        return KeyRange(whole, whole + b"\xff" if is_tuple else after_prefix(whole))
    raise TypeError(
        f"prefix {prefix!r} of type {type(prefix).__name__} must be a str, bytes, or a tuple of "
        "the first elements"
    )


def key_range(start: Any, stop: Any) -> KeyRange:
    """Return the range of the keys from *start* up to before *stop*; None is no bound."""
    bounds = [None if bound is None else encode_whole(bound) for bound in (start, stop)]
    kinds = {_KINDS.get(bound[0]) for bound in bounds if bound is not None}
    if not kinds:
        raise TypeError("a range needs a start or a stop; items() iterates over all keys")
    if len(kinds) > 1 or None in kinds:
        raise TypeError(
            f"range from {start!r} to {stop!r} must be between two ints, texts, bytes, tuples, "
            "dates, datetimes without zone, timedeltas or UUIDs"
        )
    ((first, last),) = (kind for kind in kinds if kind is not None)
    return KeyRange(
        first if bounds[0] is None else bounds[0], last if bounds[1] is None else bounds[1]
    )


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes that are greater than all that begin with *prefix*."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None

"""Named rows, which are the results of aggregations, and the windows in them.

>>> from dstreams.structured.named_rows import class_of_rows
>>> row = class_of_rows(("user", "count"))(("ann", 3))
>>> row, row.count
(Row(user='ann', count=3), 3)
>>> row == ("ann", 3)
True

There is a class for each tuple of field names. The class name contains the field names, so pickles
and states store only the class name, and :func:`__getattr__` creates the class when they are read.
Pickling a row takes as long as pickling a named tuple.

>>> type(row).__name__
'Row-user-count'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Key = Callable[[Any], Any]
Finish = Callable[[Any], Any]

_PREFIX = "Row-"
_OTHER_SIGN = re.compile(r"\W")
_ESCAPED = re.compile(r"<([0-9a-f]+)>")


class Window(NamedTuple):
    """A span of event time, without its end; shown by its times in UTC.

    Args:
        start_ms: milliseconds since the epoch.
        end_ms: milliseconds since the epoch.
    """

    start_ms: int
    end_ms: int

    def __repr__(self) -> str:
        return f"Window({_shown(self.start_ms)}, {_shown(self.end_ms)})"

    def __str__(self) -> str:
        """Return the text of a table, as Spark shows windows."""
        return f"{{{_shown(self.start_ms)}, {_shown(self.end_ms)}}}"

    @property
    def start(self) -> datetime:
        """The start in UTC."""
        return datetime.fromtimestamp(self.start_ms / 1000, timezone.utc)

    @property
    def end(self) -> datetime:
        """The end in UTC."""
        return datetime.fromtimestamp(self.end_ms / 1000, timezone.utc)


def _shown(time_ms: int) -> str:
    """Return the text of a time; that of its number if no calendar has it."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
        return moment.isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


class NamedRow(tuple[Any, ...]):
    """A row of results: a tuple whose values are also attributes, under any names.

    ``row.count`` is the field ``count``, not the method of tuples. ``_asdict()`` and ``_fields``
    are as in named tuples.
    """

    __slots__ = ()

    _fields: ClassVar[tuple[str, ...]] = ()
    _field_defaults: ClassVar[dict[str, Any]] = {}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"Row({values})"

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    if TYPE_CHECKING:
        count: Any
        index: Any

        def __getattr__(self, name: str) -> Any: ...


if TYPE_CHECKING:

    class KeyedRow(tuple[K, V]):
        """A named row of one key and one result, whose types are known by place."""

        _fields: ClassVar[tuple[str, ...]]
        count: Any
        index: Any

        def _asdict(self) -> dict[str, Any]: ...
        def __getattr__(self, name: str) -> Any: ...


def class_of_rows(names: tuple[str, ...]) -> type[NamedRow]:
    """Return the class of rows with some fields, always the same one in a process."""
    kind: type[NamedRow] = globals().get(_name_of(names)) or __getattr__(_name_of(names))
    return kind


def _name_of(names: tuple[str, ...]) -> str:
    words = (_OTHER_SIGN.sub(lambda sign: f"<{ord(sign[0]):x}>", name) for name in names)
    return _PREFIX + "-".join(words)


def __getattr__(name: str) -> Any:
    """Make a class of rows, which is an attribute of this module from then on."""
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    words = name.removeprefix(_PREFIX).split("-")
    names = tuple(_ESCAPED.sub(lambda sign: chr(int(sign[1], 16)), word) for word in words)
    fields = {
        field: property(itemgetter(place))
        for place, field in enumerate(names)
        if not (field.startswith("_") and hasattr(NamedRow, field))  # Python's own attributes
    }
    own = {"__slots__": (), "__module__": __name__, "__qualname__": name, "_fields": names}
    return globals().setdefault(name, type(name, (NamedRow,), {**fields, **own}))


class Times(NamedTuple):
    """The datetimes of a window, as files and DataFrames have them."""

    start: datetime
    end: datetime


def with_times(row: Any) -> Any:
    """Return a row with :class:`Times` in place of windows, also in rows inside it."""
    kind = type(row)
    if kind is Window:
        return Times(row.start, row.end)
    if kind is tuple or isinstance(row, NamedRow):
        return tuple.__new__(kind, map(with_times, row))
    return row


@dataclass(frozen=True)
class ResultRows:
    """Makes rows of the results of an aggregation, with one field for each key and result.

    *keys* and *results* are the names of the fields. *windows* are the places of keys that are
    windows which an earlier aggregation made: states return them as plain tuples.
    """

    keys: tuple[str, ...]
    results: tuple[str, ...]
    windows: tuple[int, ...] = ()
    has_window: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.keys, *self.results)

    def rows(
        self, pairs: Iterable[tuple[Any, Any]], key_of: Key, finish: Finish | None = None
    ) -> Iterator[NamedRow]:
        """Return rows of pairs of key and buffer.

        *key_of* returns the key as results show it, and *finish* the result, if it is not the
        buffer.
        """
        return map(
            tuple.__new__, repeat(class_of_rows(self.names)), self._flat(pairs, key_of, finish)
        )

    def _flat(
        self, pairs: Iterable[tuple[Any, Any]], key_of: Key, finish: Finish | None
    ) -> Iterator[tuple[Any, ...]]:
        if len(self.keys) == len(self.results) == 1 and not self.windows:
            return pairs_of(pairs, key_of, finish)
        parts_of = self._parts_of(key_of)
        if len(self.results) > 1:
            assert finish is not None, "several results are never the buffer"
            return (parts_of(key) + tuple(finish(buffer)) for key, buffer in pairs)
        # Tuples are added in less time than they are unpacked.
        if finish is None:
            return (parts_of(key) + (buffer,) for key, buffer in pairs)  # noqa: RUF005
        return (parts_of(key) + (finish(buffer),) for key, buffer in pairs)  # noqa: RUF005

    def _parts_of(self, key_of: Key) -> Callable[[Any], tuple[Any, ...]]:
        """Return the function from a key to its parts, as results show them."""
        count, windows = len(self.keys), self.windows
        parts_of = key_of
        if count == 1:
            parts_of = lambda key: (key_of(key),)  # noqa: E731
        elif self.has_window and count > 2:
            parts_of = partial(_window_and_others, key_of)
        return partial(_with_windows, parts_of, windows) if windows else parts_of


def pairs_of(
    pairs: Iterable[tuple[Any, Any]], key_of: Key, finish: Finish | None
) -> Iterator[tuple[Any, Any]]:
    """Return results without names: (key, result)."""
    if finish is None:
        return ((key_of(key), buffer) for key, buffer in pairs)
    return ((key_of(key), finish(buffer)) for key, buffer in pairs)


def same(key: Any) -> Any:
    """Return a key that results show as it is."""
    return key


def _window_and_others(key_of: Key, key: Any) -> tuple[Any, ...]:
    window, others = key_of(key)
    return (window, *others)


def _with_windows(parts_of: Key, places: tuple[int, ...], key: Any) -> tuple[Any, ...]:
    parts = list(parts_of(key))
    for place in places:
        if parts[place] is not None:
            parts[place] = Window(*parts[place])
    return tuple(parts)

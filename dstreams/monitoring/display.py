"""Text for people, and the renderers that show values in terminals and notebooks.

Values derive from :class:`Rendered`. Importing them loads no renderer: the module that has the
renderers registers them, and is imported the first time a value is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any, NamedTuple

_RENDERERS = "dstreams.monitoring.notebook"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


class Renderer(NamedTuple):
    """Functions that show a value as text and as HTML."""

    text: Callable[[Any], str]
    html: Callable[[Any], str]


RENDERERS: dict[type, Renderer] = {}


class Rendered:
    """A value shown by the renderer that is registered for its class or a base class."""

    __slots__ = ()

    def __repr__(self) -> str:
        return self._renderer().text(self)

    def _repr_html_(self) -> str:
        return self._renderer().html(self)

    def _renderer(self) -> Renderer:
        import_module(_RENDERERS)
        return next(RENDERERS[base] for base in type(self).__mro__ if base in RENDERERS)


def one_line(value: object, most: int = 200) -> str:
    """Return *value* as one line of printable characters, at most *most* of them.

    >>> one_line("a\\x1b[31m\\n  b"), one_line("abcdef", 4)
    ('a?[31m b', 'abc…')
    """
    line = " ".join(str(value).split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def format_time(time_ms: int) -> str:
    """Return a local time without its zone, as ``pprint`` prints it.

    >>> format_time(0)[4], len(format_time(1500)), format_time(10**18)
    ('-', 23, '1000000000000000000 ms')
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000)  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):  # the clock of a test, for example
        return f"{time_ms} ms"
    return moment.isoformat(" ", "milliseconds" if time_ms % 1000 else "seconds")


def format_count(number: int | None, one: str = "", many: str = "") -> str:
    """Return a number, with what it counts if that is given; a dash if it is not known.

    >>> format_count(1234567), format_count(None), format_count(1, "batch", "batches")
    ('1,234,567', '-', '1 batch')
    """
    if number is None:
        return "-"
    return f"{number:,} {one if number == 1 else many}".rstrip()


def format_duration(ms: float) -> str:
    """Return a duration in the units that suit its size.

    >>> format_duration(84), format_duration(1250), format_duration(75_000)
    ('84 ms', '1.2 s', '1 min 15 s')
    >>> format_duration(7_500_000)
    '2 h 5 min'
    """
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}".removesuffix(".0") + " s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {seconds} s" if seconds else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h" + (f" {minutes} min" if minutes else "")


def format_size(size_bytes: int | None) -> str:
    """Return a number of bytes in the unit that suits its size; a dash if it is not known.

    >>> format_size(999), format_size(2048), format_size(5 * 10**9), format_size(None)
    ('999 B', '2.0 kB', '5.0 GB', '-')
    """
    if size_bytes is None:
        return "-"
    amount, unit = float(size_bytes), 0
    while amount >= 1000 and unit < len(_BYTE_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.{1 if unit else 0}f} {_BYTE_UNITS[unit]}"

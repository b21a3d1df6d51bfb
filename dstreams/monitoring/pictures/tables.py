"""Tables, as HTML with small bars, and as text that fits a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dstreams.monitoring.pictures.markup import bar, mark, plain, text

MOST_ROWS = 20
"""Rows of a table of which there may be any number: the newest."""

_PLAIN_WIDTH = 40


@dataclass(frozen=True)
class Cell:
    """What stands in a table.

    *share* is how full its bar is, None for no bar; *accent* is the colour of the bar, or of a dot
    before a text without one.
    """

    content: str
    share: float | None = None
    accent: str | None = None

    def html(self) -> str:
        """Return the content for HTML, with its bar or dot."""
        if self.share is not None:
            return text(self.content) + bar(self.share, self.accent or "input")
        return (mark(self.accent) if self.accent else "") + text(self.content)


Row = Sequence["Cell | str"]


def table_html(titles: Sequence[str], rows: Sequence[Row], numbers: Sequence[str] = ()) -> str:
    """Return a table; the columns *numbers*, by title, are set to the right."""
    sides = ["right" if title in numbers else "left" for title in titles]
    head = "".join(
        f'<th scope="col" style="text-align:{side};{_CELL};opacity:.65;font-weight:600">'
        f"{text(title)}</th>"
        for title, side in zip(titles, sides, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cells(row, sides))}</tr>" for row in rows)
    return (
        '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;'
        'margin:.3em 0 .7em;font-size:13px;color:inherit;background:transparent">'
        f'<thead><tr style="background:transparent">{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


_CELL = (
    "padding:.2em .9em .2em 0;white-space:nowrap;border:0;"
    "border-bottom:1px solid rgba(128,128,128,.25);background:transparent"
)


def _cells(row: Row, sides: Sequence[str]) -> list[str]:
    return [
        f'<td style="text-align:{side};{_CELL}">{_cell(cell).html()}</td>'
        for cell, side in zip(row, sides, strict=True)
    ]


def table_text(titles: Sequence[str], rows: Sequence[Row], numbers: Sequence[str] = ()) -> str:
    """Return a table in lines; the columns *numbers*, by title, are set to the right.

    >>> print(table_text(["name", "n"], [["a", "1"], ["bc", "20"]], ["n"]))
    name   n
    a      1
    bc    20
    """
    lines = [
        list(titles),
        *([plain(_cell(cell).content, _PLAIN_WIDTH) for cell in r] for r in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def count(number: int | None) -> str:
    """Return a number for people; a dash where nobody knows it.

    >>> count(1234567), count(None)
    ('1,234,567', '-')
    """
    return "-" if number is None else f"{number:,}"


def counted(number: int, one: str, many: str) -> str:
    """Return a number with what it counts.

    >>> counted(1, "batch", "batches"), counted(2000, "batch", "batches")
    ('1 batch', '2,000 batches')
    """
    return f"{number:,} {one if number == 1 else many}"


def duration(ms: float) -> str:
    """Return a duration for people.

    >>> duration(84), duration(1250), duration(75_000), duration(7_500_000)
    ('84 ms', '1.2 s', '1 min 15 s', '2 h 5 min')
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


def size(number: int | None) -> str:
    """Return a number of bytes for people.

    >>> size(999), size(2048), size(5 * 10**9), size(None)
    ('999 B', '2.0 kB', '5.0 GB', '-')
    """
    if number is None:
        return "-"
    if number < 1000:
        return f"{number} B"
    amount = number / 1000
    for unit in ("kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"

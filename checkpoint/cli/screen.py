"""What fits a screen: of long lists the beginnings, of long lines, too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COLUMNS, _LINES = 80, 24
_CUT = "..."


@dataclass(frozen=True)
class Section:
    """Lines that belong together, and what they are."""

    what: str
    lines: Sequence[str]


def on_screen(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the lines of all *sections*, cut so that they fit the screen above the next prompt.

    The longest ones lose the most, and say how many lines are not shown.
    """
    columns, lines = shutil.get_terminal_size((_COLUMNS, _LINES))
    shares = [len(section.lines) for section in sections]
    while sum(shares) > max(lines, _LINES) - 1 and max(shares) > 2:
        longest = max(shares)
        # The last of those that are as long: what stands first is looked for first.
        shares[len(shares) - 1 - shares[::-1].index(longest)] -= 1
    for section, share in zip(sections, shares, strict=True):
        if share == len(section.lines):
            shown = section.lines
        else:
            left = len(section.lines) - share + 1
            shown = [*section.lines[: share - 1], f"{left} more {section.what}; --all shows them"]
        yield from (_cut(line, max(columns, _COLUMNS)) for line in shown)


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else f"{line[: columns - len(_CUT)]}{_CUT}"

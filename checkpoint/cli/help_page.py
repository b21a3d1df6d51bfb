"""Help pages that fit the terminal: paragraphs are wrapped, tables and examples keep their form."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from dataclasses import dataclass

_MOST_COLUMNS = 100
_ROW = re.compile(r" +\S+(?: \S+)* {2,}")


@dataclass
class _Item:
    """A paragraph, or an indented row; its further lines begin below its last column."""

    text: str
    first_indent: int = 0
    indent: int = 0


class HelpPage(argparse.HelpFormatter):
    """Formats the help of a command; the texts may be docstrings."""

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
        super().__init__(prog, width=columns - 2)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            # Its rows stand as those of options do, under the title of their group alone.
            return "".join(map(super()._format_action, action._get_subactions()))
        return super()._format_action(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            textwrap.fill(
                item.text,
                width,
                initial_indent=indent + " " * item.first_indent,
                subsequent_indent=indent + " " * min(item.indent, width * 2 // 5),
                break_on_hyphens=False,
                break_long_words=False,
            )
            for item in _items(text.replace("``", "").strip("\n"))
        )


def _items(text: str) -> list[_Item]:
    items: list[_Item] = []
    for line in text.splitlines():
        stripped = line.strip()
        lead = len(line) - len(line.lstrip())
        before = items[-1] if items else _Item("")
        row = _ROW.match(line)
        goes_on = lead == before.first_indent == 0 or (not row and lead > before.first_indent > 0)
        if stripped and before.text and goes_on:
            before.text += f" {stripped}"
        else:
            items.append(_Item(stripped, lead, row.end() if row else lead + 2 * (lead > 0)))
    return items

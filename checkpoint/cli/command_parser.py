"""Argument parsers: help that fits the terminal, with examples; errors with suggestions."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_MOST_COLUMNS = 100
_ROW = re.compile(r" +\S+(?: \S+)* {2,}")


class CommandParser(argparse.ArgumentParser):
    """The parser of a command and of its subcommands.

    Args:
        arguments: those of :class:`argparse.ArgumentParser`.
        examples: arguments of the command, each shown in a line of its help.
        epilog: text below the examples.
    """

    def __init__(
        self, *, examples: Sequence[str] = (), epilog: str | None = None, **arguments: Any
    ) -> None:
        arguments.setdefault("formatter_class", HelpPage)
        # An abbreviation of an option could become ambiguous with a new one.
        arguments.setdefault("allow_abbrev", False)
        super().__init__(**arguments)
        self.add_below(examples, epilog)

    def add_below(self, examples: Sequence[str], epilog: str | None) -> None:
        """Set the text below the options: examples and an epilog."""
        self.examples = tuple(examples)
        shown = [f"  %(prog)s {example}".rstrip() for example in examples]
        heading = "example:" if len(shown) == 1 else "examples:"
        below = "\n".join([heading, *shown]) if shown else ""
        self.epilog = "\n\n".join(filter(None, (below, epilog))) or None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words; exit with an error on an unknown one."""
        program: list[str] = []
        if args is not None and "--" in args and any(map(_takes_program, self._actions)):
            # argparse takes them only directly after the other arguments, not after an option.
            at = args.index("--")
            args, program = args[:at], [*args[at + 1 :]]
        if args is not None:
            # Before missing arguments: one may be missing because it is misspelt.
            takes_rest = any(map(_takes_the_rest, self._actions))
            own = self._before_the_rest(args) if takes_rest else args
            self._require_known(word for word in _options_in(own) if self._is_unknown(word))
        found, rest = super().parse_known_args(args, namespace)
        self._require_known(rest)
        if program:
            found.arguments = [*found.arguments, *program]
        return found, rest

    def _before_the_rest(self, args: Iterable[str]) -> list[str]:
        """Return the words before the first one that is neither an option nor its value."""
        found: list[str] = []
        words = iter(args)
        for word in words:
            if not word.startswith("-"):
                break
            found.append(word)
            action = self._option_string_actions.get(word)
            if action is not None and action.nargs is None:
                next(words, None)  # its value
        return found

    def _is_unknown(self, word: str) -> bool:
        return word.partition("=")[0] not in self._option_string_actions

    def _require_known(self, words: Iterable[str]) -> None:
        for word in words:
            name = word.partition("=")[0]
            if word.startswith("-"):
                known = [one for one in self._option_string_actions if one.startswith("--")]
                self.error(f"unknown option {name!r}; {self._near(name, known)}")
            self.error(f"unexpected argument {word!r}; see {self.prog} --help")

    def _near(self, word: str, known: Iterable[str]) -> str:
        near = closest(word, known)
        if near:
            return f"did you mean {' or '.join(map(repr, near))}?"
        return f"see {self.prog} --help"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        known = list(map(str, choices))
        near = closest(str(value), known)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        if isinstance(action, argparse._SubParsersAction):
            there = "" if near else f"; the commands are {', '.join(known)}"
            self.error(f"unknown command {value!r}{meant}{there}")
        raise argparse.ArgumentError(action, f"{value!r} must be one of {', '.join(known)}{meant}")


def about(text: str | None) -> str:
    """Return the description of a command from the docstring of its module, without the name."""
    description = (text or "").partition(": ")[2]
    return f"{description[:1].upper()}{description[1:]}"


def closest(word: str, known: Iterable[str]) -> list[str]:
    """Return at most two of the *known* words that are similar to *word*."""
    there = list(known)
    begun = [one for one in there if len(word.strip("-")) > 1 and one.startswith(word)]
    return begun[:2] or get_close_matches(word, there, n=2, cutoff=0.7)


def _takes_program(action: argparse.Action) -> bool:
    """Return whether an action has the arguments of a program, after ``--``."""
    return action.dest == "arguments" and action.nargs == "*"


def _takes_the_rest(action: argparse.Action) -> bool:
    return action.nargs in (argparse.REMAINDER, argparse.PARSER)


def _options_in(words: Iterable[str]) -> Iterable[str]:
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word


@dataclass
class _Item:
    """A paragraph, or an indented row whose further lines are indented to its last column."""

    text: str
    first_indent: int = 0
    indent: int = 0


class HelpPage(argparse.HelpFormatter):
    """A formatter of help, whose texts may be docstrings."""

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
        super().__init__(prog, width=columns - 2)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            # Without the line that argparse puts above the rows.
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

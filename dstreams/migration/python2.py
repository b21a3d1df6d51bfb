"""Python 2 in a line, and the same in Python 3, so that the rest of the program can be read.

It is no translation: what a repair leaves is read for names, and never run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dstreams.migration.answers import Answer, change


@dataclass(frozen=True)
class Repair:
    """A form of Python 2.

    Args:
        name: what it is called.
        pattern: where it is in a line.
        replacement: the same in Python 3, for the pattern.
        instead: what to write, for people.
    """

    name: str
    pattern: re.Pattern[str]
    replacement: str
    instead: str


_REPAIRS = (
    Repair(
        "print statement",
        re.compile(r"(^\s*|[:;]\s*)print\s+(?:>>\s*([\w.]+)\s*,?\s*)?(?!\()(\S.*?),?\s*$"),
        r"\1print(\3)",
        "print(...)",
    ),
    Repair(
        "except with a comma",
        re.compile(r"\bexcept\s+([\w.]+|\([^)]*\))\s*,\s*(\w+)\s*:"),
        r"except \1 as \2:",
        "except Error as name:",
    ),
    Repair(
        "raise with a comma",
        re.compile(r"\braise\s+([\w.]+)\s*,\s*(\S.*)$"),
        r"raise \1(\2)",
        "raise Error(message)",
    ),
    Repair("exec statement", re.compile(r"\bexec\s+(?!\()(\S.*)$"), r"exec(\1)", "exec(...)"),
    Repair(
        "parameters in parentheses",
        re.compile(r"\blambda\s*\(([^()]*)\)\s*:"),
        r"lambda \1:",
        "one parameter, and its parts by index: lambda pair: pair[0]",
    ),
    Repair(
        "parameters in parentheses",
        re.compile(r"\bdef\s+(\w+)\s*\(\(([^()]*)\)"),
        r"def \1(\2",
        "one parameter, and its parts by index",
    ),
    Repair("octal number", re.compile(r"(?<![\w.])0(\d+)\b"), r"0o\1", "0o before its digits"),
    Repair("long number", re.compile(r"(?<![\w.])(\d+)[lL]\b"), r"\1", "the number without L"),
    Repair("text with ur in front", re.compile(r"\b[uU][rR](['\"])"), r"r\1", "r in front"),
    Repair("<> for unequal", re.compile(r"<>"), "!=", "!="),
    Repair("backticks", re.compile(r"`([^`]+)`"), r"repr(\1)", "repr(...)"),
)


def of_python_2(instead: str) -> Answer:
    """Return the answer for a form of Python 2."""
    return change("It is Python 2, which no PySpark since 3.1 runs.", f"Write: {instead}")


def repair_of(line: str) -> tuple[str, Repair] | None:
    """Return the line in Python 3 and what was Python 2; None where nothing of it is known."""
    for repair in _REPAIRS:
        repaired = repair.pattern.sub(repair.replacement, line)
        if repaired != line:
            return repaired, repair
    return None

"""What is said of a name: whether it is there, whether it does the same, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a name asks of the program; the first ones come first in a report."""

    CHANGE = "change"
    """It does not run here: the program has to be changed."""
    SET = "set"
    """It runs with a setting that only its user knows."""
    DIFFERS = "differs"
    """It runs, and does something else in a case that the program may be in."""
    SAME = "same"
    """It runs as it did."""


@dataclass(frozen=True)
class Answer:
    """What is said of a name.

    Args:
        kind: what it asks of the program.
        what: what differs, or what is missing.
        instead: what to do; empty where nothing has to be done.
        rows: beginnings of the rows in the table of differences that say it at length.
    """

    kind: Kind
    what: str = ""
    instead: str = ""
    rows: tuple[str, ...] = ()


SAME = Answer(Kind.SAME)


def differs(what: str, *rows: str, instead: str = "") -> Answer:
    """Return the answer for a name that does something else in some case."""
    return Answer(Kind.DIFFERS, what, instead, rows)


def change(what: str, instead: str, *rows: str) -> Answer:
    """Return the answer for what does not run here."""
    return Answer(Kind.CHANGE, what, instead, rows)

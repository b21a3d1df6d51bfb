"""What was found in programs: which name, in which line, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dstreams.compat.check.answers import Answer


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file."""

    path: Path
    line: int
    code: str


@dataclass(frozen=True)
class Finding:
    """A name at a place.

    Args:
        name: by the table of answers, or what else it is.
        answer: what is said of it.
        place: where it is.
    """

    name: str
    answer: Answer
    place: Place

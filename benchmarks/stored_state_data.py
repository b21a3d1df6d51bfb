"""Shared by the sides of ``stored_state.py``: records, and the protocol with a side's process.

Records are derived from integers, by the same rule in Python and in Spark's SQL.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TextIO

PARTITIONS = 2
FACTOR, MODULUS = 2_654_435_761, 1 << 32
DIRECT = 1 << 40
"""Numbers from here on are of the key that many above it; those below are of a random key."""
NOTHING = 1 << 41
"""The same, and the value is 0: the sums of such records are the state as it is."""


class Span(NamedTuple):
    """The records of a batch: those of *count* numbers from *first* on."""

    first: int
    count: int


def record(number: int, keys: int) -> tuple[str, int]:
    """Return the record of a number, for a state of so many keys."""
    if number >= NOTHING:
        return f"key-{number - NOTHING}", 0
    if number >= DIRECT:
        return f"key-{number - DIRECT}", 1
    return f"key-{number * FACTOR % MODULUS % keys}", 1


def records(span: Span, keys: int) -> list[tuple[str, int]]:
    """Return the records of a batch."""
    return [record(number, keys) for number in range(span.first, span.first + span.count)]


def spans_of(
    keys: int, touched: int, warm: int, batches: int, load_at_once: int | None = None
) -> list[Span]:
    """Return the batches of a side: warm-up, load, measured batches, and a final check."""
    at_once = load_at_once or keys
    spans = [Span(DIRECT + keys + touched * number, touched) for number in range(warm)]
    for start in range(0, keys, at_once):
        spans.append(Span(DIRECT + start, min(at_once, keys - start)))
    spans += [Span(touched * number, touched) for number in range(batches)]
    return [*spans, Span(NOTHING, 1000)]


def serve(run: Callable[[int], Sequence[float]], facts: Callable[[], object]) -> None:
    """Answer the lines of the standard input, which are numbers of batches to run, to their end.

    Args:
        run: runs the next batches and returns the seconds of each.
        facts: other facts to report with each answer, as JSON.
    """
    for count in map(int, sys.stdin):
        answer(run(count), facts())


def answer(seconds: Iterable[float], facts: object) -> None:
    """Report to the parent process."""
    sys.stdout.write(f"answer {json.dumps([list(seconds), facts])}\n")
    sys.stdout.flush()


def ask(child_in: TextIO, child_out: TextIO, count: int) -> tuple[list[float], dict[str, float]]:
    """Let a side run its next batches; return the seconds of each, and its other facts.

    Raises:
        EOFError: the side has ended.
    """
    child_in.write(f"{count}\n")
    child_in.flush()
    for line in child_out:
        if line.startswith("answer "):
            seconds, facts = json.loads(line.removeprefix("answer "))
            return seconds, facts
    raise EOFError("the side has ended")

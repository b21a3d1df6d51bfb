"""What the programs must say, counted without Spark from the definition of the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

RECORDS, KEYS = 60, 7
PROGRAMS = ("main", "stored", "groups", "blocks", "query", "kafka")


def rows_of(program: str, batch: int) -> list[list[int]]:
    """Return the rows of a batch of a program."""
    before, upto = (batch - 1) * RECORDS, batch * RECORDS
    if program in ("main", "blocks"):
        return [[key, *_total(key, upto)] for key in range(KEYS)]
    if program in ("groups", "query"):  # every batch has every key
        return [[key, batch, *_total(key, upto)] for key in range(KEYS)]
    return [
        [number, number % KEYS, *_total(number % KEYS, number + 1)]
        for number in range(before, upto)
    ]


def lines_of(batches: int) -> list[list[int]]:
    """Return the rows that the output topic has after some batches."""
    return [row for batch in range(1, batches + 1) for row in rows_of("kafka", batch)]


def numbers_in(batch: int) -> list[int]:
    return list(range((batch - 1) * RECORDS, batch * RECORDS))


def parsed(lines: Iterable[bytes | None]) -> list[Sequence[int]]:
    return [json.loads(line or b"null") for line in lines]


def _total(key: int, upto: int) -> tuple[int, int]:
    numbers = range(key, upto, KEYS)
    return len(numbers), sum(numbers)

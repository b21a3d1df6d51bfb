"""Sinks for trials: the rows are printed, kept in the driver, or discarded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TextIO

from pyspark import RDD

from dstreams.sinks.output_batch import OutputBatch
from dstreams.state.group_state import OutputMode
from dstreams.structured.sinks.sink import Sink

_LINE = "-" * 43
_CELL = 20


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Prints up to *rows* rows of a batch; *truncate* cuts cells to 20 characters."""

    rows: int = 20
    truncate: bool = True
    out: TextIO | None = None

    name = "ConsoleSink"

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Print a batch, with one job over all partitions."""
        found: list[tuple[int, list[Any]]] = rows.context.runJob(rows, partial(_first, self.rows))
        count = sum(number for number, _ in found)
        shown = list(islice((row for _, first in found for row in first), self.rows))
        out = sys.stdout if self.out is None else self.out
        out.write(
            f"{_LINE}\nBatch: {batch.batch_id}\n{_LINE}\n{table(shown, truncate=self.truncate)}"
        )
        if count > len(shown):
            out.write(f"only showing top {len(shown)} rows\n")
        out.write("\n")
        out.flush()
        return count


def _first(count: int, rows: Iterable[Any]) -> list[tuple[int, list[Any]]]:
    remaining = iter(rows)
    first = list(islice(remaining, count))
    return [(len(first) + sum(1 for _ in remaining), first)]


def table(rows: Sequence[Any], *, truncate: bool = True) -> str:
    """Format rows as a table with a column for each field, tuple element, or dict key."""
    names = _names(rows)
    cells = [[_cell(value, truncate) for value in _values(row, names)] for row in rows]
    widths = [
        max([3, len(name), *(len(line[place]) for line in cells)])
        for place, name in enumerate(names)
    ]
    rule = f"+{'+'.join('-' * width for width in widths)}+"
    lines = [rule, _joined(names, widths), rule, *(_joined(line, widths) for line in cells), rule]
    return "\n".join(lines) + "\n"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"|{'|'.join(aligned)}|"


def _names(rows: Sequence[Any]) -> list[str]:
    if not rows:
        return ["value"]
    first = rows[0]
    if isinstance(first, dict) and all(isinstance(row, dict) for row in rows):
        return [str(key) for key in dict.fromkeys(key for row in rows for key in row)]
    same = isinstance(first, tuple) and all(
        isinstance(row, tuple) and len(row) == len(first) for row in rows
    )
    if not same or not first:
        return ["value"]
    fields = getattr(first, "_fields", None) or getattr(first, "__fields__", None)
    return list(fields) if fields else [f"_{place}" for place in range(1, len(first) + 1)]


def _values(row: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(row, dict) and names != ["value"]:
        return [row.get(name) for name in names]
    if isinstance(row, tuple) and len(row) == len(names) and names != ["value"]:
        return list(row)
    return [row]


def _cell(value: Any, truncate: bool) -> str:
    text = str(value)
    return text[: _CELL - 3] + "..." if truncate and len(text) > _CELL else text


class MemorySink(Sink):
    """Keeps the rows of each batch; in complete mode only those of the newest batch.

    A query that is restarted in the same session inherits the rows of the *earlier* sink.
    """

    def __init__(self, table: str, earlier: MemorySink | None = None) -> None:
        self._table = table
        self._earlier = earlier
        self._query_id: str | None = None
        self._lock = threading.Lock()
        self._batches: dict[int, list[Any]] = {}

    @property
    def name(self) -> str:
        return f"MemorySink[{self._table}]"

    def begin(self, query_id: str) -> None:
        """Inherit the rows of an earlier run of the same query."""
        earlier, self._earlier = self._earlier, None
        self._query_id = query_id
        if earlier is not None and earlier._query_id == query_id:
            with self._lock:
                self._batches = earlier.batches()

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        """Store a batch, and replace an earlier run of it."""
        found = rows.collect()
        with self._lock:
            if mode is OutputMode.Complete:
                self._batches.clear()
            self._batches[batch.batch_id] = found
        return len(found)

    def rows(self) -> list[Any]:
        """Return all rows, in the order of the batches."""
        with self._lock:
            return [row for _, rows in sorted(self._batches.items()) for row in rows]

    def batches(self) -> dict[int, list[Any]]:
        """Return the rows of each stored batch, by batch id."""
        with self._lock:
            return dict(self._batches)


@dataclass(frozen=True)
class NoopSink(Sink):
    """Computes the rows and discards them."""

    name = "NoopSink"

    def add_batch(self, batch: OutputBatch, rows: RDD[Any], mode: OutputMode) -> int | None:
        counts: list[int] = rows.context.runJob(rows, _count)
        return sum(counts)


def _count(rows: Iterable[Any]) -> list[int]:
    return [sum(1 for _ in rows)]

"""Batch tables: what goes into a stream and what has to come out of it, batch by batch.

::

    in  | a   | a b     | -       | []
    out | a=1 | a=2 b=1 | a=2 b=1 | a=2 b=1

A row has a name and a cell for each batch. A cell is ``-`` for no RDD, ``[]`` for an empty one, and
otherwise its records, separated by spaces: ``key=value`` is a pair, and what is no literal of
Python is text. Rows named ``in...`` are the inputs, in the order of their lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from dstreams import DStream
from dstreams.testing import run_batches

Cell = list[Any] | None


@dataclass(frozen=True)
class Table:
    """A parsed table.

    Args:
        text: the table as it was written.
        rows: the cells of each row, by the row's name.
    """

    text: str
    rows: dict[str, list[Cell]]

    @classmethod
    def parse(cls, text: str) -> Table:
        """Read a table.

        Raises:
            ValueError: rows have different numbers of cells, or one name.
        """
        lines = [line.strip() for line in text.strip().splitlines()]
        rows: dict[str, list[Cell]] = {}
        for line in lines:
            name, *cells = (part.strip() for part in line.split("|"))
            if name in rows:
                raise ValueError(f"two rows are named {name!r}")
            rows[name] = [_cell(cell) for cell in cells]
        if len({len(cells) for cells in rows.values()}) != 1:
            raise ValueError(f"rows have different numbers of batches: {text}")
        return cls("\n".join(lines), rows)

    def check(
        self,
        spark: SparkContext,
        operation: Callable[..., DStream],
        *,
        ordered: bool = False,
        batch_duration: float = 1,
    ) -> None:
        """Run the inputs through *operation* on real RDDs, and compare with the row ``out``.

        Args:
            spark: the context.
            operation: from the input streams to the output stream.
            ordered: whether the order of the records within a batch counts.
            batch_duration: seconds.
        """
        first, *others = [cells for name, cells in self.rows.items() if name.startswith("in")]
        found = run_batches(spark, first, operation, *others, batch_duration=batch_duration)
        self.compare(found, ordered=ordered)

    def compare(self, found: list[Cell], *, row: str = "out", ordered: bool = False) -> None:
        """Compare what was found with a row, and show the first batch that differs in the table.

        Raises:
            AssertionError: they differ.
        """
        wanted = self.rows[row]
        for batch, (expected, got) in enumerate(zip(wanted, found, strict=True)):
            if _arranged(expected, ordered) != _arranged(got, ordered):
                lines = self.text.splitlines()
                column = _column(lines[list(self.rows).index(row)], batch)
                arrow = f"batch {batch + 1} ----^".rjust(column + 1)
                values = [f"expected {expected!r}", f"found    {got!r}"]
                raise AssertionError("\n".join(["", *lines, arrow, *values]))


def words(text: str) -> list[Any]:
    """Parse records: ``a b=1`` is ``["a", ("b", 1)]``."""
    return [_record(word) for word in text.split()]


def as_pairs(state: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of a dict in one order, whatever the types of its keys."""
    return sorted(state.items(), key=repr)


def _cell(text: str) -> Cell:
    if text == "-":
        return None
    return [] if text == "[]" else words(text)


def _record(word: str) -> Any:
    key, equals, value = word.partition("=")
    return (_atom(key), _atom(value)) if equals else _atom(word)


def _atom(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _arranged(cell: Cell, ordered: bool) -> Cell:
    return cell if cell is None or ordered else sorted(cell, key=repr)


def _column(line: str, batch: int) -> int:
    """Return where the cell of *batch* begins in a line."""
    at = -1
    for _ in range(batch + 1):
        at = line.index("|", at + 1)
    return at + 2

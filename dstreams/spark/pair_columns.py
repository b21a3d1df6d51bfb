"""Pairs in columns: what a task hands to the next one in the same worker, many at a time.

Whoever asks for pairs gets pairs; whoever knows columns takes those, without an object for each
pair on the way:

>>> from dstreams.spark.pair_columns import PairColumns, columns_of
>>> list(PairColumns([(["a", "b"], [1, 2]), (["c"], ([3], ["x"]))]))
[('a', 1), ('b', 2), ('c', (3, 'x'))]
>>> list(columns_of(PairColumns([(["a", "b"], [1, 2])])))
[(['a', 'b'], [1, 2])]
>>> list(columns_of([("a", 1), ("b", 2), ("c", 3)], most_rows=2))
[(['a', 'b'], [1, 2]), (['c'], [3])]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from checkpoint import rows_of_fields

Column: TypeAlias = "list[Any] | tuple[Column, ...]"
"""Values in a list; or, where each value is a tuple, the columns of its fields."""

Columns: TypeAlias = "tuple[list[Any], Column]"
"""The first parts of some pairs, and the second ones."""

CHUNK_ROWS = 1000
"""Rows that are taken at once where nothing else says how many."""


class PairColumns(Iterator[tuple[Any, Any]]):
    """Pairs to be read once: one by one, or in columns."""

    def __init__(self, columns: Iterable[Columns]) -> None:
        self._columns = iter(columns)
        # No generator over rows: they come at the speed of zip.
        self._pairs = chain.from_iterable(
            zip(first, rows_of_fields(second), strict=True) for first, second in self._columns
        )

    def columns(self) -> Iterator[Columns]:
        """Return the columns of all pairs that were not read."""
        return self._columns

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs

    def __next__(self) -> tuple[Any, Any]:
        return next(self._pairs)


def columns_of(pairs: Iterable[Any], most_rows: int = CHUNK_ROWS) -> Iterator[Columns]:
    """Return pairs in columns: as they come, or *most_rows* at a time where they come as pairs."""
    return pairs.columns() if isinstance(pairs, PairColumns) else _gathered(iter(pairs), most_rows)


def _gathered(pairs: Iterator[Any], most_rows: int) -> Iterator[Columns]:
    while chunk := list(islice(pairs, most_rows)):
        first, second = map(list, zip(*chunk, strict=True))
        yield first, second


def two_columns(column: Column) -> tuple[list[Any], Column]:
    """Return the columns of the two fields of values that are pairs."""
    if isinstance(column, tuple):
        first, second = column
        return first, second  # type: ignore[return-value]
    first, second = map(list, zip(*column, strict=True)) if column else ([], [])
    return first, second

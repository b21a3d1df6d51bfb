"""Streams of Arrow blocks: to blocks, functions over them, back to records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pyspark import SparkContext

from dstreams import DStream
from dstreams.dstream.block_dstream import BlockDStream
from dstreams.testing import run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")

Rows = list[list[Any] | None]


class Word(NamedTuple):
    text: str
    number: int | None


WORDS: Rows = [[("a", 1), ("b", None), ("c", 3)], [], None, [("ü", -1)]]


def doubled(block: Any) -> Any:
    return block.set_column(1, "number", pc.multiply(block.column("number"), 2))


def test_there_and_back(sc: SparkContext) -> None:
    """Records come back as they were, in as many blocks as it takes."""
    seen = run_batches(sc, WORDS, lambda words: words.toBlocks(Word, 2).toRows(Word))
    assert [sorted(batch or []) for batch in seen] == [
        [Word("a", 1), Word("b", None), Word("c", 3)], [], [], [Word("ü", -1)],
    ]  # fmt: skip


OPERATIONS: dict[str, Callable[[BlockDStream], DStream[Any]]] = {
    "mapBlocks": lambda blocks: blocks.mapBlocks(doubled).toRows(),
    "mapBlocks twice": lambda blocks: blocks.mapBlocks(lambda b: b).mapBlocks(doubled).toRows(),
    "of a schema": lambda blocks: blocks.mapBlocks(doubled, Word).toRows(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
def test_functions_over_blocks(
    sc: SparkContext, operation: Callable[[BlockDStream], DStream[Any]]
) -> None:
    """A function over blocks does what it would do to each record."""
    seen = run_batches(sc, WORDS, lambda words: operation(words.toBlocks(Word)))
    assert [sorted(batch or [], key=str) for batch in seen] == [
        [("a", 2), ("b", None), ("c", 6)], [], [], [("ü", -2)],
    ]  # fmt: skip


def test_count(sc: SparkContext) -> None:
    """The records of all blocks are counted, not the blocks."""
    assert run_batches(sc, WORDS, lambda words: words.toBlocks(Word).count()) == [
        [3],
        [0],
        None,
        [1],
    ]


def with_polars(frame: Any) -> Any:
    return frame.with_columns(number=frame["number"] * 2)


def with_pandas(frame: Any) -> Any:
    return frame.assign(number=frame["number"] * 2)


@pytest.mark.deep
@pytest.mark.parametrize(("form", "function"), [("polars", with_polars), ("pandas", with_pandas)])
def test_functions_over_frames(sc: SparkContext, form: Any, function: Callable[..., Any]) -> None:
    """A function may take and give blocks as frames of polars or pandas."""
    pytest.importorskip(form, reason=f"pip install {form}")
    schema = {"text": str | None, "number": pa.int64()}
    seen = run_batches(
        sc,
        [[("a", 1), ("b", 2)]],
        lambda words: words.toBlocks(Word).mapBlocks(function, schema, form).toRows(),
    )
    assert [sorted(batch or []) for batch in seen] == [[("a", 2), ("b", 4)]]


def test_iterators_of_blocks(sc: SparkContext) -> None:
    """A function may take all blocks of a partition, as in PySpark."""

    def longest(blocks: Iterator[Any]) -> Iterator[Any]:
        yield pa.record_batch({"rows": [sum(block.num_rows for block in blocks)]})

    seen = run_batches(
        sc,
        [[("a", 1), ("b", 2), ("c", 3)]],
        lambda words: (
            words.repartition(1).toBlocks(Word, 2).mapInArrow(longest, "rows long").toRows()
        ),
    )
    assert seen == [[(3,)]]

"""Errors of blocks are reported at the definition, or with the first row."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, InvalidStreamError, StreamingContext
from dstreams.dstream.block_dstream import BlockDStream
from dstreams.testing import run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")


class Word(NamedTuple):
    text: str
    number: int | None


WORDS = [[("a", 1), ("b", None), ("c", 3)]]
STATE = {"n": int}


def nothing(*_: Any) -> Any:
    return None


Define = Callable[[BlockDStream], Any]

DEFINITIONS: dict[str, tuple[Define, str]] = {
    "a schema": (lambda b: b.toRows().toBlocks(3), "toBlocks at .* needs a schema: .*; got 3"),
    "no column": (lambda b: b.toRows().toBlocks({}), "has no column"),
    "a type": (lambda b: b.toRows().toBlocks({"x": object}), "no Arrow type is known for <class"),
    "a type's name": (lambda b: b.toRows().toBlocks({"x": "str"}), "'str' of .*; give a type"),
    "a precision": (lambda b: b.toRows().toBlocks({"x": Decimal}), "declare its precision"),
    "a name": (lambda b: b.toRows().toBlocks({3: int}), "must have a text as name, got 3"),
    "twice": (
        lambda b: b.toRows().toBlocks(pa.schema([("x", pa.int64()), ("x", pa.int64())])),
        "the column 'x' more than once",
    ),
    "rows": (lambda b: b.toRows().toBlocks(Word, 0), "blockRows of toBlocks .* 1"),
    "a form": (
        lambda b: b.mapBlocks(nothing, form="rows"),
        "must be 'arrow', 'pandas' or 'polars', got 'rows'",
    ),
    "arguments": (lambda b: b.mapBlocks(lambda a, b: a), r"f\(block\) -> block"),
    "a class": (lambda b: b.toRows(int), "of a dataclass or NamedTuple, got <class 'int'>"),
    "a key": (
        lambda b: b.updateStateByKey(nothing3, key="word", state=STATE),
        "key of updateStateByKey at .* got 'word'; they have text, number",
    ),
    "no key": (lambda b: b.updateStateByKey(nothing3, key=[], state=STATE), r"got \[\]"),
    "a list as key": (
        lambda b: b.mapBlocks(nothing, {"l": list[int]}).updateStateByKey(
            nothing3, key="l", state=STATE
        ),
        "a column of list<.*> cannot be a key",
    ),
    "a column of both": (
        lambda b: b.updateStateByKey(nothing3, key="text", state={"text": str}),
        "'text' of updateStateByKey .* is both in the key and in the state",
    ),
    "unknown columns": (
        lambda b: b.mapBlocks(nothing).updateStateByKey(nothing3, key="text", state=STATE),
        "needs blocks of a declared schema",
    ),
    "an initial state": (
        lambda b: b.updateStateByKey(nothing3, initial=[1], key="text", state=STATE),  # type: ignore[arg-type]
        "initial of updateStateByKey .* must be a pyarrow.Table, got list",
    ),
    "columns of an initial state": (
        lambda b: b.updateStateByKey(
            nothing3, initial=pa.table({"text": ["a"]}), key="text", state=STATE
        ),
        "the block lacks the column 'n'",
    ),
}


def nothing3(keys: Any, values: Any, state: Any) -> Any:
    return None


@pytest.mark.parametrize(("define", "says"), DEFINITIONS.values(), ids=list(DEFINITIONS))
def test_what_cannot_be_defined(sc: SparkContext, define: Define, says: str) -> None:
    """Errors are raised before anything runs, with the operation and its line."""
    ssc = StreamingContext(sc, 1)
    try:
        blocks = ssc.queueStream(WORDS).toBlocks(Word)
        with pytest.raises(InvalidStreamError, match=says):
            define(blocks)
    finally:
        ssc.stop(stopSparkContext=False)


def of(**columns: Any) -> Any:
    return pa.record_batch(columns)


def state_of(*numbers: Any) -> Any:
    return lambda keys, values, state: of(n=pa.array(numbers, pa.int64()))


ONE = {"text": str | None, "number": int}

FAILURES: dict[str, tuple[Define, str]] = {
    "a function that fails": (
        lambda b: b.mapBlocks(lambda block: block.column("nope")),
        r"mapBlocks at .* failed for a block of 3 records, first \{'text': 'a'",
    ),
    "no block": (lambda b: b.mapBlocks(lambda _: 3), r"must return a pyarrow.RecordBatch, got 3"),
    "another type": (
        lambda b: b.mapBlocks(lambda _: of(text=["a"], number=["x"]), Word),
        "the column 'number' is string, but int64 was declared",
    ),
    "a column too few": (lambda b: b.mapBlocks(lambda _: of(text=["a"]), Word), "lacks .*'number'"),
    "a null": (
        lambda b: b.mapBlocks(lambda block: block, ONE),
        r"'number' is not nullable, but row 1 has a null: \{'text': 'b', 'number': None\}",
    ),
    "an iterator that fails": (
        lambda b: b.mapInArrow(lambda blocks: (1 / 0 for _ in blocks), Word),
        "mapInArrow .*ZeroDivisionError",
    ),
    "an iterator of no blocks": (
        lambda b: b.mapInArrow(lambda blocks: list(blocks) and [7], Word),
        "mapInArrow at .*, block 0 of its partition: .*got 7",
    ),
    "a class of other columns": (
        lambda b: b.mapBlocks(lambda _: of(word=["a"])).toRows(Word),
        "to Word: the blocks have no column 'text'; they have word",
    ),
    "another length": (
        lambda b: b.updateStateByKey(state_of(1), 1, key="text", state=STATE),
        "the state has 1 rows for 3 keys",
    ),
    "a null in a state": (
        lambda b: b.updateStateByKey(
            lambda *_: of(n=pa.array([1, 2, None], pa.int64()), m=[1, 2, 3]),
            1,
            key="text",
            state={"n": int, "m": int},
        ),
        "the column 'n' of the state is not nullable, but is null for the key {'text': 'c'}",
    ),
    "another order": (
        lambda b: b.updateStateByKey(
            lambda keys, values, state: of(text=["a", "c", "b"], n=[1, 2, 3]),
            1,
            key="text",
            state=STATE,
        ),
        "'text' of the keys came back in another order: row 1 was 'b' and is 'c'",
    ),
    "no state": (
        lambda b: b.updateStateByKey(nothing3, 1, key="text", state=STATE),
        "the state must be a pyarrow.RecordBatch, got None",
    ),
    "no output": (
        lambda b: b.mapStateBlocks(state_of(1, 2, 3), 1, key="text", state=STATE, output=STATE),
        "must return a tuple of state and output",
    ),
    "an unknown column": (
        lambda b: b.updateStateByKey(
            lambda keys, values, state: values.sum("size"), 1, key="text", state=STATE
        ),
        "the records have no column 'size'; they have text, number",
    ),
    "an initial key twice": (
        lambda b: b.updateStateByKey(
            state_of(1, 2, 3), 1, pa.table({"text": ["z", "z"], "n": [1, 2]}).cast(
                pa.schema([pa.field("text", pa.string(), False), ("n", pa.int64())])
            ), key="text", state=STATE
        ),
        "row 1 of the state has the key of row 0",
    ),
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize(("define", "says"), FAILURES.values(), ids=list(FAILURES))
def test_what_fails_in_a_batch(sc: SparkContext, define: Define, says: str) -> None:
    """A batch fails with the operation and the first row that is wrong."""
    with pytest.raises(Exception, match=says):
        run_batches(sc, WORDS, lambda words: define(words.repartition(1).toBlocks(Word)))


def test_a_record_that_is_no_row(sc: SparkContext) -> None:
    """The record and its column are named, and no place in pyarrow."""
    with pytest.raises(BatchFailedError, match=r"cannot put the record .*'x'.* int64$"):
        run_batches(sc, [[("a", "x")]], lambda words: words.toBlocks(Word))


def test_declared_by_annotation() -> None:
    """Annotations of Python become types of Arrow, including nullability."""
    from dstreams.arrow.schemas import schema_of  # noqa: PLC0415

    class Price(NamedTuple):
        amount: Annotated[Decimal, pa.decimal128(12, 2)]
        tags: list[str | None] | None
        by_name: dict[str, float]

    assert schema_of(Price, "toBlocks") == pa.schema(
        [
            pa.field("amount", pa.decimal128(12, 2), nullable=False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field(
                "by_name",
                pa.map_(pa.string(), pa.field("value", pa.float64(), nullable=False)),
                nullable=False,
            ),
        ]
    )

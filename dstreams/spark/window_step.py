"""Incremental windows: entering batches are added, leaving ones are subtracted.

The previous result and the reduction of each batch (:mod:`dstreams.spark.reduction`) are blocks
with the same partitioner, so their union is narrow, and a batch is shuffled once. The user's
functions are called for keys that entered or left; other blocks are passed on, unless there is a
filter.

>>> from dstreams.spark.reduction import Reduction, reduce_pairs
>>> from dstreams.spark.window_step import WindowFunctions, slide_window
>>> plus, minus = Reduction(operator.add, "my plus"), Reduction(operator.sub, "my minus")
>>> functions = WindowFunctions(plus, minus)
>>> first = reduce_pairs(monday, plus, partitioner)
>>> second = reduce_pairs(tuesday, plus, partitioner)
>>> window = slide_window(functions, None, left=[], entered=[first.blocks])
>>> window = slide_window(functions, window, left=[first.blocks], entered=[second.blocks])
>>> dict(BlockPairsRDD(window, Side.STATE).collect())
{'a': 0, 'b': 7}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count
from typing import Any, Final

from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.spark import jvm
from dstreams.spark.blocks import (
    MAX_BYTES,
    MAX_ROWS,
    TARGET_BYTES,
    Block,
    BlockBuilder,
    Side,
    UnpicklableError,
    encode_block,
    shorten,
)
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.reduction import Reduction, UserFunction
from dstreams.spark.worker_gc import settle_worker

_NOTHING: Final = object()

Columns = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class WindowFunctions:
    """The functions of a sliding window, and the rules by which they are applied.

    A pair for which *keeps* is false is dropped from the result, also for the next window. If it
    *drops_only_empty* pairs, it is called for changed pairs. Otherwise it is called for all pairs:
    in every window by Scala's rules, and in windows that an RDD enters by pyspark's. A leaving key
    that is not in the previous result is an error by Scala's rules; pyspark ignores it, and
    ignores a leaving None.
    """

    reduction: Reduction
    inverse: UserFunction
    keeps: UserFunction | None = None
    drops_only_empty: bool = False
    is_scala: bool = False


def slide_window(
    functions: WindowFunctions,
    previous: RDD[bytes] | None,
    *,
    left: list[RDD[bytes]],
    entered: list[RDD[bytes]],
) -> RDD[bytes]:
    """Return the blocks of a window, computed from those of the *previous* one.

    *left* and *entered* are reductions. All RDDs have the same partitioner; at least one is given.
    """
    inputs = [*left, *entered, *([] if previous is None else [previous])]
    united = jvm.unite_frames(*inputs)
    task = WindowStep(functions, len(left), len(entered))
    return jvm.as_frames(PipelinedRDD(united, task, True), jvm.partitioner_of(united))


@dataclass(frozen=True)
class WindowStep:
    """Task: leaving reductions, entering reductions, previous result -> result."""

    functions: WindowFunctions
    left: int
    entered: int

    @property
    def filters(self) -> bool:
        functions = self.functions
        if functions.keeps is None:
            return False
        return self.entered > 0 or functions.is_scala or functions.drops_only_empty

    def __call__(self, _: int, frames: Iterable[bytes]) -> Iterator[bytes]:
        settle_worker()
        blocks = map(Block, frames)
        reduction = self.functions.reduction
        slide = _Slide(
            self.functions,
            _reduced(blocks, self.left, reduction),
            _reduced(blocks, self.entered, reduction),
            self.filters,
        )
        try:
            yield from slide.blocks(blocks)
        except UnpicklableError as error:
            raise UserFunctionError(f"{reduction.where}: {error}") from error


def _reduced(blocks: Iterator[Block], count: int, reduction: Reduction) -> dict[Any, Any]:
    """Read the next *count* reductions, each up to its end mark."""
    total: dict[Any, Any] = {}
    while count:
        block = next(blocks)
        if block.rows:
            reduction.merge(total, block.keys(), block.values())
        else:
            count -= 1
    return total


class _Slide:
    """The computation of one partition; it removes the keys that it has used from both dicts."""

    def __init__(
        self,
        functions: WindowFunctions,
        left: dict[Any, Any],
        entered: dict[Any, Any],
        filters: bool,
    ) -> None:
        self._functions = functions
        self._left = left
        self._entered = entered
        self._keeps = functions.keeps if filters else None
        self._filters_all = filters and not functions.drops_only_empty
        self._touched = left.keys() | entered.keys()
        self._gathered = BlockBuilder(Side.STATE)

    def blocks(self, previous: Iterator[Block]) -> Iterator[bytes]:
        for block in previous:
            # Small blocks are merged, so that a long run does not fragment the result.
            if block.rows >= MAX_ROWS // 8 or block.size >= TARGET_BYTES // 8:
                yield from self._large(block)
            else:
                keys, values = block.keys(), block.values()
                dropped = self._change(keys, values, self._touched_rows(keys))
                yield from self._gathered.extend(*_without(keys, values, dropped))
        keys, values = self._new()
        dropped = self._dropped(keys, values, range(len(keys)))
        yield from self._gathered.extend(*_without(keys, values, dropped))
        yield from self._gathered.flush()

    def _large(self, block: Block) -> Iterator[bytes]:
        """Yield a large block unchanged, or with new values and the same key column."""
        keys = block.keys()
        rows = self._touched_rows(keys)
        if not rows and not self._filters_all:
            yield block.data
            return
        values = block.values()
        dropped = self._change(keys, values, rows)
        if not rows and not dropped:
            yield block.data
            return
        if not dropped:
            changed = encode_block(Side.STATE, keys, values, block.key_column)
            if len(changed) <= MAX_BYTES or block.rows == 1:
                yield changed
                return
        yield from self._gathered.extend(*_without(keys, values, dropped))

    def _touched_rows(self, keys: list[Any]) -> list[int]:
        return list(compress(count(), map(self._touched.__contains__, keys)))

    def _change(self, keys: list[Any], values: list[Any], rows: list[int]) -> list[int]:
        """Change the values of *rows* in place, and return the rows to drop."""
        inverse, reduction = self._functions.inverse, self._functions.reduction
        subtract, add = inverse.func, reduction.func
        left, entered = self._left, self._entered
        nothing = _NOTHING if self._functions.is_scala else None
        row, function = 0, inverse
        try:
            for row in rows:
                key, function = keys[row], inverse
                leaving = left.pop(key, nothing)
                if leaving is not nothing:
                    values[row] = subtract(values[row], leaving)
                function = reduction
                entering = entered.pop(key, _NOTHING)
                if entering is not _NOTHING:
                    values[row] = add(values[row], entering)
        except Exception as error:
            raise function.failed(keys[row], error) from error
        return self._dropped(keys, values, range(len(keys)) if self._filters_all else rows)

    def _dropped(self, keys: list[Any], values: list[Any], rows: Sequence[int]) -> list[int]:
        keeps = self._keeps
        if keeps is None:
            return []
        dropped = []
        row = 0
        try:
            for row in rows:
                if not keeps.func((keys[row], values[row])):
                    dropped.append(row)
        except Exception as error:
            raise keeps.failed(keys[row], error) from error
        return dropped

    def _new(self) -> Columns:
        """Return the entered pairs whose keys are not in the previous result."""
        for key in self._left if self._functions.is_scala else ():
            if key not in self._entered:
                raise self._never_was(key)
        return list(self._entered.keys()), list(self._entered.values())

    def _never_was(self, key: Any) -> UserFunctionError:
        filtered = (
            ""
            if self._functions.keeps is None
            else ", or did filterFunc drop the key while the window still had values for it"
        )
        return UserFunctionError(
            f"{self._functions.reduction.where}: values of the key {shorten(key)} leave the "
            "window, but neither the previous window nor the entering batches have a value for it; "
            f"do keys of type {type(key).__name__} compare and hash consistently, in every "
            f"process{filtered}?"
        )


def _without(keys: list[Any], values: list[Any], rows: list[int]) -> Columns:
    """Return the columns without *rows*."""
    if not rows:
        return keys, values
    dropped = set(rows)
    kept = [row for row in range(len(keys)) if row not in dropped]
    return [keys[row] for row in kept], [values[row] for row in kept]

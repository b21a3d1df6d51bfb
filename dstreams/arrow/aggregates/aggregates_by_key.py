"""Aggregate blocks by key: partial columns, merged columns, results, and their RDDs.

>>> from dstreams.arrow.aggregates import Count, Sum
>>> columns = pa.schema({"shop": pa.string(), "cents": pa.int64()})
>>> what = {"total": Sum("cents"), "sales": Count()}
>>> aggregates = AggregatesByKey.checked("aggregateByKey", columns, "shop", what)
>>> block = pa.record_batch([["a", "b", "a"], [1, 2, 3]], schema=columns)
>>> parts = aggregates.partial(block)
>>> parts.to_pylist()[0]
{'shop': 'a', 'total.sum': 4, 'sales.count': 2}
>>> both = together([parts, parts], "aggregateByKey")
>>> aggregates.results_of(aggregates.merged(both)).to_pylist()[0]
{'shop': 'a', 'total': 8, 'sales': 4}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import RDD
from pyspark.rdd import PipelinedRDD

from dstreams.arrow.aggregates.functions import ColumnAggregate
from dstreams.arrow.block_rdd import (
    ROUTED_ROWS,
    BlockSerializer,
    block_of_bytes,
    blocks_rdd,
    gathered,
    side_of,
    together,
)
from dstreams.arrow.groups import Groups, SumRangeError
from dstreams.arrow.key_hash import flags_of, sizes_of
from dstreams.arrow.key_numbers import number_keys
from dstreams.arrow.state_update import BlockUpdate, key_schema, require_declared
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Side, shorten
from dstreams.spark.failures import UserFunctionError, calling, function_of, summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dstreams.arrow.groups import Ints

_SEEN = ".seen"
_PLACE = ".place"
_PLACES = 40  # bits of the place of a record in its partition
_FEW_REPEATS = 0.9


@dataclass(frozen=True)
class AggregatesByKey:
    """Aggregates of some columns for each key.

    Attributes:
        operation: operation and call site, for messages.
        keys: columns of the key.
        aggregates: the aggregates by the name of their result.
        parts: their partial columns.
        results: columns of the key and of the results.
    """

    operation: str
    keys: pa.Schema
    aggregates: Mapping[str, ColumnAggregate]
    parts: pa.Schema
    results: pa.Schema

    @classmethod
    def checked(
        cls,
        operation: str,
        records: pa.Schema | None,
        key: str | Sequence[str],
        aggregates: Mapping[str, Any],
    ) -> AggregatesByKey:
        """Return the aggregates of blocks of declared columns.

        Raises:
            InvalidStreamError: *records* are not declared, a column is missing or of a type that
                an aggregate cannot use, or two columns of the result have one name.
        """
        records = require_declared(records, operation)
        keys = pa.schema([_decoded(field) for field in key_schema(key, records, operation)])
        if not aggregates:
            raise InvalidStreamError(
                f"{operation} needs an aggregate: {operation.partition(' ')[0]}({key!r}, "
                "sales=Count()), of dstreams.arrow.aggregates"
            )
        parts, results = [], list(keys)
        for name, aggregate in aggregates.items():
            made, result = _of_nothing(operation, name, aggregate, records, keys)
            parts += made
            results.append(result)
        return cls(operation, keys, dict(aggregates), pa.schema(parts), pa.schema(results))

    @property
    def partials(self) -> pa.Schema:
        """Columns of partial blocks: of the key and of the parts."""
        return pa.schema([*self.keys, *self.parts])

    @property
    def moved(self) -> pa.Schema:
        """Columns of partial blocks before they are merged: where the order counts, a place."""
        place = [pa.field(_PLACE, pa.int64())] if self.is_ordered else []
        return pa.schema([*self.partials, *place])

    @property
    def is_ordered(self) -> bool:
        """True if results depend on the order of the records."""
        return any(aggregate.is_ordered for aggregate in self.aggregates.values())

    def partial(self, block: pa.RecordBatch, by_row: bool = False) -> pa.RecordBatch:
        """Return a row of partial columns for each key, or *by_row* for each row, of a block."""
        keys, groups = self._rows(block) if by_row else self._grouped(block)
        parts = []
        for name, aggregate in self.aggregates.items():
            columns = [_plain(block.column(each)) for each in aggregate.inputs]
            with _Naming(self, name, keys):
                parts += aggregate.partial(groups, columns)
        return pa.record_batch([*keys.columns, *parts], schema=self.partials)

    def merged(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row of partial columns for each key of a block of partial columns."""
        keys, groups = self._grouped(block)
        if len(groups.of_rows) == groups.count:
            return block.select(self.partials.names).replace_schema_metadata(None)
        block, of_rows = _in_order(block, groups.of_rows)
        rows = [block.column(name) for name in self.parts.names]
        parts = self.merged_parts(keys, Groups(of_rows, groups.count), rows)
        return pa.record_batch([*keys.columns, *parts], schema=self.partials)

    def merged_parts(
        self, keys: pa.RecordBatch, groups: Groups, parts: Sequence[pa.Array]
    ) -> list[pa.Array]:
        """Return the partial columns of *keys*, merged of rows in their groups."""
        made: list[pa.Array] = []
        for name, aggregate in self.aggregates.items():
            start = len(made)
            with _Naming(self, name, keys):
                made += aggregate.merge_parts(
                    groups, parts[start : start + len(aggregate.part_names)]
                )
        return made

    def results_of(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of a block of partial columns; other columns are ignored."""
        columns = [block.column(name) for name in self.keys.names]
        for name, aggregate in self.aggregates.items():
            parts = [block.column(each) for each in _part_names(name, aggregate)]
            with _Naming(self, name, None):
                columns.append(aggregate.result(parts))
        return pa.record_batch(columns, schema=self.results)

    def _rows(self, block: pa.RecordBatch) -> tuple[pa.RecordBatch, Groups]:
        columns = [_plain(block.column(name)) for name in self.keys.names]
        groups = Groups(np.arange(block.num_rows), block.num_rows)
        return pa.record_batch(columns, schema=self.keys), groups

    def _grouped(self, block: pa.RecordBatch) -> tuple[pa.RecordBatch, Groups]:
        columns = [_plain(block.column(name)) for name in self.keys.names]
        sizes = sizes_of(block)
        no_state = None if sizes is None else (np.zeros_like(sizes), sizes)
        numbers = number_keys((), columns, sizes=no_state)
        rows = pa.array(numbers.new_rows)
        keys = pa.record_batch([column.take(rows) for column in columns], schema=self.keys)
        return keys, Groups(numbers.of_rows, numbers.count)


def _part_names(name: str, aggregate: ColumnAggregate) -> list[str]:
    return [f"{name}.{part}" for part in aggregate.part_names]


def _of_nothing(
    operation: str, name: str, aggregate: Any, records: pa.Schema, keys: pa.Schema
) -> tuple[list[pa.Field], pa.Field]:
    """Return the partial columns and the result of an aggregate, by what it makes of no rows."""
    where = f"{name}={aggregate!r} of {operation}"
    if not isinstance(aggregate, ColumnAggregate):
        raise InvalidStreamError(
            f"{where} must be an aggregate of columns, such as Sum('cents') of "
            "dstreams.arrow.aggregates"
        )
    try:
        inputs = aggregate.inputs
    except TypeError as error:
        raise InvalidStreamError(f"{where}: {error}") from None
    for column in inputs:
        if column not in records.names:
            raise InvalidStreamError(
                f"{where} needs the column {column!r}; the blocks have {', '.join(records.names)}"
            )
    names = _part_names(name, aggregate)
    taken = next((each for each in [name, *names] if each in keys.names), None)
    if taken is not None:
        raise InvalidStreamError(
            f"{where}: a column of the key is named {taken!r}, too; give the result another name"
        )
    groups = Groups(np.zeros(0, np.int64), 0)
    try:
        columns = [pa.array([], _decoded(records.field(each)).type) for each in inputs]
        parts = aggregate.partial(groups, columns)
        result = aggregate.result(aggregate.merge_parts(groups, parts))
    except TypeError as error:
        raise InvalidStreamError(f"{where}: {error}") from None
    fields = [pa.field(each, part.type) for each, part in zip(names, parts, strict=True)]
    return fields, pa.field(name, result.type)


def _decoded(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if _is_dictionary(field.type) else field


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if _is_dictionary(column.type) else column


def _is_dictionary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind))


class _Naming:
    """Adds the aggregate, and the key of a sum that leaves its range, to errors."""

    def __init__(self, of: AggregatesByKey, name: str, keys: pa.RecordBatch | None) -> None:
        self._of = of
        self._name = name
        self._keys = keys

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if not isinstance(error, Exception):
            return
        aggregate = self._of.aggregates[self._name]
        where = f"{self._name}={aggregate!r} of {self._of.operation}"
        if isinstance(error, SumRangeError) and self._keys is not None:
            key = shorten(self._keys.slice(error.group, 1).to_pylist()[0])
            raise UserFunctionError(
                f"{where}: the sum of the column {aggregate.inputs[0]!r} for the key {key} leaves "
                f"the range of {error.kind}; make the column a wider decimal or a float64 before"
            ) from error
        raise UserFunctionError(f"{where} failed: {summarize(error)}") from error


@dataclass(frozen=True)
class MergedState:
    """State function that keeps partial columns, and a flag that is never null, for each key.

    Attributes:
        aggregates: the aggregates.
        keeps: returns, for a block of results, flags of the keys to keep; None keeps all.
        says_results: whether it outputs the results of keys with records.
    """

    aggregates: AggregatesByKey
    keeps: Callable[[pa.RecordBatch], Any] | None = None
    says_results: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns of the state."""
        return pa.schema([*self.aggregates.parts, (_SEEN, pa.bool_())])

    def __call__(self, keys: pa.RecordBatch, values: Any, state: pa.RecordBatch) -> Any:
        groups, rows = self._rows(values, state)
        parts = self.aggregates.merged_parts(keys, groups, rows)
        after = [*parts, pa.array(np.ones(keys.num_rows, np.bool_))]
        if self.keeps is None and not self.says_results:
            return pa.record_batch(after, schema=self.schema)
        whole = pa.record_batch([*keys.columns, *parts], schema=self.aggregates.partials)
        results = self.aggregates.results_of(whole)
        if self.keeps is None:  # then it is called only for keys with records
            return pa.record_batch(after, schema=self.schema), results
        kept = self._kept(results)
        rows_kept = pa.array(np.arange(len(kept)), mask=~kept)
        new_state = pa.record_batch(
            [column.take(rows_kept) for column in after], schema=self.schema
        )
        if not self.says_results:
            return new_state
        said = np.zeros(keys.num_rows, np.bool_)
        said[values.keys] = True
        return new_state, results.filter(pa.array(said & kept))

    def _rows(self, values: Any, state: pa.RecordBatch) -> tuple[Groups, list[pa.Array]]:
        """Return the partial columns of the state, then of the batch, and the key of each row."""
        records, of_records = _in_order(values.records, values.keys)
        known = np.flatnonzero(flags_of(state.column(_SEEN).is_valid()))
        before = state if len(known) == state.num_rows else state.take(pa.array(known))
        rows = [
            pa.concat_arrays([before.column(name), records.column(name)])
            for name in self.aggregates.parts.names
        ]
        return Groups(np.concatenate([known, of_records]), state.num_rows), rows

    def _kept(self, results: pa.RecordBatch) -> NDArray[np.bool_]:
        assert self.keeps is not None
        with calling(self.aggregates.operation, self.keeps):
            flags = self.keeps(results)
        if isinstance(flags, pa.ChunkedArray):
            flags = flags.combine_chunks()
        fits = isinstance(flags, pa.Array) and pa.types.is_boolean(flags.type)
        if not fits or len(flags) != results.num_rows:
            raise UserFunctionError(
                f"{function_of(self.keeps, self.aggregates.operation)} must return a pyarrow array "
                f"of {results.num_rows:,} truth values, one for each row, got {shorten(flags)} "
                f"({type(flags).__name__})"
            )
        return flags_of(flags.fill_null(False))


def state_update(state: MergedState) -> BlockUpdate:
    """Return the update of a running state of aggregates."""
    aggregates = state.aggregates
    output = aggregates.results if state.says_results else None
    update = BlockUpdate.checked(
        state,
        aggregates.operation,
        aggregates.moved,
        aggregates.keys.names,
        state.schema,
        output,
    )
    # Keys without records stay as they are, unless *keeps* may drop them.
    step = replace(update.step, touches_all=state.keeps is not None)
    return BlockUpdate(step, update.records)


def partials_rdd(rdd: RDD[Any], aggregates: AggregatesByKey) -> RDD[pa.RecordBatch]:
    """Return the partial blocks of an RDD of blocks, without a shuffle."""
    return blocks_rdd(rdd, _Partial(aggregates))


def merged_rdd(
    rdd: RDD[Any], aggregates: AggregatesByKey, partitioner: StablePartitioner, final: bool
) -> RDD[pa.RecordBatch]:
    """Merge partial blocks by key; return results if *final*.

    Blocks that *partitioner* has placed are not shuffled.
    """
    in_place = rdd.partitioner == partitioner or not rdd.getNumPartitions()
    if not in_place:
        layout = state_update(MergedState(aggregates)).layout
        rdd = layout.frames(rdd, partitioner, Side.BATCH, aggregates.operation)
    merged: RDD[Any] = PipelinedRDD(rdd, _Merge(aggregates, not in_place, final), True)
    merged._jrdd_deserializer = BlockSerializer()
    return merged


@dataclass(frozen=True)
class _Partial:
    """Task: blocks -> partial blocks.

    If nearly every record of the first block has its own key, later records become partial rows one
    by one, at a third of the cost, and the merge does the rest.
    """

    aggregates: AggregatesByKey
    rows_at_once: int = ROUTED_ROWS

    def __call__(self, split: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        start = split << _PLACES
        has_repeats = True
        for block in gathered(blocks, self.rows_at_once, self.aggregates.operation):
            made = self.aggregates.partial(block, by_row=not has_repeats)
            if self.aggregates.is_ordered:
                of_rows = 0 if has_repeats else np.arange(made.num_rows)
                places = np.full(made.num_rows, start) + of_rows
                made = made.append_column(_PLACE, pa.array(places))
            start += block.num_rows
            has_repeats = has_repeats and made.num_rows < _FEW_REPEATS * block.num_rows
            yield made


@dataclass(frozen=True)
class _Merge:
    """Task: partial blocks of a partition, or their frames -> blocks with each key once."""

    aggregates: AggregatesByKey
    is_framed: bool
    is_final: bool

    def __call__(self, _: int, blocks: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        there = list(map(block_of_bytes, blocks) if self.is_framed else blocks)
        if not there:
            return
        merged = self.aggregates.merged(together(there, self.aggregates.operation))
        if self.is_final:
            merged = self.aggregates.results_of(merged)
        yield from _slices(merged)


@dataclass(frozen=True)
class StateResults:
    """Task: blocks of a state -> the results of its keys."""

    aggregates: AggregatesByKey

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for block in blocks:
            if side_of(block) is Side.STATE:
                yield self.aggregates.results_of(block)


def _slices(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, block.num_rows, ROUTED_ROWS):
        yield block.slice(start, ROUTED_ROWS)


def _in_order(block: pa.RecordBatch, of_rows: Ints) -> tuple[pa.RecordBatch, Ints]:
    """Return partial rows in the order of their records, if the order counts."""
    if _PLACE not in block.schema.names:
        return block, of_rows
    order = np.argsort(block.column(_PLACE).to_numpy(), kind="stable")
    return block.take(pa.array(order)), of_rows[order]

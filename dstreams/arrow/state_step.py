"""One step of state in blocks: a batch meets the state of its partition, in one call of a function.

The function gets the keys once each, the records of the batch behind them, and the state aligned
with the keys; it returns the new state, aligned in the same way, and what it has to say besides.

>>> import pyarrow as pa
>>> import pyarrow.compute as pc
>>> def total(keys, values, state):
...     before = pc.fill_null(state.column("total"), 0)
...     return pa.record_batch({"total": pc.add(before, pc.fill_null(values.sum("number"), 0))})
>>> layout = StateLayout(pa.schema({"word": pa.string()}), pa.schema({"total": pa.int64()}))
>>> step = StateStep(total, "updateStateByKey", layout)
>>> records = pa.record_batch({"word": ["a", "b", "a"], "number": [1, 2, 3]})
>>> state, _ = step.next(None, records)
>>> state, _ = step.next(state, records)
>>> state.to_pylist()
[{'word': 'a', 'total': 8}, {'word': 'b', 'total': 4}]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dstreams.arrow.block_functions import SchemaMismatchError, fitted, one_block
from dstreams.arrow.block_rdd import together
from dstreams.arrow.buckets import WORTH_ROWS, filtered, in_buckets, sizes_of, with_sizes
from dstreams.arrow.grouping import GroupedValues, KeyNumbers, number_keys
from dstreams.arrow.key_hash import flags_of
from dstreams.arrow.state_layout import StateLayout
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError, function_of, summarize

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class StateStep:
    """What a user's function makes of the state of a partition and the records of a batch.

    Attributes:
        func: ``(keys, values, state) -> state``, or to (state, output) where there is an *output*.
        operation: operation and call site, for messages.
        layout: the columns of the state.
        output: columns of what the function has to say besides; None: it says nothing.
        touches_all: whether the function gets all keys of the state, or those with records alone.
    """

    func: Callable[[pa.RecordBatch, GroupedValues, pa.RecordBatch], Any]
    operation: str
    layout: StateLayout
    output: pa.Schema | None = None
    touches_all: bool = True

    def next(
        self, state: pa.RecordBatch | None, records: pa.RecordBatch, *, unique: bool = True
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Return the next state of a partition, each key once, and the output.

        Keys of the state come first, in their order; new ones follow in that of their records.
        Where many keys or records meet, all of them lie in buckets.

        Raises:
            UserFunctionError: the function fails, or what it returns does not fit.
            DuplicateStateKeyError: the state is not known to be *unique*, and has a key twice.
        """
        known = self.layout.nothing() if state is None else state
        names = self.layout.keys.names
        sizes = None
        if _is_worth_buckets(known, records):
            known, known_sizes = in_buckets(known, names)
            records, record_sizes = in_buckets(records, names)
            sizes = known_sizes, record_sizes
        known, records = known.replace_schema_metadata(None), records.replace_schema_metadata(None)
        numbers = number_keys(
            [known.column(name) for name in names],
            [records.column(name) for name in names],
            unique=unique,
            sizes=sizes,
        )
        everything = _with_new_keys(known, records, numbers, self.layout)
        if self.touches_all:
            rows, of_rows = None, numbers.of_rows
            touched = everything
        else:
            is_touched = np.zeros(numbers.count, np.bool_)
            is_touched[numbers.of_rows] = True
            rows = np.flatnonzero(is_touched)
            of_rows = (np.cumsum(is_touched) - 1)[numbers.of_rows]
            touched = everything.take(pa.array(rows))
        if not touched.num_rows:
            return (everything if sizes is None else with_sizes(everything, sizes[0])), None
        values = GroupedValues(records, of_rows, touched.num_rows)
        after, output = self._call(touched.select(names), values, touched)
        if rows is not None:
            after = _replaced(everything, rows, after)
        next_state = pa.record_batch(
            [*everything.select(names).columns, *after], schema=self.layout.schema
        )
        if sizes is not None:
            parts = [with_sizes(next_state.slice(0, numbers.known), sizes[0])]
            if len(numbers.new_rows):
                parts.append(with_sizes(next_state.slice(numbers.known), numbers.new_sizes))
            next_state = together(parts, self.operation)
        return _live(next_state, self.layout), output

    def _call(
        self, keys: pa.RecordBatch, values: GroupedValues, touched: pa.RecordBatch
    ) -> tuple[list[pa.Array], pa.RecordBatch | None]:
        """Call the function; returns the columns of the state after it, and its output."""
        try:
            result = self.func(keys, values, touched.select(self.layout.state.names))
            after, output = self._parts(result)
            return self._checked(keys, after), self._fitted_output(output)
        except UserFunctionError:  # it says already what failed
            raise
        except Exception as error:
            first = shorten(keys.slice(0, 1).to_pylist()[0])
            raise UserFunctionError(
                f"{function_of(self.func, self.operation)} failed for {keys.num_rows:,} keys, the "
                f"first of which is {first}: {summarize(error)}"
            ) from error

    def _parts(self, result: Any) -> tuple[Any, Any]:
        if self.output is None:
            return result, None
        if isinstance(result, tuple) and len(result) == 2:
            return result
        raise TypeError(
            f"it must return a tuple of state and output, got {shorten(result)} "
            f"({type(result).__name__})"
        )

    def _checked(self, keys: pa.RecordBatch, after: Any) -> list[pa.Array]:
        """Return the columns of the state that the function gave, one value for each key."""
        if isinstance(after, pa.Table):
            after = one_block(after)
        if not isinstance(after, pa.RecordBatch):
            raise TypeError(
                f"the state must be a pyarrow.RecordBatch, got {shorten(after)} "
                f"({type(after).__name__})"
            )
        if after.num_rows != keys.num_rows:
            raise SchemaMismatchError(
                f"the state has {after.num_rows:,} rows for {keys.num_rows:,} keys; each key has "
                "a row, of nulls where it is to be dropped"
            )
        names = [name for name in after.schema.names if name in keys.schema.names]
        for name in names:
            _require_same_keys(keys.column(name), after.column(name), name)
        nullable = pa.schema([field.with_nullable(True) for field in self.layout.state])
        fitting = fitted(after.drop_columns(names), nullable)
        _require_whole_rows(keys, fitting, self.layout.state)
        return list(fitting.columns)

    def _fitted_output(self, output: Any) -> pa.RecordBatch | None:
        if self.output is None or output is None:
            return None
        block = one_block(output) if isinstance(output, pa.Table) else output
        if not isinstance(block, pa.RecordBatch):
            raise TypeError(
                f"the output must be a pyarrow.RecordBatch or None, got {shorten(output)} "
                f"({type(output).__name__})"
            )
        return fitted(block, self.output)


def _with_new_keys(
    known: pa.RecordBatch, records: pa.RecordBatch, numbers: KeyNumbers, layout: StateLayout
) -> pa.RecordBatch:
    """Return the state with a row of nulls for each key that it lacks."""
    new = len(numbers.new_rows)
    if not new:
        return known
    rows = pa.array(numbers.new_rows)
    columns = [
        pa.concat_arrays(
            [
                known.column(field.name),
                records.column(field.name).take(rows)
                if field.name in layout.keys.names
                else pa.nulls(new, field.type),
            ]
        )
        for field in known.schema
    ]
    return pa.record_batch(columns, schema=known.schema)


def _replaced(
    everything: pa.RecordBatch, rows: NDArray[np.int64], after: list[pa.Array]
) -> list[pa.Array]:
    """Return the columns of the state with new values in some rows."""
    places = np.arange(everything.num_rows)
    places[rows] = everything.num_rows + np.arange(len(rows))
    before = everything.columns[everything.num_columns - len(after) :]
    return [
        pa.concat_arrays([old, new]).take(pa.array(places))
        for old, new in zip(before, after, strict=True)
    ]


def _is_worth_buckets(state: pa.RecordBatch, records: pa.RecordBatch) -> bool:
    if state.num_rows + records.num_rows > 2 * WORTH_ROWS:
        return True
    return sizes_of(state) is not None or sizes_of(records) is not None


def _live(state: pa.RecordBatch, layout: StateLayout) -> pa.RecordBatch:
    """Return the state without the keys that have none any more."""
    gone = _all_null([state.column(name) for name in layout.state.names])
    return state if gone is None else filtered(state, ~gone)


def _all_null(columns: Sequence[pa.Array]) -> NDArray[np.bool_] | None:
    """Return which rows are null in all columns; None: there are none."""
    if not all(column.null_count for column in columns):
        return None
    gone = np.logical_and.reduce([flags_of(column.is_null()) for column in columns])
    return gone if gone.any() else None


def _require_whole_rows(keys: pa.RecordBatch, state: pa.RecordBatch, declared: pa.Schema) -> None:
    """Refuse a null where none may be, in a row that is not null as a whole."""
    gone = _all_null(state.columns)
    for column, field in zip(state.columns, declared, strict=True):
        if field.nullable or not column.null_count:
            continue
        nulls = flags_of(column.is_null())
        wrong = nulls if gone is None else nulls & ~gone
        if wrong.any():
            key = keys.slice(int(wrong.argmax()), 1).to_pylist()[0]
            raise SchemaMismatchError(
                f"the column {field.name!r} of the state holds no null, and the key "
                f"{shorten(key)} has one; a key is dropped by nulls in all columns"
            )


def _require_same_keys(given: pa.Array, returned: pa.Array, name: str) -> None:
    if returned.equals(given):
        return
    pairs = zip(given.to_pylist(), returned.to_pylist(), strict=True)
    row, (was, now) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    raise SchemaMismatchError(
        f"the column {name!r} of the keys came back in another order: row {row} was "
        f"{shorten(was)} and is {shorten(now)}"
    )

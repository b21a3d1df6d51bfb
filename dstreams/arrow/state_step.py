"""Update the state of a partition with the blocks of a batch, in one call of a user function.

The function receives each key once, the records of the batch grouped by key, and the state aligned
with the keys. It returns the new state in the same order and, optionally, an output.

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

A state of an earlier program gets the columns that are new.

>>> layout = StateLayout(
...     pa.schema({"word": pa.string()}),
...     pa.schema({"total": pa.int64(), "mean": pa.float64(), "sort": pa.string()}),
...     {"sort": "new"},
... )
>>> layout.grown(pa.record_batch({"word": ["a"], "total": [1]}), "updateStateByKey").to_pylist()
[{'word': 'a', 'total': 1, 'mean': None, 'sort': 'new'}]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dstreams.arrow.block_functions import SchemaMismatchError, empty_block, fitted, one_block
from dstreams.arrow.block_rdd import together
from dstreams.arrow.key_hash import WORTH_ROWS, filtered, flags_of, in_buckets, sizes_of, with_sizes
from dstreams.arrow.key_numbers import GroupedValues, KeyNumbers, number_keys
from dstreams.arrow.library import require
from dstreams.arrow.rows import plain_value
from dstreams.arrow.schemas import is_record_class
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError, function_of, summarize
from dstreams.state.stored_columns import is_widened

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StateColumnsError(ValueError):
    """A state has columns that this program lacks, or has with another type."""


@dataclass(frozen=True)
class StateLayout:
    """The columns of a state.

    Attributes:
        keys: columns of the key, at least one.
        state: columns of the state, at least one; a key with nulls in all of them is dropped.
        defaults: values of columns that an earlier program did not have; null by default.
    """

    keys: pa.Schema
    state: pa.Schema
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the stored state."""
        arrow = require("pyarrow", "a state in blocks")
        return arrow.schema([*self.keys, *(each.with_nullable(True) for each in self.state)])

    def nothing(self) -> pa.RecordBatch:
        """Return an empty state."""
        return empty_block(self.schema)

    def described(self) -> list[dict[str, object]]:
        """Return the columns as JSON."""
        return [
            {"name": each.name, "type": str(each.type), "is_key": each.name in self.keys.names}
            for each in self.schema
        ]

    def grown(self, block: pa.RecordBatch, operation: str) -> pa.RecordBatch:
        """Return a block of the state with the columns of this program.

        Raises:
            StateColumnsError: a column is missing, or has another type that is not wider.
        """
        schema = self.schema
        if block.schema.equals(schema):
            return block
        for was in block.schema:
            self._require_kept(was, schema, operation)
        arrow = require("pyarrow", operation)
        columns = [
            block.column(each.name).cast(each.type)
            if each.name in block.schema.names
            else arrow.repeat(arrow.scalar(self.defaults.get(each.name), each.type), block.num_rows)
            for each in schema
        ]
        return arrow.record_batch(columns, schema=schema.with_metadata(block.schema.metadata))

    def _require_kept(self, was: pa.Field, schema: pa.Schema, operation: str) -> None:
        if was.name not in schema.names:
            raise StateColumnsError(
                f"the state of {operation} has a column {was.name!r}, which is no longer declared; "
                "declare it, or start a new state under another uid"
            )
        now = schema.field(was.name)
        if now.type != was.type and not is_widened(str(was.type), str(now.type)):
            raise StateColumnsError(
                f"the column {was.name!r} of the state of {operation} is {was.type}, but "
                f"{now.type} is declared; keep the type and add a column, or start a new state "
                "under another uid"
            )


def defaults_of(declared: Any, state: pa.Schema, operation: str) -> dict[str, Any]:
    """Return the defaults of the fields of a record class, converted for Arrow.

    Raises:
        InvalidStreamError: a default does not fit its column.
    """
    arrow = require("pyarrow", operation)
    found = {}
    for name, value in _declared_defaults(declared):
        kind = state.field(name).type
        try:
            plain = plain_value(value, kind)
            arrow.scalar(plain, kind)
        except Exception as error:
            raise InvalidStreamError(
                f"the default {shorten(value)} of the column {name!r} of {operation} is not "
                f"{kind}: {error}"
            ) from error
        found[name] = plain
    return found


def _declared_defaults(declared: Any) -> list[tuple[str, Any]]:
    if not is_record_class(declared):
        return []
    if not dataclasses.is_dataclass(declared):
        return list(declared._field_defaults.items())
    found = []
    for each in dataclasses.fields(declared):
        if each.default is not dataclasses.MISSING:
            found.append((each.name, each.default))
        elif each.default_factory is not dataclasses.MISSING:
            found.append((each.name, each.default_factory()))
    return found


@dataclass(frozen=True)
class StateStep:
    """An update of the state of a partition by a user function.

    Attributes:
        func: ``(keys, values, state) -> state``, or ``(state, output)`` with an *output*.
        operation: operation and call site, for messages.
        layout: the columns of the state.
        output: columns of the output; None without an output.
        touches_all: whether the function receives all keys of the state, or only those with
            records.
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

        Keys of the state keep their order; new keys follow in the order of their records. With many
        keys or records, the result is in bucket order.

        Raises:
            UserFunctionError: the function fails, or what it returns does not fit.
            DuplicateStateKeyError: the state is not known to be *unique*, and has a duplicate key.
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
        """Call the function; return the columns of the new state, and the output."""
        try:
            result = self.func(keys, values, touched.select(self.layout.state.names))
            after, output = self._parts(result)
            return self._checked(keys, after), self._fitted_output(output)
        except UserFunctionError:  # already has the details
            raise
        except Exception as error:
            first = shorten(keys.slice(0, 1).to_pylist()[0])
            raise UserFunctionError(
                f"{function_of(self.func, self.operation)} failed for {keys.num_rows:,} keys, "
                f"first {first}: {summarize(error)}"
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
        """Check and return the columns of the new state."""
        if isinstance(after, pa.Table):
            after = one_block(after)
        if not isinstance(after, pa.RecordBatch):
            raise TypeError(
                f"the state must be a pyarrow.RecordBatch, got {shorten(after)} "
                f"({type(after).__name__})"
            )
        if after.num_rows != keys.num_rows:
            raise SchemaMismatchError(
                f"the state has {after.num_rows:,} rows for {keys.num_rows:,} keys; return a row "
                "for each key, of nulls to drop the key"
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
    """Return the state with a row of nulls for each new key."""
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
    """Return the state without keys whose columns are all null."""
    gone = _all_null([state.column(name) for name in layout.state.names])
    return state if gone is None else filtered(state, ~gone)


def _all_null(columns: Sequence[pa.Array]) -> NDArray[np.bool_] | None:
    """Return flags of the rows that are null in all columns, None without such rows."""
    if not all(column.null_count for column in columns):
        return None
    gone = np.logical_and.reduce([flags_of(column.is_null()) for column in columns])
    return gone if gone.any() else None


def _require_whole_rows(keys: pa.RecordBatch, state: pa.RecordBatch, declared: pa.Schema) -> None:
    """Reject a null in a column that is not nullable, unless the whole row is null."""
    gone = _all_null(state.columns)
    for column, field in zip(state.columns, declared, strict=True):
        if field.nullable or not column.null_count:
            continue
        nulls = flags_of(column.is_null())
        wrong = nulls if gone is None else nulls & ~gone
        if wrong.any():
            key = keys.slice(int(wrong.argmax()), 1).to_pylist()[0]
            raise SchemaMismatchError(
                f"the column {field.name!r} of the state is not nullable, but is null for the key "
                f"{shorten(key)}; return nulls in all columns to drop a key"
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

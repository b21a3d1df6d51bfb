"""Tasks that call user functions with blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from dstreams.arrow.library import require
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.failures import UserFunctionError, calling, function_of, summarize
from dstreams.spark.worker_gc import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa


class BlockForm(str, Enum):
    """The type of blocks that a user function takes and returns."""

    ARROW = "arrow"
    PANDAS = "pandas"
    POLARS = "polars"

    @classmethod
    def checked(cls, name: str, operation: str) -> BlockForm:
        """Return the form with a name, whose library is installed."""
        try:
            form = cls(name)
        except ValueError:
            raise InvalidStreamError(
                f"form of {operation} must be 'arrow', 'pandas' or 'polars', got {name!r}"
            ) from None
        require("pyarrow" if form is cls.ARROW else form.value, operation)
        return form

    def of_block(self, block: pa.RecordBatch) -> Any:
        """Convert a block for the function."""
        if self is BlockForm.PANDAS:
            return block.to_pandas()
        if self is BlockForm.POLARS:
            return require("polars", "mapBlocks").from_arrow(block)
        return block

    def to_block(self, result: Any, schema: pa.Schema | None) -> pa.RecordBatch:
        """Convert the result of the function to a block.

        Raises:
            TypeError: the result has another type.
        """
        arrow = require("pyarrow", "mapBlocks")
        if self is BlockForm.PANDAS and _is_of(result, "pandas", "DataFrame"):
            return arrow.RecordBatch.from_pandas(result, schema=schema, preserve_index=False)
        if self is BlockForm.POLARS and _is_of(result, "polars", "DataFrame"):
            table = result.to_arrow()
            result = table.cast(arrow.schema([_narrow(arrow, field) for field in table.schema]))
        if isinstance(result, arrow.Table):
            return one_block(result)
        if isinstance(result, arrow.RecordBatch):
            return result
        wanted = "a pyarrow.RecordBatch" if self is BlockForm.ARROW else f"a {self.value} DataFrame"
        raise TypeError(f"it must return {wanted}, got {shorten(result)} ({type(result).__name__})")


def _is_of(value: Any, library: str, name: str) -> bool:
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == library


def _narrow(arrow: Any, field: Any) -> Any:
    """Return a field of polars with plain instead of large strings and lists."""
    types, kind = arrow.types, field.type
    if types.is_large_string(kind):
        return field.with_type(arrow.string())
    if types.is_large_binary(kind):
        return field.with_type(arrow.binary())
    if types.is_large_list(kind):
        return field.with_type(arrow.list_(_narrow(arrow, kind.value_field)))
    if types.is_struct(kind):
        return field.with_type(arrow.struct([_narrow(arrow, each) for each in kind]))
    return field


def one_block(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one block."""
    blocks = table.combine_chunks().to_batches()
    return blocks[0] if blocks else empty_block(table.schema)


def empty_block(schema: pa.Schema) -> pa.RecordBatch:
    """Return a block without rows."""
    arrow = require("pyarrow", "a stream of blocks")
    return arrow.record_batch([arrow.array([], field.type) for field in schema], schema=schema)


@dataclass(frozen=True)
class MapBlocks:
    """Task: block -> func(block), checked against the schema if there is one."""

    func: Callable[[Any], Any]
    operation: str
    form: BlockForm = BlockForm.ARROW
    schema: pa.Schema | None = None

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for block in blocks:
            try:
                made = self.form.to_block(self.func(self.form.of_block(block)), self.schema)
                fitting = made if self.schema is None else fitted(made, self.schema)
            except Exception as error:
                raise self._failed(block, error) from error
            if fitting.num_rows:
                yield fitting

    def _failed(self, block: pa.RecordBatch, error: Exception) -> UserFunctionError:
        first = shorten(block.slice(0, 1).to_pylist()[0]) if block.num_rows else "no record"
        return UserFunctionError(
            f"{function_of(self.func, self.operation)} failed for a block of {block.num_rows:,} "
            f"records, first {first}: {summarize(error)}"
        )


@dataclass(frozen=True)
class MapBlockIterator:
    """Task: iterator of blocks -> func(iterator), as in ``mapInArrow`` and ``mapInPandas``."""

    func: Callable[[Iterator[Any]], Iterable[Any]]
    operation: str
    form: BlockForm
    schema: pa.Schema

    def __call__(self, _: int, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        remaining = iter(blocks)
        with calling(self.operation, self.func):
            for number, result in enumerate(self.func(map(self.form.of_block, remaining))):
                try:
                    made = fitted(self.form.to_block(result, self.schema), self.schema)
                except Exception as error:
                    raise UserFunctionError(
                        f"{function_of(self.func, self.operation)}, block {number} of its "
                        f"partition: {summarize(error)}"
                    ) from error
                if made.num_rows:
                    yield made
        for _ in remaining:  # Spark does not reuse a worker with unread input
            pass


class SchemaMismatchError(ValueError):
    """A block does not have the declared schema."""


def fitted(block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return *block* with its columns in the order of *schema*; values are not converted.

    Raises:
        SchemaMismatchError: a column is missing, unknown, of another type, or has a null and is not
            nullable; the message has the first such row.
    """
    missing = [name for name in schema.names if name not in block.schema.names]
    others = [name for name in block.schema.names if name not in schema.names]
    if missing or others:
        problem = f"lacks the column {missing[0]!r}" if missing else f"has a column {others[0]!r}"
        raise SchemaMismatchError(
            f"the block {problem}; declared are {', '.join(map(_named, schema))}"
        )
    columns = [block.column(name) for name in schema.names]
    for column, field in zip(columns, schema, strict=True):
        if column.type != field.type:
            raise SchemaMismatchError(
                f"the column {field.name!r} is {column.type}, but {field.type} was declared"
            )
        if column.null_count and not field.nullable:
            row = column.is_null().index(True).as_py()
            raise SchemaMismatchError(
                f"the column {field.name!r} is not nullable, but row {row} has a null: "
                f"{shorten(block.slice(row, 1).to_pylist()[0])}"
            )
    arrow = require("pyarrow", "a stream of blocks")
    return arrow.record_batch(columns, schema=schema)


def _named(field: Any) -> str:
    return f"{field.name} {field.type}"

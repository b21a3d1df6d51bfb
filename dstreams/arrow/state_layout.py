"""The columns of a state in blocks, and how a state of an earlier program gets those of this one.

>>> import pyarrow as pa
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dstreams.arrow.block_functions import empty_block
from dstreams.arrow.library import require
from dstreams.arrow.rows import plain_value
from dstreams.arrow.schemas import is_record_class
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten

if TYPE_CHECKING:
    import pyarrow as pa


class StateColumnsError(ValueError):
    """A state was written with columns that this program does not have, or has of another type."""


@dataclass(frozen=True)
class StateLayout:
    """The columns of a state: those of its key, and those of what is kept for each key.

    Attributes:
        keys: columns of the key, at least one.
        state: columns of the state, at least one; a key whose columns are all null has none.
        defaults: what keys have in a column that an earlier program did not keep; null without one.
    """

    keys: pa.Schema
    state: pa.Schema
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the state as it is kept."""
        arrow = require("pyarrow", "a state in blocks")
        return arrow.schema([*self.keys, *(each.with_nullable(True) for each in self.state)])

    def nothing(self) -> pa.RecordBatch:
        """Return the state of no key."""
        return empty_block(self.schema)

    def described(self) -> list[dict[str, object]]:
        """Say in JSON which columns there are."""
        return [
            {"name": each.name, "type": str(each.type), "is_key": each.name in self.keys.names}
            for each in self.schema
        ]

    def grown(self, block: pa.RecordBatch, operation: str) -> pa.RecordBatch:
        """Return a block of the state with the columns of this program.

        Raises:
            StateColumnsError: a column is gone, or is of another type.
        """
        schema = self.schema
        if block.schema.equals(schema):
            return block
        for was in block.schema:
            self._require_kept(was, schema, operation)
        arrow = require("pyarrow", operation)
        columns = [
            block.column(each.name)
            if each.name in block.schema.names
            else arrow.repeat(arrow.scalar(self.defaults.get(each.name), each.type), block.num_rows)
            for each in schema
        ]
        return arrow.record_batch(columns, schema=schema.with_metadata(block.schema.metadata))

    def _require_kept(self, was: pa.Field, schema: pa.Schema, operation: str) -> None:
        if was.name not in schema.names:
            raise StateColumnsError(
                f"the state of {operation} has a column {was.name!r}, which is not declared any "
                "more; declare it, or begin a new state under another uid"
            )
        now = schema.field(was.name)
        if now.type != was.type:
            raise StateColumnsError(
                f"the column {was.name!r} of the state of {operation} is {was.type}, and "
                f"{now.type} is declared; keep the type and add a column, or begin a new state "
                "under another uid"
            )


def defaults_of(declared: Any, state: pa.Schema, operation: str) -> dict[str, Any]:
    """Return the defaults that the fields of a class of records declare, as Arrow takes them.

    Raises:
        InvalidStreamError: a default is no value of its column.
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
                f"the default {shorten(value)} of the column {name!r} of {operation} is no "
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

"""StaticRows: the rows of a batch dataset, and of the static side of a join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.common.callables import describe
from dstreams.errors import InvalidStreamError

_KINDS = "a list, an RDD, a DataFrame, or a function without arguments that returns one of these"


@dataclass(frozen=True, eq=False)
class StaticRows:
    """Rows that do not come from a stream.

    Args:
        data: the rows, or a function that returns them, which is called whenever they are read.
        name: the name in ``explain`` and messages.
        fields: the names of the fields of a row; None if unknown.
    """

    data: tuple[Any, ...] | RDD[Any] | Callable[[], Any]
    name: str
    fields: tuple[str, ...] | None = None

    @classmethod
    def of(cls, data: object, where: str) -> StaticRows:
        """Return rows from what a program gave to the operation *where*.

        Raises:
            InvalidStreamError: *data* cannot be read as rows.
        """
        if hasattr(data, "rdd") and hasattr(data, "columns"):
            columns = tuple(data.columns)
            return cls(data.rdd, f"DataFrame[{', '.join(columns)}]", columns)
        if isinstance(data, RDD):
            return cls(data, f"RDD {data.id()}")
        if callable(data) and not isinstance(data, type):
            return cls(data, describe(data))
        rows = _listed(data, where)
        return cls(rows, f"{len(rows)} rows")

    @property
    def can_reload(self) -> bool:
        """True if reading again may return other rows."""
        return not isinstance(self.data, (tuple, RDD))

    def load(self, spark: SparkContext) -> RDD[Any]:
        """Return the rows as they are now."""
        data = self.data
        if not isinstance(data, (tuple, RDD)):
            data = data()
            if hasattr(data, "rdd"):
                data = data.rdd
            if not isinstance(data, RDD):
                data = _listed(data, self.name)
        return data if isinstance(data, RDD) else spark.parallelize(data)


def _listed(data: object, where: str) -> tuple[Any, ...]:
    is_other = isinstance(data, (str, bytes, Mapping)) or hasattr(data, "columns")
    if is_other or not isinstance(data, Iterable):
        remedy = ""
        if isinstance(data, Mapping):
            remedy = "; pass list(d.items()), whose rows are pairs"
        elif hasattr(data, "columns"):
            remedy = "; pass spark.createDataFrame(...) of it, or a list of its rows"
        raise InvalidStreamError(f"{where} takes {_KINDS}, got {type(data).__name__}{remedy}")
    return tuple(data)

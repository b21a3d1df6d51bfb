"""A user's function, called with each batch in the form that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.common.callables import require_arity
from dstreams.common.durations import batch_datetime
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.promise import DeliveryGuarantee

_SHAPE = "f(rdd), f(time, rdd) or f(time, rdd, batchId)"
_NAME = "batchId"
_AGAIN = "the function is called again with a batch that a crash cut off, with the same records"


@dataclass(frozen=True)
class ForeachBatch:
    """Calls a user's function with a batch.

    It takes the first of (time, rdd, batchId), or the RDD alone, by position, and the batch id by
    name if a parameter is called ``batchId``.
    """

    func: Callable[..., Any]
    arguments: int
    by_name: bool

    @classmethod
    def of(cls, func: Callable[..., Any], operation: str) -> ForeachBatch:
        """Find out how *func* is to be called, once, when it is handed over.

        A parameter of the name ``batchId`` always gets the batch id. A third parameter without a
        default gets it as well, whatever its name.
        """
        if callable(func):
            for count in (1, 2):
                if _takes_by_name(func, count):
                    return cls(func, count, by_name=True)
        return cls(func, require_arity(func, (1, 2, 3), operation, _SHAPE), by_name=False)

    @property
    def promise(self) -> DeliveryGuarantee:
        """At least once, unless the function tells by the batch id that it has had a batch."""
        knows = self.by_name or self.arguments > 2
        remedy = (
            "and batch id: exactly once where it leaves out a batch id that it has written"
            if knows
            else "and time; let it take the batch id as well to tell that it has written a batch"
        )
        return DeliveryGuarantee("at least once", f"{_AGAIN} {remedy}")

    def __call__(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
        arguments: tuple[Any, ...] = (rdd,)
        if self.arguments > 1:
            arguments = (batch_datetime(batch.time_ms), rdd, batch.batch_id)[: self.arguments]
        if self.by_name:
            self.func(*arguments, **{_NAME: batch.batch_id})
        else:
            self.func(*arguments)


def _takes_by_name(func: Callable[..., Any], count: int) -> bool:
    """Whether ``func(*count values, batchId=...)`` fits, by a parameter of that very name."""
    try:
        signature = inspect.signature(func)
        bound = signature.bind(*[None] * count, **{_NAME: None})
    except (TypeError, ValueError):
        return False
    return _NAME in bound.arguments and _NAME in signature.parameters

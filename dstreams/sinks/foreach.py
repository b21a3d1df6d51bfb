"""The sink that calls a user's function with each batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.common.callables import require_arity
from dstreams.common.durations import batch_datetime
from dstreams.sinks.output_batch import DeliveryGuarantee, OutputBatch

_SHAPE = "f(rdd), f(time, rdd) or f(time, rdd, batchId)"
_NAME = "batchId"
_AGAIN = "after a crash, the function is called again with the interrupted batch, the same records"


@dataclass(frozen=True)
class ForeachBatch:
    """Calls a user's function with a batch.

    The function takes the RDD alone, or the first of (time, rdd, batchId), by position. If a
    parameter is called ``batchId``, it takes the batch id as a keyword argument.
    """

    func: Callable[..., Any]
    arguments: int
    by_name: bool

    @classmethod
    def of(cls, func: Callable[..., Any], operation: str) -> ForeachBatch:
        """Read the signature of *func*; its third parameter may also have another name."""
        if callable(func):
            for count in (1, 2):
                if _takes_by_name(func, count):
                    return cls(func, count, by_name=True)
        return cls(func, require_arity(func, (1, 2, 3), operation, _SHAPE), by_name=False)

    @property
    def promise(self) -> DeliveryGuarantee:
        """Return the guarantee: at least once, because the function has to skip known batch ids."""
        knows = self.by_name or self.arguments > 2
        remedy = (
            "and batch id: exactly once if it skips batch ids that it has already written"
            if knows
            else "and time; if it also takes the batch id, it can recognize a batch it has written"
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
    """Return whether ``func(*count values, batchId=...)`` binds a parameter of that name."""
    try:
        signature = inspect.signature(func)
        bound = signature.bind(*[None] * count, **{_NAME: None})
    except (TypeError, ValueError):
        return False
    return _NAME in bound.arguments and _NAME in signature.parameters

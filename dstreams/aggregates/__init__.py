"""Aggregates of blocks by key: what is computed of columns, and what is kept of it on the way.

>>> from dstreams.aggregates import Count, Mean, Sum
>>> totals = sales.aggregateByKey("shop", total=Sum("cents"), mean=Mean("cents"), sales=Count())

One set of aggregates serves three operations of a :class:`~dstreams.block_dstream.BlockDStream`:
``aggregateByKey`` of each batch, ``aggregateByKeyAndWindow`` and ``aggregateStateByKey``. Rows of a
key become partial columns, partial columns are merged, and results are made of merged ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dstreams.lazy_names import lazy_names

if TYPE_CHECKING:
    from dstreams.aggregates.approx_distinct import ApproxDistinct as ApproxDistinct
    from dstreams.aggregates.numbers import Count as Count
    from dstreams.aggregates.numbers import Mean as Mean
    from dstreams.aggregates.numbers import Sum as Sum
    from dstreams.aggregates.numbers import Variance as Variance
    from dstreams.aggregates.values import First as First
    from dstreams.aggregates.values import Last as Last
    from dstreams.aggregates.values import Max as Max
    from dstreams.aggregates.values import Min as Min
    from dstreams.aggregates.values import TopK as TopK

_HOMES = {
    "ApproxDistinct": "dstreams.aggregates.approx_distinct",
    "Count": "dstreams.aggregates.numbers",
    "First": "dstreams.aggregates.values",
    "Last": "dstreams.aggregates.values",
    "Max": "dstreams.aggregates.values",
    "Mean": "dstreams.aggregates.numbers",
    "Min": "dstreams.aggregates.values",
    "Sum": "dstreams.aggregates.numbers",
    "TopK": "dstreams.aggregates.values",
    "Variance": "dstreams.aggregates.numbers",
}

__all__ = list(_HOMES)

_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from dstreams.arrow.library import require  # noqa: PLC0415 - where a name is used

        for library in ("pyarrow", "numpy"):
            require(library, f"dstreams.aggregates.{name}")
    return _load(name)

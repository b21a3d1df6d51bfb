"""Aggregates of blocks by key: what is computed of columns, and what is kept of it on the way.

>>> from dstreams.arrow.aggregates import Count, Mean, Sum
>>> totals = sales.aggregateByKey("shop", total=Sum("cents"), mean=Mean("cents"), sales=Count())

One set of aggregates serves three operations of a
:class:`~dstreams.dstream.block_dstream.BlockDStream`:
``aggregateByKey`` of each batch, ``aggregateByKeyAndWindow`` and ``aggregateStateByKey``. Rows of a
key become partial columns, partial columns are merged, and results are made of merged ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dstreams.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from dstreams.arrow.aggregates.approx_distinct import ApproxDistinct as ApproxDistinct
    from dstreams.arrow.aggregates.numbers import Count as Count
    from dstreams.arrow.aggregates.numbers import Mean as Mean
    from dstreams.arrow.aggregates.numbers import Sum as Sum
    from dstreams.arrow.aggregates.numbers import Variance as Variance
    from dstreams.arrow.aggregates.values import First as First
    from dstreams.arrow.aggregates.values import Last as Last
    from dstreams.arrow.aggregates.values import Max as Max
    from dstreams.arrow.aggregates.values import Min as Min
    from dstreams.arrow.aggregates.values import TopK as TopK

_HOMES = {
    "ApproxDistinct": "dstreams.arrow.aggregates.approx_distinct",
    "Count": "dstreams.arrow.aggregates.numbers",
    "First": "dstreams.arrow.aggregates.values",
    "Last": "dstreams.arrow.aggregates.values",
    "Max": "dstreams.arrow.aggregates.values",
    "Mean": "dstreams.arrow.aggregates.numbers",
    "Min": "dstreams.arrow.aggregates.values",
    "Sum": "dstreams.arrow.aggregates.numbers",
    "TopK": "dstreams.arrow.aggregates.values",
    "Variance": "dstreams.arrow.aggregates.numbers",
}

__all__ = list(_HOMES)

_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from dstreams.arrow.library import require  # noqa: PLC0415 - where a name is used

        for library in ("pyarrow", "numpy"):
            require(library, f"dstreams.arrow.aggregates.{name}")
    return _load(name)

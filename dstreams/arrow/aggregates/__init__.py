"""Aggregates of blocks by key.

>>> from dstreams.arrow.aggregates import Count, Mean, Sum
>>> totals = sales.aggregateByKey("shop", total=Sum("cents"), mean=Mean("cents"), sales=Count())

They serve ``aggregateByKey``, ``aggregateByKeyAndWindow`` and ``aggregateStateByKey`` of a
:class:`~dstreams.dstream.block_dstream.BlockDStream`. Those that queries have as well are the same
classes (:mod:`dstreams.arrow.aggregates.functions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dstreams.common.imports import lazy_names

if TYPE_CHECKING:
    from dstreams.arrow.aggregates.block_only import ApproxDistinct as ApproxDistinct
    from dstreams.arrow.aggregates.block_only import TopK as TopK
    from dstreams.arrow.aggregates.functions import Average as Average
    from dstreams.arrow.aggregates.functions import Count as Count
    from dstreams.arrow.aggregates.functions import First as First
    from dstreams.arrow.aggregates.functions import Last as Last
    from dstreams.arrow.aggregates.functions import Max as Max
    from dstreams.arrow.aggregates.functions import Mean as Mean
    from dstreams.arrow.aggregates.functions import Min as Min
    from dstreams.arrow.aggregates.functions import StdDev as StdDev
    from dstreams.arrow.aggregates.functions import Sum as Sum
    from dstreams.arrow.aggregates.functions import Variance as Variance

_HOMES = {
    "ApproxDistinct": "dstreams.arrow.aggregates.block_only",
    "Average": "dstreams.arrow.aggregates.functions",
    "Count": "dstreams.arrow.aggregates.functions",
    "First": "dstreams.arrow.aggregates.functions",
    "Last": "dstreams.arrow.aggregates.functions",
    "Max": "dstreams.arrow.aggregates.functions",
    "Mean": "dstreams.arrow.aggregates.functions",
    "Min": "dstreams.arrow.aggregates.functions",
    "StdDev": "dstreams.arrow.aggregates.functions",
    "Sum": "dstreams.arrow.aggregates.functions",
    "TopK": "dstreams.arrow.aggregates.block_only",
    "Variance": "dstreams.arrow.aggregates.functions",
}

__all__ = list(_HOMES)

_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from dstreams.arrow.library import require  # noqa: PLC0415 - where a name is used

        for library in ("pyarrow", "numpy"):
            require(library, f"dstreams.arrow.aggregates.{name}")
    return _load(name)

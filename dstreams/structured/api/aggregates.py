"""Aggregators for ``agg``.

>>> from dstreams.structured.api.aggregates import Average, aggregate
>>> aggregate(Average(), [1, 2, 6])
3.0
"""

from dstreams.arrow.aggregates.functions import (
    AggregateFunction,
    Average,
    CollectList,
    CollectSet,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    MaxBy,
    Mean,
    Min,
    MinBy,
    PercentileApprox,
    Reduce,
    StdDev,
    Sum,
    UserAggregator,
    Variance,
    aggregate,
)

__all__ = [
    "AggregateFunction",
    "Average",
    "CollectList",
    "CollectSet",
    "Count",
    "CountDistinct",
    "First",
    "Last",
    "Max",
    "MaxBy",
    "Mean",
    "Min",
    "MinBy",
    "PercentileApprox",
    "Reduce",
    "StdDev",
    "Sum",
    "UserAggregator",
    "Variance",
    "aggregate",
]

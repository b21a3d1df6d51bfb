"""Aggregators for ``agg``, and what one has to be.

>>> from dstreams.structured.api.aggregates import Average, aggregate
>>> aggregate(Average(), [1, 2, 6])
3.0
"""

from dstreams.structured.operators.aggregate_functions import (
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
    Min,
    MinBy,
    Reduce,
    Sum,
    UserAggregator,
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
    "Min",
    "MinBy",
    "Reduce",
    "Sum",
    "UserAggregator",
    "aggregate",
]

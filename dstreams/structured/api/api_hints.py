"""Names of pyspark.sql that are not here: who looks for one is told what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NoReturn


class Instead:
    """Base of classes whose namesakes of pyspark have more methods."""

    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker is to find such names by itself

        def __getattr__(self, name: str) -> NoReturn:
            owner = type(self).__name__
            hint = type(self)._instead.get(name)
            remedy = "" if hint is None else f"; records are Python objects: {hint}"
            raise AttributeError(f"{owner} has no {name!r}{remedy}", name=name, obj=self)


def _each(hint: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, hint)


_END = "a stream has no end, so its rows go to a sink: use writeStream and session.table"
_SEVERAL_KEYS = "use flatMap(f) to repeat a record for each of its keys, then groupByKey(key)"
_ONE_BATCH = "use flatMapGroupsWithState(f, mode), or foreachBatch for groups of one batch"

OF_DATASETS = {
    **_each("use map(f)", "select", "selectExpr", "withColumn", "withColumns", "drop"),
    **_each("use map(f)", "withColumnRenamed", "toDF", "alias", "cast", "fillna", "replace"),
    **_each("use filter(f)", "where", "dropna"),
    **_each("use flatMap(f)", "mapInPandas", "mapInArrow", "mapPartitions", "explode"),
    **_each("use groupByKey(key, ...)", "groupBy", "groupby"),
    **_each(_SEVERAL_KEYS, "rollup", "cube", "groupingSets"),
    **_each("use groupByKey(key).count() or .agg(...)", "agg", "reduce"),
    **_each(_END, "count", "collect", "show", "take", "first", "head", "tail", "toPandas"),
    **_each(_END, "foreach", "foreachPartition", "toLocalIterator", "isEmpty"),
    **_each("use writeStream", "write", "writeTo"),
    **_each("use union", "unionAll", "unionByName"),
    **_each("use dropDuplicates()", "distinct", "drop_duplicates"),
    **_each("use orderBy", "sort"),
    **_each("use explain() for the plan", "schema", "columns", "dtypes", "printSchema"),
    **_each("use foreachBatch for RDDs or DataFrames of the batches", "rdd", "toJSON"),
    **_each("use foreachBatch for RDDs or DataFrames of the batches", "cache", "persist"),
}

OF_GROUPS = {
    **_each(
        "use flatMapGroupsWithState(f, mode, timeout)",
        "applyInPandasWithState",
        "transformWithState",
        "transformWithStateInPandas",
    ),
    **_each(_ONE_BATCH, "apply", "applyInPandas", "applyInArrow", "cogroup"),
    **_each(_ONE_BATCH, "mapGroups", "flatMapGroups", "flatMapSortedGroups"),
    **_each("use agg(Sum(of))", "sum"),
    **_each("use agg(Average(of))", "avg", "mean"),
    **_each("use agg(Max(of))", "max"),
    **_each("use agg(Min(of))", "min"),
    **_each("use reduceGroups(f) or agg(...)", "reduce"),
    **_each("use groupByKey(key, column) and make columns of the values in map(f)", "pivot"),
    **_each(_SEVERAL_KEYS, "rollup", "cube", "groupingSets"),
    **_each("use map(f) before groupByKey(key)", "map", "mapValues", "flatMap"),
    **_each("use filter(f) before or after the aggregation", "filter", "where", "having"),
    **_each("use count(), agg(...) or flatMapGroupsWithState(...) first", "writeStream"),
}

OF_READERS = {
    **_each("give no schema, and map(f) what load returns", "schema"),
    **_each("use text, and map(f) the lines", "csv", "xml"),
    **_each("use a memoryStream for what Spark reads", "parquet", "orc", "table", "changes"),
    **_each("give stateful operators their name= instead", "name"),
}

OF_WRITERS = {
    **_each("use foreachBatch to lay files out", "partitionBy", "clusterBy"),
    **_each("use foreachBatch with asDataFrame=True", "toTable"),
}

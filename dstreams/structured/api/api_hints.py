"""Hints for names of pyspark.sql that do not exist here: what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NoReturn


class Instead:
    """Base of classes with fewer methods than their namesakes in pyspark."""

    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker should report such names by itself

        def __getattr__(self, name: str) -> NoReturn:
            owner = type(self).__name__
            hint = type(self)._instead.get(name)
            remedy = "" if hint is None else f"; records are Python objects: {hint}"
            raise AttributeError(f"{owner} has no {name!r}{remedy}", name=name, obj=self)


def _each(hint: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, hint)


_ROWS = "of a batch dataset, use rdd"
_SEVERAL_KEYS = "use flatMap(f) to repeat a record for each of its keys, then groupByKey(key)"
_ONE_BATCH = "use flatMapGroupsWithState(f, mode), or foreachBatch for groups of one batch"

_OVER_ALL = "use groupByKey().agg(...), with aggregators such as StdDev and PercentileApprox"
_VIEW = "write to the memory sink, and read it with session.table"
_PARTITIONS = "set spark.sql.shuffle.partitions before the first start of a query"

OF_DATASETS = {
    **_each("use map(f)", "select", "selectExpr", "withColumn", "withColumns", "drop"),
    **_each("use map(f)", "withColumnRenamed", "toDF", "alias", "cast", "fillna", "replace"),
    **_each("use map(f)", "withColumnsRenamed", "withMetadata", "to", "colRegex", "metadataColumn"),
    **_each("use filter(f)", "where", "dropna", "sample", "sampleBy", "randomSplit", "na"),
    **_each("use flatMap(f)", "mapInPandas", "mapInArrow", "mapPartitions", "explode"),
    **_each("use flatMap(f)", "melt", "unpivot", "transpose"),
    **_each("use groupByKey(key, ...)", "groupBy", "groupby"),
    **_each(_SEVERAL_KEYS, "rollup", "cube", "groupingSets"),
    **_each("use groupByKey(key).count() or .agg(...)", "agg", "reduce"),
    **_each(
        "use groupByKey(key).agg(...) with an aggregator for each value of the column", "pivot"
    ),
    **_each(_OVER_ALL, "describe", "summary", "stat", "approxQuantile", "corr", "cov"),
    **_each(_OVER_ALL, "crosstab", "freqItems"),
    **_each("use join with the key lambda record: 0", "crossJoin", "lateralJoin"),
    **_each("use join with within=, a range of event times", "nearestByJoin"),
    **_each("use join with how='left_semi'", "intersect", "intersectAll", "exists"),
    **_each("use join with how='left_anti' and static data", "subtract", "exceptAll"),
    **_each("call f(dataset)", "transform"),
    **_each(_VIEW, "createTempView", "createOrReplaceTempView", "registerTempTable"),
    **_each(_VIEW, "createGlobalTempView", "createOrReplaceGlobalTempView"),
    **_each(_PARTITIONS, "repartition", "repartitionByRange", "repartitionById", "coalesce"),
    **_each("set option checkpointLocation", "checkpoint", "localCheckpoint"),
    **_each("use take(n)", "head", "tail"),
    **_each(_ROWS, "toPandas", "foreach", "foreachPartition", "toLocalIterator"),
    **_each(_ROWS, "toArrow", "pandas_api", "zipWithIndex", "zip"),
    **_each(f"use writeStream; {_ROWS}", "write", "writeTo"),
    **_each("use union", "unionAll", "unionByName"),
    **_each("use dropDuplicates()", "distinct", "drop_duplicates"),
    **_each("use orderBy", "sort"),
    **_each("use explain() for the plan", "schema", "columns", "dtypes", "printSchema"),
    **_each(f"use foreachBatch for the rows of a stream; {_ROWS}", "toJSON", "cache", "persist"),
}

OF_GROUPS = {
    **_each(
        "use flatMapGroupsWithState(f, mode, timeout)",
        "applyInPandasWithState",
    ),
    **_each("use transformWithState, whose processor gets rows", "transformWithStateInPandas"),
    **_each(_ONE_BATCH, "apply", "applyInPandas", "applyInArrow", "cogroup"),
    **_each(_ONE_BATCH, "mapGroups", "flatMapGroups", "flatMapSortedGroups"),
    **_each("use agg(Sum(of))", "sum"),
    **_each("use agg(Average(of))", "avg", "mean"),
    **_each("use agg(Max(of))", "max"),
    **_each("use agg(Min(of))", "min"),
    **_each("use reduceGroups(f) or agg(...)", "reduce"),
    **_each(
        "use groupByKey(key).agg(...) with an aggregator for each value of the column", "pivot"
    ),
    **_each(_SEVERAL_KEYS, "rollup", "cube", "groupingSets"),
    **_each("use map(f) before groupByKey(key)", "map", "mapValues", "flatMap"),
    **_each("give groupByKey all keys, at most one of them a window", "groupBy", "groupByKey"),
    **_each("use filter(f) before or after the aggregation", "filter", "where", "having"),
    **_each("use count(), agg(...) or flatMapGroupsWithState(...) first", "writeStream"),
}

OF_READERS = {
    **_each("use text, and map(f) on the lines", "xml"),
    **_each("read with Spark, and use createDataset, or a memoryStream", "orc", "table", "changes"),
    **_each("give stateful operators a name= instead", "name"),
}

OF_WRITERS = {
    **_each("use foreachBatch to choose the layout of files", "partitionBy", "clusterBy"),
    **_each("use foreachBatch with asDataFrame=True", "toTable"),
}

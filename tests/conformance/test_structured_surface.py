"""Public names of ``pyspark.sql.streaming`` are there, and are called the same way.

Ours may add to a call: keyword-only parameters after those of pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import listener, query, readwriter, state

import dstreams.structured
from dstreams.monitoring import progress
from dstreams.state.group_state import GroupState, GroupStateTimeout
from dstreams.structured import StreamSession
from dstreams.structured.api import listeners
from dstreams.structured.api.api_hints import OF_DATASETS, OF_GROUPS
from dstreams.structured.api.dataset import GroupedDataset, StreamingDataset
from dstreams.structured.api.manager import StreamingQueryManager
from dstreams.structured.api.query import StreamingQuery
from dstreams.structured.api.reader import DataStreamReader
from dstreams.structured.api.writer import DataStreamWriter
from tests.support.surface import call_differences, class_differences, public

JVM = "made from what the JVM or Spark Connect sends; nothing comes from there"
OTHER_FORMAT = "no source of that format; the error says what to write instead"
FILES = "foreachBatch lays files out; the error says so"

# Where a program could notice that a name is missing or called in another way, and why it is.
DIFFERENCES = {
    "DataStreamReader.changes": OTHER_FORMAT,
    "DataStreamReader.name": "operators are named, not sources; the error says so",
    "DataStreamReader.orc": OTHER_FORMAT,
    "DataStreamReader.table": OTHER_FORMAT,
    "DataStreamReader.xml": OTHER_FORMAT,
    "DataStreamWriter.clusterBy": FILES,
    "DataStreamWriter.foreachBatch(schema) more": "a batch may also come as a DataFrame of it",
    "DataStreamWriter.partitionBy": FILES,
    "DataStreamWriter.toTable": "foreachBatch writes tables; the error says so",
    "GroupState.NO_TIMESTAMP": "stands in a field that is not public here",
    "GroupState.json": JVM,
    "GroupState.oldTimeoutTimestamp": "goes over the wire between JVM and Python; not documented",
    "GroupState.setTimeoutTimestamp(additionalDuration) more": "an interval, as in Scala",
    "QueryIdleEvent.fromJObject": JVM,
    "QueryIdleEvent.fromJson": JVM,
    "QueryProgressEvent.fromJObject": JVM,
    "QueryProgressEvent.fromJson": JVM,
    "QueryStartedEvent.fromJObject": JVM,
    "QueryStartedEvent.fromJson": JVM,
    "QueryTerminatedEvent.fromJObject": JVM,
    "QueryTerminatedEvent.fromJson": JVM,
    "SinkProgress.fromJObject": JVM,
    "SinkProgress.fromJson": JVM,
    "SourceProgress.fromJObject": JVM,
    "SourceProgress.fromJson": JVM,
    "StateOperatorProgress.fromJObject": JVM,
    "StateOperatorProgress.fromJson": JVM,
    "StreamingQueryListener.spark": "a SparkSession, which nothing here needs",
    "StreamingQueryProgress.fromJObject": JVM,
    "StreamingQueryProgress.fromJson": JVM,
}

BY_KEYWORD = tuple(f"DataStreamReader.{name}" for name in ("csv", "json", "parquet", "text"))
"""Methods whose many options are given by keyword; those there are not are refused by name."""

CLASSES: dict[str, tuple[type, type]] = {
    "DataStreamReader": (readwriter.DataStreamReader, DataStreamReader),
    "DataStreamWriter": (readwriter.DataStreamWriter, DataStreamWriter),
    "StreamingQuery": (query.StreamingQuery, StreamingQuery),
    "StreamingQueryManager": (query.StreamingQueryManager, StreamingQueryManager),
    "StreamingQueryListener": (
        listener.StreamingQueryListener,
        listeners.StreamingQueryListener,
    ),
    "QueryStartedEvent": (listener.QueryStartedEvent, listeners.QueryStartedEvent),
    "QueryProgressEvent": (listener.QueryProgressEvent, listeners.QueryProgressEvent),
    "QueryIdleEvent": (listener.QueryIdleEvent, listeners.QueryIdleEvent),
    "QueryTerminatedEvent": (listener.QueryTerminatedEvent, listeners.QueryTerminatedEvent),
    "StreamingQueryProgress": (
        listener.StreamingQueryProgress,
        progress.StreamingQueryProgress,
    ),
    "StateOperatorProgress": (listener.StateOperatorProgress, progress.StateOperatorProgress),
    "SourceProgress": (listener.SourceProgress, progress.SourceProgress),
    "SinkProgress": (listener.SinkProgress, progress.SinkProgress),
    "GroupState": (state.GroupState, GroupState),
}


def differences_of(name: str) -> Iterator[str]:
    """Yield what differs in a class; what is a field of ours may be a property of theirs."""
    theirs, ours = CLASSES[name]
    known = {field.name for field in fields(ours)} if is_dataclass(ours) else set()
    for found in class_differences(name, theirs, ours, is_made_by_programs=False):
        if found.removeprefix(f"{name}.") not in known and not found.startswith(BY_KEYWORD):
            yield found


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name: str) -> None:
    """What differs is in the table."""
    theirs, _ = CLASSES[name]
    assert set(differences_of(name)) <= set(DIFFERENCES)
    assert len(public(dir(theirs))) >= 3, "the names were looked for in the wrong place"


@pytest.mark.parametrize(
    "name",
    [
        "StatefulProcessor",
        "StatefulProcessorHandle",
        "ValueState",
        "ListState",
        "MapState",
        "TimerValues",
        "ExpiredTimerInfo",
    ],
)
def test_classes_of_processors(name: str) -> None:
    """What a processor defines and calls has the names and parameters of pyspark."""
    theirs = pytest.importorskip("pyspark.sql.streaming.stateful_processor", reason="PySpark 4")
    found = getattr(theirs, name), getattr(dstreams.structured, name)
    assert list(class_differences(name, *found, is_made_by_programs=False)) == []
    assert public(dir(found[0])), "the names were looked for in the wrong place"


def test_transform_with_state() -> None:
    """It is called as in pyspark; the columns of its output may be omitted."""
    if not hasattr(GroupedData, "transformWithState"):
        pytest.skip("not the newest PySpark")
    theirs, ours = GroupedData.transformWithState, GroupedDataset.transformWithState
    assert list(call_differences("f", theirs, ours)) == []


@pytest.mark.skipif(
    not hasattr(readwriter.DataStreamReader, "changes"), reason="not the newest PySpark"
)
def test_differences() -> None:
    """What is in the table still differs."""
    assert {found for name in CLASSES for found in differences_of(name)} == set(DIFFERENCES)


@pytest.mark.parametrize("name", BY_KEYWORD)
def test_paths_come_first(name: str) -> None:
    """A path is given by place or by name."""
    owner, method = name.split(".")
    theirs, ours = (getattr(one, method) for one in CLASSES[owner])
    first = f"{name}(path)"
    assert first not in set(call_differences(name, theirs, ours))


def test_timeouts_are_their_names() -> None:
    """Strings of pyspark's GroupStateTimeout are ours."""
    for name in public(dir(state.GroupStateTimeout)):
        assert getattr(state.GroupStateTimeout, name) == GroupStateTimeout[name]


INSTEAD = [
    ("dataset", "select", r"use map\(f\)"),
    ("dataset", "groupBy", r"use groupByKey\(key, ...\)"),
    ("dataset", "toPandas", "of a batch dataset, use rdd"),
    ("reader", "orc", "read with Spark, and use createDataset, or a memoryStream"),
    ("writer", "partitionBy", "use foreachBatch to choose the layout of files"),
    ("dataset", "nothing", "StreamingDataset has no 'nothing'$"),
    ("dataset", "rollup", r"use flatMap\(f\) to repeat a record for each of its keys"),
    ("groups", "transformWithStateInPandas", "use transformWithState, whose processor gets rows"),
    (
        "groups",
        "pivot",
        r"GroupedDataset has no 'pivot'; .* use groupByKey\(key\).agg\(...\) with an agg",
    ),
    ("groups", "rollup", r"use flatMap\(f\) to repeat a record for each of its keys"),
    ("groups", "cube", r"use flatMap\(f\) to repeat a record for each of its keys"),
    ("groups", "groupBy", "give groupByKey all keys"),
    ("dataset", "pivot", r"use groupByKey\(key\).agg\(...\) with an agg"),
    ("groups", "writeStream", r"use count\(\), agg\(...\) or"),
    ("groups", "nothing", "GroupedDataset has no 'nothing'$"),
]


@pytest.mark.parametrize(("owner", "name", "message"), INSTEAD)
def test_what_to_write_instead(sc: SparkContext, owner: str, name: str, message: str) -> None:
    """A name of pyspark that is not here is no attribute, and the error says what to write."""
    session = StreamSession(sc)
    dataset = session.memoryStream().toDS()
    owners = {
        "dataset": dataset,
        "groups": dataset.groupByKey("key"),
        "reader": session.readStream,
        "writer": dataset.writeStream,
    }
    assert not hasattr(owners[owner], name)
    with pytest.raises(AttributeError, match=message):
        getattr(owners[owner], name)


INTERNAL = {
    "asTable",
    "executionInfo",
    "hint",
    "inputFiles",
    "isLocal",
    "mergeInto",
    "offset",
    "plot",
    "sameSemantics",
    "scalar",
    "semanticHash",
    "sortWithinPartitions",
    "sparkSession",
    "storageLevel",
    "unpersist",
}
"""Names of pyspark's DataFrame about tables, plans and caches, which a stream of objects lacks."""


def test_datasets() -> None:
    """Each other name of pyspark's DataFrame is there, or the error says what to write."""
    names = public(dir(DataFrame))
    assert len(names) > 100
    told = {*OF_DATASETS, *dir(StreamingDataset), *INTERNAL}
    assert set(names) - told == set()
    assert INTERNAL.isdisjoint(OF_DATASETS)


def test_groups() -> None:
    """Each name of pyspark's GroupedData is there, or the error says what to write."""
    names = public(dir(GroupedData))
    assert len(names) > 10
    assert {name for name in names if not hasattr(GroupedDataset, name)} <= set(OF_GROUPS)
    assert not {name for name in OF_GROUPS if hasattr(GroupedDataset, name)}

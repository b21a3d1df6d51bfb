"""The tables of names against the installed PySpark, dstreams, and the documentation."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel, streaming

import dstreams
from dstreams.compat import check_names as names
from dstreams.compat import kafka24
from dstreams.compat.check_names import ANSWERS, MODULES, PACKAGE, Consequence
from dstreams.compat.modules import NAMES, OLD_LEVELS
from tests.support.surface import public

ROOT = Path(__file__).parents[3]
GONE = {f"{PACKAGE}.{name}" for name in ("flume", "kafka", "mqtt")}
"""Modules that no installable Spark has."""

SAME = frozenset(
    [
        *("StreamingContext", "DStream", "StreamingListener", "KafkaUtils", "Broker"),
        *("OffsetRange", "TopicAndPartition", "KafkaMessageAndMetadata", "utf8_decoder"),
        *("KinesisUtils", "InitialPositionInStream", "MetricsLevel", "rddToFileName"),
        "KafkaRDD.offsetRanges",
        *(f"StreamingContext.{name}" for name in ("addStreamingListener", "getActive")),
        *(f"StreamingContext.{name}" for name in ("awaitTerminationOrTimeout", "remember")),
        *(f"StreamingContext.{name}" for name in ("getActiveOrCreate", "sparkContext")),
        *(f"DStream.{name}" for name in ("cache", "checkpoint", "cogroup", "combineByKey")),
        *(f"DStream.{name}" for name in ("context", "countByValue", "filter", "flatMap", "glom")),
        *(f"DStream.{name}" for name in ("groupByKey", "is_cached", "is_checkpointed", "map")),
        *(f"DStream.{name}" for name in ("mapPartitions", "mapPartitionsWithIndex")),
        *(f"DStream.{name}" for name in ("partitionBy", "pprint", "reduce", "reduceByKey")),
        *(f"DStream.{name}" for name in ("repartition", "transformWith", "union")),
        *(f"StreamingListener.{name}" for name in ("onBatchStarted", "onBatchSubmitted")),
        "StreamingListener.onStreamingStarted",
    ]
)
"""Names that behave as in Spark."""

WITHOUT_A_NAME = frozenset(
    [
        "`fileStream`, `receiverStream`, `socketStream`, `rateStream`",
        "`saveToKafka`",
        "`step()`, `getState()`",
        "`latest()`, `show()`, `stateStore()`, `explain()`",
        "`mapWithState` timeouts",
        "A clock that is set back",
        "A function of `map`, `flatMap`, `filter`, `mapValues` or `flatMapValues` that fails",
        "A `StopIteration` in a function",
        "`pprint`",
        "`spark.streaming.concurrentJobs`",
        "`spark.io.encryption.enabled`",
        "`ssc.checkpoint(directory)`",
        "`start()` of a stream that cannot run as it is defined",
        "Backpressure after a start",
        "A duration of 2.01 s",
    ]
)
"""Rows of differences that no name in a program reveals."""

KNOWN = {*ANSWERS, *SAME}


def installed_modules() -> dict[str, Any]:
    """Return the modules of the installed pyspark.streaming."""
    found = pkgutil.iter_modules(streaming.__path__, f"{PACKAGE}.")
    modules = [PACKAGE, *(one.name for one in found if not one.name.endswith(".tests"))]
    return {name: importlib.import_module(name) for name in modules}


def test_every_name_of_the_installed_spark_is_known() -> None:
    """Modules, their names, and the public members of their classes."""
    modules = installed_modules()
    assert set(modules) == set(MODULES) - GONE
    for name, module in modules.items():
        defined = {
            key
            for key, value in vars(module).items()
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == name
        }
        assert defined | set(getattr(module, "__all__", ())) <= set(MODULES[name]), name
    for name in ("StreamingContext", "DStream", "StreamingListener"):
        members = {f"{name}.{one}" for one in public(dir(getattr(streaming, name)))}
        assert members - KNOWN == set(), name


def test_every_name_of_2_4_is_known() -> None:
    """The names that dstreams run provides, and the methods of their classes."""
    for module, provided in NAMES.items():
        assert set(provided) <= set(MODULES[module])
        for name, value in provided.items():
            assert name in KNOWN
            if name.endswith("Utils"):
                assert {f"{name}.{one}" for one in public(dir(value))} <= KNOWN
    for listed in MODULES.values():
        assert set(listed) <= KNOWN


def found_here(name: str) -> bool:
    """Return whether dstreams has a name, in the module that replaces Spark's."""
    owner, _, attribute = name.partition(".")
    homes = [module for module, listed in MODULES.items() if owner in listed]
    if owner == "utf8_decoder":
        homes = [home for home in homes if home in NAMES]
    for home in homes:
        try:
            module = importlib.import_module(home.replace(PACKAGE, "dstreams", 1))
        except ModuleNotFoundError:
            return False
        value = getattr(module, owner, None)
        if value is None:
            return False
        if name == "KafkaRDD.offsetRanges":
            value = kafka24.KafkaRDD24
        if attribute and not hasattr(value, attribute):
            return False
    return True


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_there(name: str) -> None:
    """Names listed as running exist; names listed as missing do not."""
    answer = ANSWERS.get(name)
    is_missing = name == "StreamingListener.Java" or (answer and answer.kind == "change")
    assert found_here(name) is not bool(is_missing)


def test_old_storage_levels() -> None:
    """The levels that are reported are those that dstreams run provides."""
    assert set(OLD_LEVELS) == names.OLD_LEVELS
    for name, level in OLD_LEVELS.items():
        assert level is getattr(StorageLevel, name.replace("_SER", ""))


def answers() -> list[Consequence]:
    """Return every answer of the tables."""
    others = [value for value in vars(names).values() if isinstance(value, Consequence)]
    return [*ANSWERS.values(), *others]


def test_answers_are_sentences_with_a_fix() -> None:
    """Answers of changes and settings have a fix."""
    for answer in answers():
        assert answer.what.endswith(".")
        assert answer.fix == "" or answer.fix.endswith(".")
        assert answer.fix or answer.kind == "differs"


def rows_of_differences() -> list[str]:
    """Return the first cells of the table of differences."""
    text = (ROOT / "docs/pages/reference/differences.md").read_text(encoding="utf-8")
    cells = [
        line[2:].partition(" | ")[0]
        for part in re.split(r"(?m)^#+ ", text)
        for line in part.splitlines()
        if line.startswith("| ") and "State in a batch where the parent has no RDD" in part
    ]
    return [cell for cell in cells if cell.strip("-:| ") not in ("", "`pyspark.streaming`")]


def test_every_difference_is_reported() -> None:
    """Each row has an answer or is revealed by no name, and each answer has its row."""
    known = {row for answer in answers() for row in answer.rows} | WITHOUT_A_NAME
    rows = rows_of_differences()
    assert rows
    assert [row for row in rows if not any(row.startswith(one) for one in known)] == []
    assert [one for one in known if not any(row.startswith(one) for row in rows)] == []


def test_names_of_dstreams_are_not_reported() -> None:
    """Members that dstreams adds are attributes of its classes, which the walk looks up."""
    assert hasattr(dstreams.DStream, "mapWithState")
    assert hasattr(dstreams.StreamingContext, "step")

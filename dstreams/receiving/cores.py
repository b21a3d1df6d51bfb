"""The cores that receivers take away from the batches."""

from __future__ import annotations

import re
import threading
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from dstreams.errors import InvalidStreamError

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")

_lock = threading.Lock()
_taken: WeakKeyDictionary[SparkContext, int] = WeakKeyDictionary()


def take_core(spark: SparkContext, name: str) -> None:
    """Count a receiver that is to run on an executor.

    Raises:
        InvalidStreamError: the master is local, and no thread would be left for batches.
    """
    slots = task_slots(spark)
    with _lock:
        taken = _taken.get(spark, 0) + 1
        if slots is not None and taken >= slots:
            others = "" if taken == 1 else f" and {taken - 1} other receivers run there already"
            raise InvalidStreamError(
                f"{name} takes one core for as long as the stream runs, but master "
                f"{spark.master} runs {slots} {'task' if slots == 1 else 'tasks'} at a time"
                f"{others}, so no batch could ever run; use local[{taken + 1}] or more, or "
                "runOn='driver'"
            )
        _taken[spark] = taken


def give_core(spark: SparkContext) -> None:
    """Count a receiver no longer."""
    with _lock:
        _taken[spark] = max(0, _taken.get(spark, 0) - 1)


def task_slots(spark: SparkContext) -> int | None:
    """How many tasks a local master runs at a time; None for a cluster, which may grow."""
    cores = _local_cores(spark)
    return None if cores is None else cores // int(spark.getConf().get("spark.task.cpus") or "1")


def is_local(spark: SparkContext) -> bool:
    """Whether tasks run in the driver's own JVM."""
    return bool(_LOCAL.fullmatch(spark.master or ""))


def is_on_this_machine(spark: SparkContext) -> bool:
    """Whether the executors are on the driver's machine."""
    return is_local(spark) or bool(_LOCAL_CLUSTER.fullmatch(spark.master or ""))


def _local_cores(spark: SparkContext) -> int | None:
    if match := _LOCAL.fullmatch(spark.master or ""):
        if match[1] != "*":
            return int(match[1] or 1)
        jvm: Any = spark._jvm
        return int(jvm.java.lang.Runtime.getRuntime().availableProcessors())
    if match := _LOCAL_CLUSTER.fullmatch(spark.master or ""):
        return int(match[1]) * int(match[2])
    return None

"""What receivers take away from the batches."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark import SparkConf, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.receiving.cores import (
    give_core,
    is_local,
    is_on_this_machine,
    take_core,
    task_slots,
)


class Master:
    """A SparkContext of which only the master is known."""

    def __init__(self, master: str, **conf: str) -> None:
        self.master = master
        self._conf = SparkConf(loadDefaults=False)
        for key, value in conf.items():
            self._conf.set(key.replace("_", "."), value)

    def getConf(self) -> SparkConf:
        return self._conf


def spark_of(master: str, **conf: str) -> SparkContext:
    return cast(SparkContext, Master(master, **conf))


@pytest.mark.parametrize(
    ("master", "slots", "local", "here"),
    [
        ("local", 1, True, True),
        ("local[1]", 1, True, True),
        ("local[4]", 4, True, True),
        ("local[2,4]", 2, True, True),
        ("local[2, 4]", 2, True, True),
        ("local-cluster[2,3,1024]", 6, False, True),
        ("spark://host:7077", None, False, False),
        ("yarn", None, False, False),
        ("k8s://https://host:443", None, False, False),
    ],
)
def test_masters(master: str, slots: int | None, local: bool, here: bool) -> None:
    """How many tasks run at a time is known of local masters alone."""
    spark = spark_of(master)
    assert task_slots(spark) == slots
    assert is_local(spark) is local
    assert is_on_this_machine(spark) is here


def test_tasks_may_take_several_cores() -> None:
    """Then fewer run at a time."""
    assert task_slots(spark_of("local[4]", spark_task_cpus="2")) == 2


def test_all_cores_of_the_machine(sc: SparkContext) -> None:
    """The JVM says how many there are."""

    class Starred(Master):
        _jvm: Any = sc._jvm

    slots = task_slots(cast(SparkContext, Starred("local[*,4]")))
    assert slots is not None
    assert slots >= 1


def test_one_thread_is_too_few() -> None:
    """The message says which master would do."""
    with pytest.raises(
        InvalidStreamError, match=r"master local\[1\] runs 1 task at a time"
    ) as told:
        take_core(spark_of("local[1]"), "receiverStream(Numbers)")
    assert "use local[2] or more, or runOn='driver'" in str(told.value)
    assert "receiverStream(Numbers) takes one core" in str(told.value)


def test_each_receiver_takes_one() -> None:
    """Two receivers need three threads; one that has ended needs none."""
    spark = spark_of("local[2]")
    take_core(spark, "first")
    with pytest.raises(InvalidStreamError, match=r"1 other receivers run there .* local\[3\]"):
        take_core(spark, "second")
    give_core(spark)
    take_core(spark, "second")


def test_a_cluster_may_grow() -> None:
    """So nothing is refused there."""
    spark = spark_of("spark://host:7077")
    for _ in range(100):
        take_core(spark, "another")

"""Calls to the JVM."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark import jvm
from dstreams.spark.jvm import passing_over_missing_files, set_checkpoint_directory
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs

_KEY = "spark.files.ignoreMissingFiles"


def test_each_thread_makes_its_rdds_of_files_under_its_own_rule(sc: SparkContext) -> None:
    """Queries that pass over missing files and ones that do not run side by side."""
    jvm_context: Any = sc._jsc.sc()
    conf = jvm_context.conf()

    def seen(is_wanted: bool) -> set[str]:
        found = set()
        for _ in range(50):
            with passing_over_missing_files(sc, is_wanted=is_wanted):
                found.add(conf.get(_KEY))
        return found

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(seen, [True, False, True, False])) == [
            {"true"},
            {"false"},
            {"true"},
            {"false"},
        ]
    assert not conf.contains(_KEY)


@pytest.fixture
def hadoop_conf(sc: SparkContext) -> Iterator[Any]:
    """The configuration of Hadoop, without the connector of the test afterwards."""
    conf: Any = sc._jsc.hadoopConfiguration()
    before = conf.get("fs.s3a.impl")
    yield conf
    conf.unset("fs.s3a.impl")
    if before is not None:
        conf.set("fs.s3a.impl", before)


@pytest.mark.parametrize("url", ["memory://a", "s3://bucket/a", "s3a://bucket/a"])
def test_a_scheme_without_file_system_of_spark_is_skipped(
    sc: SparkContext, no_checkpoint_directory: None, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams do not need one; the log says what RDD.checkpoint lacks, and so does that itself."""
    caplog.set_level("INFO", "dstreams.spark.jvm")
    set_checkpoint_directory(sc, url)
    assert sc.getCheckpointDir() is None
    scheme = url.partition(":")[0]
    assert f"RDD.checkpoint needs: Spark has no file system for {scheme}: " in caplog.text
    with pytest.raises(Exception, match="Checkpoint directory has not been set"):
        sc.parallelize([1]).checkpoint()


def test_a_file_system_of_spark_that_fails_is_named_with_its_reason(
    sc: SparkContext, hadoop_conf: Any, no_checkpoint_directory: None
) -> None:
    """The error has the first line of the JVM, and what to do."""
    hadoop_conf.set("fs.s3a.impl", "org.apache.hadoop.fs.HarFileSystem")
    with pytest.raises(EnvironmentNotReadyError) as raised:
        set_checkpoint_directory(sc, "s3a://bucket/a")
    assert str(raised.value).startswith(
        "Spark's file system for s3a: java.io.IOException: URI: s3a://bucket/a/"
    )
    assert str(raised.value).endswith("only RDD.checkpoint needs it")
    assert "\n" not in str(raised.value)


@pytest.mark.deep
def test_workers_see_the_environment_as_it_is(
    sc: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached JVM objects are not reused for a changed environment."""
    jvm.keep_classes(sc._jvm)
    for value in ("1", "2", "1"):
        monkeypatch.setitem(sc.environment, "DSTREAMS_OF_A_TEST", value)
        seen = sc.parallelize([0], 1).map(lambda _: os.environ["DSTREAMS_OF_A_TEST"])
        assert seen.collect() == [value]


def test_workers_have_the_broadcast_variables_of_their_function(sc: SparkContext) -> None:
    """A function that has one is not taken for one without."""
    jvm.keep_classes(sc._jvm)
    one, two = sc.broadcast([1]), sc.broadcast([2])
    numbers = sc.parallelize([10], 1)
    assert numbers.map(lambda x: x).collect() == [10]
    assert numbers.map(lambda x: x + one.value[0]).collect() == [11]
    assert numbers.map(lambda x: x + two.value[0]).collect() == [12]


def test_an_rdd_of_frames_is_one_like_others(sc: SparkContext) -> None:
    """Values that it does not request from the JVM in advance are available on request."""
    blocks = shuffle_pairs(sc.parallelize([("a", 1), ("b", 2)], 2), StablePartitioner(3))
    pairs = BlockPairsRDD(blocks)
    assert (blocks.getNumPartitions(), pairs.getNumPartitions()) == (3, 3)
    assert blocks.id() == blocks.id() != pairs.id()
    pairs.persist()
    assert blocks.is_cached
    assert blocks.getStorageLevel().useMemory
    assert (pairs.count(), sorted(pairs.collect())) == (2, [("a", 1), ("b", 2)])
    pairs.unpersist()
    assert not blocks.is_cached


def test_many_partitions_share_tasks(sc: SparkContext) -> None:
    """With a local master a task computes several partitions, each under its own number, once."""
    partitions, calls = 40, sc.accumulator(0)

    def numbered(split: int, _: Iterable[Any]) -> Iterator[bytes]:
        calls.add(1)
        yield bytes([split])

    frames = jvm.collect_frames(
        PipelinedRDD(sc.parallelize(range(partitions), partitions), numbered)
    )
    assert sorted(frames) == [bytes([split]) for split in range(partitions)]
    assert calls.value == partitions
    tasks = jvm.in_few_tasks(jvm.as_frames(sc.parallelize([b"x"] * 80, partitions), None))
    assert tasks.getNumPartitions() == jvm._classes_of(sc).most_tasks < partitions
    few = jvm.as_frames(sc.parallelize([b"x"], 2), None)
    assert jvm.in_few_tasks(few) is few


def test_labelled_frames_of_many_partitions(sc: SparkContext) -> None:
    """The frames with a label come from all partitions, also if partitions share tasks."""

    def labelled(split: int, _: Iterable[Any]) -> Iterator[bytes]:
        yield from jvm.addressed(1, bytes([split]) * 300)
        yield from jvm.addressed(0, b"other")

    frames = jvm.LabelledFrames(PipelinedRDD(sc.parallelize(range(40), 40), labelled))
    assert sorted(frames.collect(1)) == [bytes([split]) * 300 for split in range(40)]


def test_a_time_limit_of_tasks_is_for_one_partition() -> None:
    """With a time limit, each partition has a task of its own."""
    limited = SimpleNamespace(_conf={jvm.TASK_TIMEOUT: "10s"}, master="local[2]")
    assert jvm._most_tasks(limited) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("master", "most"),
    [
        ("local", 4),
        ("local[3]", 12),
        ("local[3,4]", 12),
        ("local[*]", 4 * (os.cpu_count() or 1)),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
    ],
)
def test_partitions_share_tasks_on_one_host_only(master: str, most: int | None) -> None:
    """The number of tasks depends on the cores of a local master."""
    like = SimpleNamespace(_conf={}, master=master)
    assert jvm._most_tasks(like) == most  # type: ignore[arg-type]

"""A program's own saves of RDDs: inside a batch they write again what is there, as in Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from dstreams import StreamingContext
from dstreams.spark import jvm
from dstreams.testing import ManualClock

OLD = "org.apache.hadoop.mapred"
NEW = "org.apache.hadoop.mapreduce.lib.output"
TEXT, NUMBER = "org.apache.hadoop.io.Text", "org.apache.hadoop.io.IntWritable"
CHECK = "spark.hadoop.validateOutputSpecs"

SAVES: dict[str, Callable[[RDD[Any], str], None]] = {
    "saveAsTextFile": lambda rdd, path: rdd.saveAsTextFile(path),
    "saveAsPickleFile": lambda rdd, path: rdd.saveAsPickleFile(path),
    "saveAsSequenceFile": lambda rdd, path: rdd.saveAsSequenceFile(path),
    "saveAsHadoopFile": lambda rdd, path: rdd.saveAsHadoopFile(path, f"{OLD}.TextOutputFormat"),
    "saveAsNewAPIHadoopFile": lambda rdd, path: rdd.saveAsNewAPIHadoopFile(
        path, f"{NEW}.TextOutputFormat", TEXT, NUMBER
    ),
}


def step(sc: SparkContext, output: Callable[[RDD[Any]], None]) -> None:
    """Run a batch with one pair."""
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.queueStream([[("new", 1)]]).foreachRDD(output)
    try:
        ssc.step()
    finally:
        ssc.stop(stopSparkContext=False)


def refused(save: Callable[[], None]) -> bool:
    """Save into an existing directory; return whether that is refused."""
    try:
        save()
    except Py4JJavaError as error:
        return "FileAlreadyExistsException" in str(error)
    return False


@pytest.mark.deep
def test_every_save_of_a_batch_writes_again(sc: SparkContext, tmp_path: Path) -> None:
    """In an output and in a transform; before and after the batch the check is unchanged."""
    pairs = sc.parallelize([("old", 1)], 1)
    for name, save in SAVES.items():
        save(pairs, str(tmp_path / name))
    pairs.saveAsTextFile(str(tmp_path / "transform"))

    def inside(rdd: RDD[Any]) -> RDD[Any]:
        rdd.saveAsTextFile(str(tmp_path / "transform"))
        return rdd

    def output(rdd: RDD[Any]) -> None:
        for name, save in SAVES.items():
            save(rdd.coalesce(1), str(tmp_path / name))

    assert refused(lambda: pairs.saveAsTextFile(str(tmp_path / "transform")))
    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.queueStream([[("new", 1)]]).transform(inside).foreachRDD(output)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert refused(lambda: pairs.saveAsTextFile(str(tmp_path / "transform")))
    for name in ("saveAsHadoopFile", "saveAsNewAPIHadoopFile"):
        assert sc.textFile(str(tmp_path / name)).collect() == ["new\t1"]
    for name in ("saveAsTextFile", "transform"):
        assert "('new', 1)" in sc.textFile(str(tmp_path / name)).collect()
    assert sc.pickleFile(str(tmp_path / "saveAsPickleFile")).collect() == [("new", 1)]
    assert sc.sequenceFile(str(tmp_path / "saveAsSequenceFile")).collect() == [("new", 1)]


def test_other_threads_are_refused(sc: SparkContext, tmp_path: Path) -> None:
    """Files written outside of the batch do not belong to the batch, as in Spark."""
    path = str(tmp_path / "there")
    sc.parallelize([1]).saveAsTextFile(path)
    found: list[bool] = []

    def output(rdd: RDD[Any]) -> None:
        other = Thread(target=lambda: found.append(refused(lambda: rdd.saveAsTextFile(path))))
        other.start()
        other.join()
        found.append(refused(lambda: rdd.saveAsTextFile(path)))

    step(sc, output)
    assert found == [True, False]


def test_the_check_comes_back_after_a_failure(sc: SparkContext, tmp_path: Path) -> None:
    """The setting is restored however the batch ends."""
    path = str(tmp_path / "there")
    sc.parallelize([1]).saveAsTextFile(path)

    def output(rdd: RDD[Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step(sc, output)
    assert refused(lambda: sc.parallelize([1]).saveAsTextFile(path))


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_setting_of_the_program_wins(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Spark's own setting, which decides whether saves check the directory."""
    monkeypatch.setattr(jvm, "_classes", WeakKeyDictionary())
    path = str(tmp_path / "there")
    sc.parallelize([1]).saveAsTextFile(path)
    found: list[bool] = []
    conf: Any = sc._jsc.sc().conf()
    conf.set(CHECK, value)
    try:
        step(sc, lambda rdd: found.append(refused(lambda: rdd.saveAsTextFile(path))))
    finally:
        conf.remove(CHECK)
    assert found == [value == "true"]

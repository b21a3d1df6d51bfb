"""The graph that a restart takes up: configuration, functions, and what these refer to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkConf, SparkContext

from checkpoint import LocalFiles, read_newest_graph
from checkpoint.cli.main import main
from checkpoint.log.graph_record import KEPT_GRAPHS, all_graphs
from dstreams import DStream, InvalidStreamError, StreamingContext
from dstreams.engine.recovery.graph_snapshot import conf_of, describe_plan
from dstreams.testing import ManualClock
from tests.conformance.restarts import (
    begin,
    crash,
    in_two_lives,
    recover,
    seen,
    stream_of,
    times_of,
    total,
    values_of,
    watch,
    with_one,
)

pytestmark = pytest.mark.usefixtures("notebook")


def test_the_conf_is_recovered(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What belongs to a process is that of the new one, its master wins, and so are secrets."""
    ssc = begin(sc, tmp_path, [], watch)
    plan = ssc._graph.freeze(0, has_checkpoint_directory=True)
    before = SparkConf(loadDefaults=False).setAll(
        [
            ("spark.master", "local[7]"),
            ("spark.app.name", "then"),
            ("spark.mine", "kept"),
            ("spark.driver.host", "then"),
            ("spark.driver.port", "1"),
            ("spark.ui.port", "2"),
            ("spark.blockManager.port", "3"),
            ("spark.db.password", "hidden"),
            ("spark.hadoop.fs.azure.account.key.mine.blob.core.windows.net", "hidden"),
            ("spark.hadoop.fs.azure.sas.box.mine.blob.core.windows.net", "hidden"),
            ("spark.hadoop.fs.s3a.encryption.key", "hidden"),
            ("spark.executorEnv.CHECKPOINT_KEY", "hidden"),
            ("spark.driver.extraJavaOptions", "-Djavax.net.ssl.trustStorePassword=hidden"),
        ]
    )
    described = describe_plan(plan, before)
    assert "hidden" not in str(described)
    conf = conf_of(described, SparkConf(loadDefaults=False).set("spark.master", "local[1]"))
    assert dict(conf.getAll()) == {
        "spark.master": "local[1]",
        "spark.app.name": "then",
        "spark.mine": "kept",
    }
    assert conf_of(described, SparkConf(loadDefaults=False)).get("spark.master") == "local[7]"
    assert "spark.db.password, spark.driver.extraJavaOptions" in caplog.text
    given = SparkConf(loadDefaults=False).set("spark.db.password", "of now")
    assert conf_of(described, given).get("spark.db.password") == "of now"


@pytest.mark.deep
def test_a_stream_that_two_others_share(sc: SparkContext, tmp_path: Path) -> None:
    """Is one stream again, made once in a batch."""

    def define(words: DStream[Any]) -> None:
        sums = words.map(with_one).updateStateByKey(total).checkpoint(2)
        watch(sums.join(sums.mapValues(_negated)))

    in_two_lives(sc, tmp_path, [["a"]] * 4, define, (3, 1))
    assert values_of() == [[("a", (n, -n))] for n in range(1, 5)]
    ssc = StreamingContext.getActive() or recover(tmp_path)
    assert len(ssc._graph.outputs) == 1


def _negated(number: int) -> int:
    return -number


def test_a_graph_that_is_written_later_counts(sc: SparkContext, tmp_path: Path) -> None:
    """Also that of an earlier batch, as after a rewind; both stay, and no name is written twice.

    Spark's case, a late snapshot of an older batch, does not occur: a graph is written when a
    driver starts, before its first batch, and only if there is none of that name.
    """
    ssc = begin(sc, tmp_path, [["a"]] * 9, lambda words: watch(words.map(with_one)))
    ssc.step(3)
    crash(ssc)
    for life in (2, 1):
        ssc = recover(tmp_path)
        ssc.step(life)
        crash(ssc)
        if life == 2:
            assert main(["rewind", str(tmp_path), "--to", "1000"]) == 0
    assert times_of() == [1, 2, 3, 4, 5, 2]
    files = LocalFiles(str(stream_of(tmp_path)))
    assert [(graph.time_ms, graph.epoch) for graph in all_graphs(files)] == [
        (0, 1),
        (1000, 4),
        (3000, 2),
    ]
    newest = read_newest_graph(files)
    assert newest is not None
    assert (newest.time_ms, newest.epoch) == (1000, 4)


@pytest.mark.deep
def test_copies_of_an_initial_state_do_not_pile_up(sc: SparkContext, tmp_path: Path) -> None:
    """Each start writes one, and those of the graphs that are gone go with these."""

    def define(words: DStream[Any]) -> None:
        initial = words.context().sparkContext.parallelize([("a", 10)], 2)
        watch(words.map(with_one).updateStateByKey(total, 1, initialRDD=initial).checkpoint(1))

    in_two_lives(sc, tmp_path, [["a"]] * 9, define, (1,) * 9)
    stream = stream_of(tmp_path)
    assert len(list(stream.glob("graph/*"))) == KEPT_GRAPHS
    assert len(list(stream.glob("rdds/**/*.state"))) == 2 * KEPT_GRAPHS
    assert values_of()[-1] == [("a", 19)]


def test_a_function_that_cannot_be_pickled(sc: SparkContext, tmp_path: Path) -> None:
    """Start fails, and names the output, the variable and its type."""
    lock = threading.Lock()

    def locked(rdd: RDD[Any]) -> None:
        with lock:
            rdd.count()

    ssc = begin(sc, tmp_path, [], lambda words: words.foreachRDD(locked))
    with pytest.raises(InvalidStreamError, match=r"foreachRDD at .*uses '.*lock', of type lock"):
        ssc.start()
    assert list(tmp_path.glob("stream-*/epochs/*")) == []


def test_without_a_checkpoint_directory_nothing_is_pickled(sc: SparkContext) -> None:
    """As in Spark: who does not want a restart may capture what he likes."""
    lock = threading.Lock()

    def locked(rdd: RDD[Any]) -> None:
        with lock:
            seen.append(("locked", 0, rdd.collect()))

    ssc = StreamingContext(sc, 1, clock=ManualClock())
    ssc.queueStream([[1]]).foreachRDD(locked)
    ssc.step()
    assert seen == [("locked", 0, [1])]


def test_a_function_that_refers_to_a_stream(sc: SparkContext, tmp_path: Path) -> None:
    """Start fails with "captured in a closure"."""

    def define(words: DStream[Any]) -> None:
        words.foreachRDD(lambda rdd: words.count())

    with pytest.raises(InvalidStreamError, match="was captured in a closure"):
        begin(sc, tmp_path, [], define).start()


def test_what_a_function_may_refer_to(sc: SparkContext, tmp_path: Path) -> None:
    """Contexts are those of the new program, RDDs and broadcast variables have their values."""
    factor = sc.broadcast(3)

    def define(words: DStream[Any]) -> None:
        ssc = words.context()

        def scale(rdd: RDD[Any]) -> RDD[Any]:
            assert ssc.sparkContext is rdd.context
            return rdd.union(sc.parallelize([7])).map(lambda number: number * factor.value)

        watch(words.transform(scale))

    in_two_lives(sc, tmp_path, [[1], [2]], define, (1, 1))
    assert values_of() == [[3, 21], [6, 21]]

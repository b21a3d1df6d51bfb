"""The configuration that a restart takes from the previous run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext

from dstreams.engine.recovery.graph_snapshot import conf_of, describe_plan, given_once

DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
OF_SPARK = "-Djava.net.preferIPv6Addresses=false --add-opens=a/b=ALL-UNNAMED -Dx=true"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ""),
        ("-Dmine=1", "-Dmine=1"),
        (OF_SPARK, OF_SPARK),
        (f"{OF_SPARK} -Dmine=1", f"{OF_SPARK} -Dmine=1"),
        (f"{OF_SPARK} {OF_SPARK}", OF_SPARK),
        (f"{OF_SPARK} {OF_SPARK} -Dmine=1 -Dmine=1", f"{OF_SPARK} -Dmine=1 -Dmine=1"),
        (" ".join([OF_SPARK] * 55), OF_SPARK),
        (
            f"{OF_SPARK} -Djava.net.preferIPv6Addresses=true",
            f"{OF_SPARK} -Djava.net.preferIPv6Addresses=true",
        ),
        (
            f"{OF_SPARK} {OF_SPARK} -Dy=1 -Djava.net.preferIPv6Addresses=true",
            f"{OF_SPARK} -Dy=1 -Djava.net.preferIPv6Addresses=true",
        ),
    ],
)
def test_options_that_spark_added(options: str, expected: str) -> None:
    """Options that Spark added appear once, and a user's options stay unchanged."""
    assert given_once(options) == expected


def test_options_do_not_grow_with_restarts(sc: SparkContext) -> None:
    """Each SparkContext adds its options to those of the previous run, and a JVM has a limit."""
    mine = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    begun = sc.getConf().get(DRIVER)
    assert begun is not None
    assert begun.endswith(f" {mine}")
    added = begun[: -len(mine)]
    options = begun
    for _ in range(60):
        conf = conf_of({"conf": [[DRIVER, options], [EXECUTOR, added]]}, SparkConf(False))
        options = f"{added}{conf.get(DRIVER)}"
    assert options == f"{added}{added}{mine}"


def test_options_that_spark_added_are_described_once() -> None:
    """The description of a restarted run has them once, like that of the first run."""
    twice = f"{OF_SPARK} {OF_SPARK} -Dmine=1"
    plan: Any = SimpleNamespace(
        zero_ms=0, batch_ms=1000, inputs=[], nodes={}, outputs=[], output_uids=[]
    )
    conf = SparkConf(False).setAll([(DRIVER, twice), (EXECUTOR, twice), ("spark.x", twice)])
    described: Any = describe_plan(plan, conf)["conf"]
    assert dict(described) == {
        DRIVER: f"{OF_SPARK} -Dmine=1", EXECUTOR: f"{OF_SPARK} -Dmine=1", "spark.x": twice
    }  # fmt: skip


def test_a_new_pod_has_the_image_that_it_was_given() -> None:
    """Otherwise executors would run the old code; without a new image the old one is used."""
    image = "spark.kubernetes.executor.container.image"
    described = {"conf": [[image, "app:1"]]}
    assert conf_of(described, SparkConf(False).set(image, "app:2")).get(image) == "app:2"
    assert conf_of(described, SparkConf(False)).get(image) == "app:1"


def test_settings_that_stay_as_they_were_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A restart reports settings that it replaces; it keeps its own master and new settings."""
    given = {"spark.master": "local[3]", "spark.of.both": "b", "spark.same": "1", "spark.new": "1"}
    before = [["spark.master", "local[2]"], ["spark.of.both", "a"], ["spark.same", "1"]]
    conf = conf_of({"conf": before}, SparkConf(False).setAll(list(given.items())))
    assert dict(conf.getAll()) == {**given, "spark.of.both": "a"}
    [message] = caplog.messages
    assert "replaced by those of the previous run, from its checkpoint: spark.of.both;" in message

"""What a restart takes from the configuration of the run before."""

from __future__ import annotations

import pytest
from pyspark import SparkConf, SparkContext

from dstreams.recovery.graph_snapshot import conf_of, given_once

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
    """They come once, and those of a user stay as they are."""
    assert given_once(options) == expected


def test_options_do_not_grow_with_restarts(sc: SparkContext) -> None:
    """Each SparkContext adds its own to those of the run before, and a JVM takes a thousand."""
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

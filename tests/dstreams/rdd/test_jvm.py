"""What is said to the JVM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark import SparkContext

from dstreams.rdd.jvm import passing_over_missing_files

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

"""Options of the JVMs that tests start: each lives for a minute, and there are many.

A run on several processes starts most of them, and makes an archive of the classes that Spark loads
for them (class data sharing): half the processor time of a start is loading those. A JVM that finds
no archive, or one of other classes, starts without one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PREFIX = "dstreams-tests-"
"""Of the name of the directory that the temporary files of a run are in."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No second compiler and one collector: half the processor time until the first job has run."""

_ARCHIVE = "classes-of-spark.jsa"
_RECORDED = """
import os, sys
from pyspark import SparkConf, SparkContext
spark = SparkContext(conf=SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false"))
spark.parallelize(range(4), 2).map(lambda x: (x % 2, x)).reduceByKey(max).collect()
gateway = spark._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
if gateway.proc.wait() == 0:
    os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


def _options() -> str:
    own = Path(tempfile.gettempdir())
    if not own.name.startswith(PREFIX):
        return SHORT_LIVED
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={own / _ARCHIVE} -Xlog:cds*=off"


OF_SPARK = _options()
"""For drivers, executors, masters and workers."""

ENVIRONMENT = {"SPARK_SUBMIT_OPTS": OF_SPARK, "SPARK_LAUNCHER_OPTS": SHORT_LIVED}
"""For programs that start Spark on their own; what they set for their JVM comes after it."""


def record_classes(config: pytest.Config) -> None:
    """Let a process make the archive while tests are collected; it ends with this one."""
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        return
    archive = Path(tempfile.gettempdir(), _ARCHIVE)
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive}.new"
    process = subprocess.Popen(
        [sys.executable, "-c", _RECORDED, str(archive)],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    config.add_cleanup(end)

"""The oracle: programs run by the real pyspark.streaming, in a process of its own.

``python -m tests.conformance.oracle FD`` reads pickled lists of programs from its standard input
and writes, for each list, the pickled list of their runs to the file descriptor.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from tests.conformance.programs import Program
from tests.conformance.runs import Run, run_programs

ROOT = Path(__file__).parents[2]

_BATCH_LIMIT_S = 120


class Oracle:
    """The process; it runs programs while the caller does something else."""

    def __init__(self, directory: Path) -> None:
        results, written = os.pipe()
        self._errors = (directory / "oracle.log").open("w+")
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(written)],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[written],
        )
        os.close(written)
        self._results = os.fdopen(results, "rb")

    def ask(self, programs: Sequence[Program]) -> None:
        """Begin to run programs in one StreamingContext."""
        assert self._child.stdin is not None
        pickle.dump(list(programs), self._child.stdin)
        self._child.stdin.flush()

    def answer(self) -> list[Run]:
        """Wait for the runs of the programs asked for first."""
        try:
            runs: list[Run] = pickle.load(self._results)
        except EOFError:
            self._child.wait(60)
            self._errors.seek(0)
            raise AssertionError(f"the oracle died: {self._errors.read()[-3000:]}") from None
        return runs

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(60)
        finally:
            self._child.kill()
            self._child.wait()
            self._results.close()
            self._errors.close()


def _let_batch_pass(ssc: Any, has_passed: Callable[[], bool]) -> None:
    ssc._jssc.ssc().scheduler().clock().advance(1000)
    deadline = time.monotonic() + _BATCH_LIMIT_S
    while not has_passed():
        ssc.awaitTerminationOrTimeout(0.005)  # raises when the RDDs of a batch could not be made
        if time.monotonic() > deadline:
            raise SystemExit("pyspark.streaming did not run a batch")


def main() -> None:
    """Run the programs of the standard input until it ends."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.streaming import StreamingContext  # noqa: PLC0415 - not where the tests run

    warnings.simplefilter("ignore", FutureWarning)
    settings = {
        "spark.streaming.clock": "org.apache.spark.util.ManualClock",
        "spark.default.parallelism": "2",
        # For a life of a minute: no second compiler, one collector.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "tests.support.worker_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.task.killTimeout": "200ms",
    }
    conf = SparkConf(loadDefaults=False).setMaster("local[2]").setAppName("oracle")
    spark = SparkContext(conf=conf.setAll(list(settings.items())))
    spark.setLogLevel("ERROR")
    results: IO[bytes] = os.fdopen(int(sys.argv[1]), "wb")
    while True:
        try:
            programs = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        runs = run_programs(spark, programs, lambda: StreamingContext(spark, 1), _let_batch_pass)
        pickle.dump(runs, results)
        results.flush()
    spark.stop()


if __name__ == "__main__":
    main()

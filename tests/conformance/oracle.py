"""The oracle: programs run by the real pyspark.streaming, in a process of its own.

``python -m tests.conformance.oracle FD`` reads pickled lists of programs from its standard input
and writes, for each list, the pickled list of their runs to the file descriptor.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from tests.conformance.oracle_process import OracleProcess, oracle_context
from tests.conformance.programs import Program
from tests.conformance.runs import Run, run_programs

_BATCH_LIMIT_S = 600


class Oracle(OracleProcess):
    """The process; it runs programs while the caller does something else."""

    def __init__(self, directory: Path) -> None:
        super().__init__(__name__, directory)

    def ask(self, programs: Sequence[Program]) -> None:
        """Begin to run programs in one StreamingContext."""
        pickle.dump(list(programs), self.questions)
        self.questions.flush()

    def answer(self) -> list[Run]:
        """Wait for the runs of the programs asked for first."""
        try:
            runs: list[Run] = pickle.load(self.results)
        except EOFError:
            raise self.death() from None
        return runs


def _let_batch_pass(ssc: Any, has_passed: Callable[[], bool]) -> None:
    ssc._jssc.ssc().scheduler().clock().advance(1000)
    deadline = time.monotonic() + _BATCH_LIMIT_S
    while not has_passed():
        ssc.awaitTerminationOrTimeout(0.005)  # raises when the RDDs of a batch could not be made
        if time.monotonic() > deadline:
            raise SystemExit("pyspark.streaming did not run a batch")


def main() -> None:
    """Run the programs of the standard input until it ends."""
    from pyspark.streaming import StreamingContext  # noqa: PLC0415 - not where the tests run

    warnings.simplefilter("ignore", FutureWarning)
    settings = {
        "spark.streaming.clock": "org.apache.spark.util.ManualClock",
        "spark.default.parallelism": "2",
        "spark.python.daemon.module": "dstreams.spark.worker_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.task.killTimeout": "200ms",
    }
    spark = oracle_context("oracle", 2, settings)
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

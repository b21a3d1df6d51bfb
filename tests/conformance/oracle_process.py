"""What oracles are: processes with Spark alone, which answer as long as their input is open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.support.jvms import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark import SparkContext

ROOT = Path(__file__).parents[2]
_END_S = 180


class OracleProcess:
    """The process, by the side of its caller; its first argument is where it writes answers.

    Args:
        module: what it runs.
        directory: for its log.
        arguments: others.
    """

    def __init__(self, module: str, directory: Path, *arguments: str) -> None:
        results, written = os.pipe()
        self._errors = (directory / "oracle.log").open("w+")
        self._child = subprocess.Popen(
            [sys.executable, "-m", module, str(written), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[written],
        )
        os.close(written)
        self.results: IO[bytes] = os.fdopen(results, "rb")

    @property
    def questions(self) -> IO[bytes]:
        """Its standard input."""
        assert self._child.stdin is not None
        return self._child.stdin

    def death(self) -> AssertionError:
        """Return why it has ended without an answer."""
        self._child.wait(_END_S)
        self._errors.seek(0)
        return AssertionError(f"the oracle died: {self._errors.read()[-3000:]}")

    def close(self) -> None:
        """End it."""
        self.questions.close()
        try:
            self._child.wait(_END_S)
        finally:
            self._child.kill()
            self._child.wait()
            self.results.close()
            self._errors.close()


def oracle_context(name: str, cores: int, settings: Mapping[str, Any]) -> SparkContext:
    """Start Spark in the process of an oracle."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - not where the tests run

    own = {
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    conf = SparkConf(loadDefaults=False).setMaster(f"local[{cores}]").setAppName(name)
    spark = SparkContext(conf=conf.setAll(list({**own, **settings}.items())))
    spark.setLogLevel("ERROR")
    return spark

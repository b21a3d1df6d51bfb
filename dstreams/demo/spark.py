"""Starting Spark for the demo, with an answer for each way in which that can fail."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from dstreams import EnvironmentNotReadyError, tuned_context
from dstreams.rdd.failures import summarize


def start_spark(cores: int) -> SparkContext:
    """Start Spark on this machine.

    Args:
        cores: how many tasks it runs at a time; one that fails is tried again.

    Raises:
        EnvironmentNotReadyError: it cannot be started.
        KeyboardInterrupt: Ctrl-C was pressed meanwhile; Spark is stopped again.
    """
    try:
        return tuned_context("dstreams demo", f"local[{cores},4]")
    except (Py4JError, PySparkException) as error:
        raise EnvironmentNotReadyError(
            f"Spark could not be started on this machine: {summarize(error)}"
        ) from error

"""Starting Spark for the demo, with an answer for each way in which that can fail."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
    with _interrupt_put_off() as interrupted:
        try:
            spark = _tuned_context(cores)
        except EnvironmentNotReadyError as error:
            if interrupted.is_set():  # what failed may have been ended by it as well
                raise KeyboardInterrupt from error
            raise
    if interrupted.is_set():
        spark.stop()
        raise KeyboardInterrupt
    return spark


def _tuned_context(cores: int) -> SparkContext:
    try:
        return tuned_context("dstreams demo", f"local[{cores},4]")
    except (Py4JError, PySparkException) as error:
        raise EnvironmentNotReadyError(
            f"Spark could not be started on this machine: {summarize(error)}"
        ) from error


@contextmanager
def _interrupt_put_off() -> Iterator[threading.Event]:
    """Note Ctrl-C instead of raising it.

    Raised while PySpark waits for its JVM, it would leave a JVM behind that never ends.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def note(*_: object) -> None:
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # else PySpark has put its own there
            signal.signal(signal.SIGINT, before)

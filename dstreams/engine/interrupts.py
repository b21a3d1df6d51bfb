"""Ctrl-C in a batch that is stepped: the batch ends in order, and the step is interrupted.

Raised while the main thread waits for the JVM, a ``KeyboardInterrupt`` breaks the connection and
leaves the job running. So the jobs are cancelled instead, from another thread: the call of the JVM
returns, and the batch ends as in a stop. A function of the user's that waits for something else is
interrupted at once, and whatever it is, by a second Ctrl-C.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from types import FrameType
from typing import Any
from uuid import uuid4  # noqa: TID251

from pyspark import SparkContext

from dstreams.spark.failures import is_in_program
from dstreams.spark.job_labels import cancel_tagged, tagged_jobs

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_JOIN_S = 10.0


class Interrupt:
    """Whether Ctrl-C was pressed, and who cancels jobs then."""

    def __init__(self, spark: SparkContext, tag: str, previous: Callable[..., Any]) -> None:
        self._spark = spark
        self._tag = tag
        self._previous = previous
        self._pressed = False
        self._looks_again = False
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._canceller = threading.Thread(  # noqa: TID251
            target=self._cancel, name="dstreams-interrupt", daemon=True
        )

    def is_set(self) -> bool:
        return self._pressed

    def end(self) -> None:
        with self._lock:
            self._ended.set()
        if self._canceller.is_alive():
            self._canceller.join(_JOIN_S)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal, in the main thread."""
        looks_again, self._looks_again = self._looks_again, False
        if self._pressed and not looks_again:
            signal.signal(number, self._previous)
            raise KeyboardInterrupt
        if self._ended.is_set() and looks_again:
            return
        if not self._pressed:
            self._pressed = True
            self._canceller.start()
        if is_in_program(one for one, _ in walk_stack(frame)):
            raise KeyboardInterrupt

    def _cancel(self) -> None:
        """Cancel jobs until the batch has ended: an output may begin another one, or wait."""
        while not self._ended.is_set():
            try:
                cancel_tagged(self._spark, self._tag)
            except Exception:
                logger.debug("the running batch could not be cancelled", exc_info=True)
            if self._ended.wait(_POLL_S):
                return
            with self._lock:
                if not self._ended.is_set():
                    self._looks_again = True
                    signal.pthread_kill(self._thread, signal.SIGINT)


@contextmanager
def interruptible(spark: SparkContext) -> Iterator[Callable[[], bool]]:
    """Take Ctrl-C in the block, in the main thread, and yield what says whether it was pressed.

    Where the program handles the signal itself, that stays so.
    """
    previous = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(previous) or not _is_usual(previous):
        yield lambda: False
        return
    tag = f"dstreams-{uuid4()}"
    interrupt = Interrupt(spark, tag, previous)
    with tagged_jobs(spark, tag):
        signal.signal(signal.SIGINT, interrupt.handle)
        try:
            yield interrupt.is_set
        finally:
            interrupt.end()
            if signal.getsignal(signal.SIGINT) == interrupt.handle:
                signal.signal(signal.SIGINT, previous)


def _is_usual(handler: Callable[..., Any]) -> bool:
    """Whether it is the handler of Python, or that of PySpark."""
    return handler is signal.default_int_handler or handler.__module__.startswith("pyspark.")

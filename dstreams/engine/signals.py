"""Signals, and the exit status of a driver.

A handler runs while the main thread waits inside a call to the JVM. Raising there corrupts the
connection to the JVM, so handlers only set a flag or start a thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
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

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_S = 0.2
_JOIN_S = 10.0

ATTENTION_S = 10.0
"""Seconds that a program has to notice a failure: by awaitTermination, getState or stop."""

STATUSES = {
    0: "the program ended, and so did its streams: stopped by it, or by a signal",
    1: "the program ended with an error; or a stream failed, or stopped without processing "
    "everything it had received, and the program did not notice",
    130: "Ctrl-C while no stream was running, or for the second time",
    137: "killed by SIGKILL: by the system for lack of memory, or by a service manager after its "
    "timeout",
    143: "ended by SIGTERM while it did not wait for its streams, or for the second time; or after "
    "a stream had failed and the program did not notice",
}
"""The exit statuses of a driver, as a shell shows them, in addition to the program's own."""


def _start_thread(name: str, target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name=name, daemon=True).start()  # noqa: TID251


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class SignalStop:
    """Stops a stream on SIGTERM or SIGINT.

    The first signal calls *stop*, which returns True if the program waits for the end of the stream
    and then continues, and False if the signal must be delivered again to end it. If *stop* is
    graceful and may take long, the second signal calls *hasten* and the third one is not caught;
    without *hasten* the second one is not caught.
    """

    def __init__(self, stop: Callable[[], bool], hasten: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._hasten = hasten
        self._previous: dict[int, Any] = {}
        self._is_stopping = False
        self._has_stopped = False

    def install(self) -> None:
        """Install the handlers in the main thread; other threads cannot."""
        if _is_main_thread():
            for number in _STOP_SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restore the previous handlers, in the main thread."""
        if _is_main_thread():
            for number, handler in self._previous.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, handler or signal.SIG_DFL)
            self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        was_stopping, self._is_stopping = self._is_stopping, True
        if was_stopping or self._hasten is None:
            for other, handler in self._previous.items():
                signal.signal(other, handler or signal.SIG_DFL)
        if not was_stopping:
            _start_thread("dstreams-stop", self._stop_and_pass_on, number)
        elif self._has_stopped:
            os.kill(os.getpid(), number)  # passed on by ourselves, to the previous handlers
        elif self._hasten is not None:
            _start_thread("dstreams-stop", self._hasten)

    def _stop_and_pass_on(self, number: int) -> None:
        continues = False
        try:
            continues = self._stop()
        finally:
            self._has_stopped = True
            if not continues:
                os.kill(os.getpid(), number)


class StopSignal:
    """Notes the first SIGTERM of a process while its main thread waits for queries.

    Without it the first process of a container, which gets no signal that it does not handle, would
    be killed after a timeout. Handlers of the program or of a stream stay installed.
    """

    def __init__(self) -> None:
        self._has_come = False

    @contextmanager
    def noted(self) -> Iterator[Callable[[], bool]]:
        """Note the signal in the block; yield a function that returns whether it has come."""
        is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self._has_come or not _is_main_thread() or not is_default:
            yield lambda: False
            return
        signal.signal(signal.SIGTERM, self._note)
        try:
            yield lambda: self._has_come
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


stop_signal = StopSignal()


# Ctrl-C in a step ----------------------------------------------------------------------------


class _Interrupt:
    """Cancels the jobs of a step on Ctrl-C, until the step has ended.

    The JVM call then returns, and the batch ends in order. A function of the user's is interrupted
    at once, and so is everything else by a second Ctrl-C.
    """

    def __init__(self, spark: SparkContext, tag: str, previous: Callable[..., Any]) -> None:
        self._spark = spark
        self._tag = tag
        self._previous = previous
        self._pressed = False
        self._is_own_signal = False
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
        is_own_signal, self._is_own_signal = self._is_own_signal, False
        if self._pressed and not is_own_signal:
            signal.signal(number, self._previous)
            raise KeyboardInterrupt
        if self._ended.is_set() and is_own_signal:
            return
        if not self._pressed:
            self._pressed = True
            self._canceller.start()
        if is_in_program(one for one, _ in walk_stack(frame)):
            raise KeyboardInterrupt

    def _cancel(self) -> None:
        """Cancel jobs again and again: an output may start another one, or wait."""
        while not self._ended.is_set():
            try:
                cancel_tagged(self._spark, self._tag)
            except Exception:
                logger.debug("failed to cancel the running batch", exc_info=True)
            if self._ended.wait(_POLL_S):
                return
            with self._lock:
                if not self._ended.is_set():
                    self._is_own_signal = True
                    signal.pthread_kill(self._thread, signal.SIGINT)


@contextmanager
def interruptible(spark: SparkContext) -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C in the block, and yield a function that returns whether it was pressed.

    Only in the main thread, and not if the program has a handler of its own.
    """
    previous = signal.getsignal(signal.SIGINT)
    if not _is_main_thread() or not callable(previous) or not _is_usual(previous):
        yield lambda: False
        return
    tag = f"dstreams-{uuid4()}"
    interrupt = _Interrupt(spark, tag, previous)
    with tagged_jobs(spark, tag):
        signal.signal(signal.SIGINT, interrupt.handle)
        try:
            yield interrupt.is_set
        finally:
            interrupt.end()
            if signal.getsignal(signal.SIGINT) == interrupt.handle:
                signal.signal(signal.SIGINT, previous)


def _is_usual(handler: Callable[..., Any]) -> bool:
    """Return whether a handler is that of Python or PySpark."""
    return handler is signal.default_int_handler or handler.__module__.startswith("pyspark.")


# Failures that the program does not notice ---------------------------------------------------


_unseen: set[FailureWatchdog] = set()


class FailureWatchdog:
    """Ends the process if a stream has failed for good and the program does not notice.

    Otherwise a program that does not call ``awaitTermination`` would look alive, or exit with
    status 0.
    """

    def __init__(self, attention_s: float = ATTENTION_S) -> None:
        self._attention_s = attention_s
        self._is_seen = threading.Event()

    def stream_failed(self) -> None:
        """Wait, on a thread, for the program to notice; not in an interactive session."""
        if self._is_seen.is_set() or _is_interactive():
            return
        _unseen.add(self)
        _start_thread("dstreams-unseen", self._wait)

    def lost_at_exit(self) -> None:
        """Let the exit status show that the process ends without processing everything."""
        if not _is_interactive():
            _unseen.add(self)

    def seen(self) -> None:
        """Leave the process to the program, which has noticed."""
        self._is_seen.set()
        _unseen.discard(self)

    def _wait(self) -> None:
        if not self._is_seen.wait(self._attention_s) and self in _unseen:
            logger.critical(
                "the stream failed and the program did not notice for %g s; ending the process by "
                "SIGTERM. Let the program call awaitTermination()",
                self._attention_s,
            )
            os.kill(os.getpid(), signal.SIGTERM)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _is_kernel()


def _is_kernel() -> bool:
    """Return whether this process is the kernel of a notebook, not only one that starts kernels."""
    kernels = sys.modules.get("ipykernel.kernelapp")
    return kernels is not None and bool(kernels.IPKernelApp.initialized())


@atexit.register  # registered before other callbacks, so it runs after them
def _exit_with_failure() -> None:
    """End the process with status 1 if the program has not noticed a failure."""
    if _unseen:
        logger.critical(
            "the stream failed, or stopped without processing everything it had received, and the "
            "program did not notice: exit status 1"
        )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(1)

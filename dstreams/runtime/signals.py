"""SIGTERM and SIGINT: the first one stops the stream cleanly, the second one is not caught.

A handler runs while the main thread waits inside a call to the JVM, and raising there corrupts the
connection, so ours only starts a thread that stops the stream.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalStop:
    """Calls *stop* when the process is asked to end.

    Args:
        stop: stops the stream; returns True when the program waits for its end and will go on by
            itself, False when the signal has to be delivered again to end it.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Install the handlers, if this is the main thread: no other may."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Put back the handlers that were there before, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._previous.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, handler or signal.SIG_DFL)
            self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        for other, handler in self._previous.items():
            signal.signal(other, handler or signal.SIG_DFL)
        threading.Thread(
            target=self._stop_and_pass_on, args=(number,), name="dstreams-stop", daemon=True
        ).start()

    def _stop_and_pass_on(self, number: int) -> None:
        goes_on = False
        try:
            goes_on = self._stop()
        finally:
            if not goes_on:
                os.kill(os.getpid(), number)

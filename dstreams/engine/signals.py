"""SIGTERM and SIGINT: the first one stops the stream cleanly, the last one is not caught.

Where the first one asks for a graceful stop, which may take long, a second one makes it a stop at
once, and the third one is not caught. Where the first one stops at once, the second one is not.

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
        hasten: called for a second signal, to end what *stop* does soon. None: a second signal is
            not caught.
    """

    def __init__(self, stop: Callable[[], bool], hasten: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._hasten = hasten
        self._previous: dict[int, Any] = {}
        self._is_stopping = False
        self._has_stopped = False

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
        was_stopping, self._is_stopping = self._is_stopping, True
        if was_stopping or self._hasten is None:
            for other, handler in self._previous.items():
                signal.signal(other, handler or signal.SIG_DFL)
        if not was_stopping:
            self._run(self._stop_and_pass_on, number)
        elif self._has_stopped:
            os.kill(os.getpid(), number)  # passed on by ourselves, to the handlers of before
        elif self._hasten is not None:
            self._run(self._hasten)

    def _run(self, target: Callable[..., None], *arguments: int) -> None:
        threading.Thread(target=target, args=arguments, name="dstreams-stop", daemon=True).start()  # noqa: TID251

    def _stop_and_pass_on(self, number: int) -> None:
        goes_on = False
        try:
            goes_on = self._stop()
        finally:
            self._has_stopped = True
            if not goes_on:
                os.kill(os.getpid(), number)

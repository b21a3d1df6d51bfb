"""SIGTERM while a program waits for its queries: they are stopped, and the program goes on.

The first process of a container gets no signal that it does not handle: without this it would be
killed when the time to stop is over. A handler of the program's, or of a stream, stays as it is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Notes the first SIGTERM of a process while its main thread waits; no other is caught."""

    def __init__(self) -> None:
        self._has_come = False

    @contextmanager
    def noted(self) -> Iterator[Callable[[], bool]]:
        """Note the signal meanwhile; give what says whether it has come."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._has_come or not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
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

"""The janitor deletes what nobody needs any more beside the batches, which never wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

CleanUp = Callable[[], None]


class Janitor:
    """Runs clean-ups: each where it is posted, until a thread is asked for.

    A clean-up does what all before it would have done, so of those that wait only the newest is
    kept. One that fails is logged; the next one makes up for it. The thread lives as long as there
    is something to do.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._has_thread = False
        self._is_closed = False
        self._waiting: tuple[str, CleanUp] | None = None
        self._thread: threading.Thread | None = None  # noqa: TID251

    def use_thread(self) -> None:
        """Run what is posted from now on beside who posts it."""
        self._has_thread = True

    def post(self, after: str, clean_up: CleanUp) -> None:
        """Run a clean-up, now or soon; never raises. It comes *after* a batch, for messages."""
        if not self._has_thread:
            _run(after, clean_up)
            return
        with self._changed:
            if self._is_closed:
                return
            self._waiting = (after, clean_up)
            if self._thread is None:
                self._thread = threading.Thread(  # noqa: TID251
                    target=self._work, name="dstreams-janitor", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Run what waits to its end, and nothing after that."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._thread = None
                    return
            _run(*waiting)


def _run(after: str, clean_up: CleanUp) -> None:
    try:
        clean_up()
    except Exception:
        logger.warning("cleaning up after %s failed", after, exc_info=True)

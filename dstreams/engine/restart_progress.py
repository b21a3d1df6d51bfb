"""The progress of a restart: the steps of resuming, then the batches to catch up with."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable

from checkpoint.cli import (
    Progress,
    ProgressBar,
    ProgressLines,
    StageProgress,
    is_terminal,
)
from dstreams.common.clock import Clock
from dstreams.monitoring.events import BatchCompleted, Event

logger = logging.getLogger(__name__)


class RestartProgress:
    """Shows a restart until the stream has caught up: in the log, or on the terminal.

    *says* receives each step as text, and an empty text at the end.
    """

    def __init__(
        self,
        stream_id: str,
        clock: Clock,
        *,
        on_terminal: bool,
        says: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream_id = stream_id
        self._until_ms: int | None = None
        self._says = says
        if on_terminal and is_terminal(sys.stderr):
            self._shown: ProgressBar | ProgressLines = ProgressBar(sys.stderr)
        else:
            self._shown = ProgressLines(
                lambda stage: logger.info("stream %s restarts: %s", stream_id, str(stage)),
                now_s=lambda: clock.now_ms() / 1000,
            )
        self.progress: Progress = _Told(self._shown, says)
        self.progress.begin("restarting")
        atexit.register(self.close)

    def catch_up(self, batches: int, until_ms: int) -> None:
        """Show the progress of *batches* up to a batch time."""
        if batches == 0:
            self.close()
            return
        self._until_ms = until_ms
        self.progress.begin("batches to catch up", batches)

    def observe(self, event: Event) -> None:
        """Count a batch that has run."""
        if self._until_ms is None or not isinstance(event, BatchCompleted):
            return
        self.progress.advance()
        if event.batch.batch_time_ms >= self._until_ms:
            done = self._shown.done
            logger.info("stream %s has caught up, in %d batches", self._stream_id, done)
            self.close()

    def close(self) -> None:
        """Stop showing progress; calling it again is harmless."""
        self._until_ms = None
        self.progress.close()
        self._says("")
        atexit.unregister(self.close)


class _Told(Progress):
    """Shows the progress, and passes each step on as text."""

    def __init__(self, shown: StageProgress, says: Callable[[str], None]) -> None:
        self._shown = shown
        self._says = says

    def begin(self, stage: str, total: int | None = None) -> None:
        self._shown.begin(stage, total)
        self._says(str(self._shown))

    def advance(self, count: int = 1) -> None:
        self._shown.advance(count)
        self._says(str(self._shown))

    def close(self) -> None:
        self._shown.close()

"""A stream that failed for good must not leave a process that looks alive, nor one that ends well.

A batch that failed is reported, and the stream goes on. But when one of the scheduler's threads
fails, or Spark is gone, nothing runs any more. A program that waits for its streams is told by
``awaitTermination``; one that does something else would never know.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading

logger = logging.getLogger(__name__)

ATTENTION_S = 10.0
"""How long a program has to notice by itself: by awaitTermination, getState or stop."""

STATUSES = {
    0: "the program came to its end, and so did its streams: stopped by it, or by a signal",
    1: "an error came to the end of the program; or a stream failed, or left out what it had "
    "received, and the program did not notice",
    130: "Ctrl-C while no stream was running, or for the second time",
    137: "killed by SIGKILL: by the system for want of memory, or by a service manager whose time "
    "was up",
    143: "ended by SIGTERM while it did not wait for its streams, or for the second time; or after "
    "a stream had failed and nobody noticed",
}
"""The exit statuses of a driver, as a shell shows them, beside those that the program gives."""

_FAILED = 1

_unseen: set[FailureWatchdog] = set()


class FailureWatchdog:
    """Ends the process when a stream has failed for good and nobody notices.

    Args:
        attention_s: seconds to wait for somebody who notices.
    """

    def __init__(self, attention_s: float = ATTENTION_S) -> None:
        self._attention_s = attention_s
        self._is_seen = threading.Event()

    def happened(self) -> None:
        """The stream has failed: wait for somebody to notice, on a thread of our own.

        Nobody is expected to in an interactive session, where the log has told it.
        """
        if self._is_seen.is_set() or _is_interactive():
            return
        _unseen.add(self)
        threading.Thread(target=self._wait, name="dstreams-unseen", daemon=True).start()  # noqa: TID251

    def told_to_nobody(self) -> None:
        """The process ends already, and something was lost: let its exit status say so."""
        if not _is_interactive():
            _unseen.add(self)

    def seen(self) -> None:
        """Somebody has noticed: the process is theirs."""
        self._is_seen.set()
        _unseen.discard(self)

    def _wait(self) -> None:
        if not self._is_seen.wait(self._attention_s) and self in _unseen:
            logger.critical(
                "the stream has failed and nobody noticed for %g s; the process is asked to end by "
                "SIGTERM. Let the program call awaitTermination()",
                self._attention_s,
            )
            os.kill(os.getpid(), signal.SIGTERM)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _is_kernel()


def _is_kernel() -> bool:
    """Say whether this process is the kernel of a notebook; one that only runs kernels is none."""
    kernels = sys.modules.get("ipykernel.kernelapp")
    return kernels is not None and bool(kernels.IPKernelApp.initialized())


@atexit.register  # before others are, so it runs after them
def _end_in_failure() -> None:
    """Let a program that went to its end without noticing have an exit status that says so."""
    if _unseen:
        logger.critical(
            "the stream has failed, or left out what it had received, and the program did not "
            "notice: exit status 1"
        )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(_FAILED)

"""What a Python worker does once before it works for a stream."""

from __future__ import annotations

import gc

_settled = False
_THRESHOLDS = (50_000, 20, 50)


def settle_worker() -> None:
    """Freeze what is loaded by now, once a process, so that the garbage collector passes over it.

    Spark's worker runs a full collection after each task, which takes about as long as a small task
    over all loaded modules. Collections within a task come less often than Python's default, too.
    """
    global _settled  # noqa: PLW0603 - a fact about the process
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

"""Garbage collector settings of Python workers."""

from __future__ import annotations

import gc

_settled = False
_THRESHOLDS = (50_000, 20, 50)


def settle_worker() -> None:
    """Freeze all loaded objects, once per process, so that the garbage collector skips them.

    Spark's worker runs a full collection after each task, which for all loaded modules takes about
    as long as a small task. Collections within a task are less frequent than by default, too.
    """
    global _settled  # noqa: PLW0603 - a fact about the process
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

"""What a Python worker does once before it works for a stream."""

from __future__ import annotations

import gc

_settled = False
_THRESHOLDS = (50_000, 20, 50)


def settle_worker() -> None:
    """Take everything that is loaded by now out of the garbage collector's sight, once a process.

    Spark's worker runs a full collection after each task. Over the modules that a worker has loaded
    that takes about as long as a small task itself; frozen, they are not looked at again. Objects
    are still freed when their last reference goes. For the same reason collections within a task
    come less often than Python's default, which counts every few hundred new lists.
    """
    global _settled  # noqa: PLW0603 - a fact about the process
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

"""The daemon of Python workers, with what all need loaded and frozen before it forks them.

A worker of PySpark's own daemon imports its modules after the fork, each worker for itself;
collects garbage in all of them after each task; and looks before each task at what is in PySpark's
archives, though the installed package is what it imports. Of a small task that is most of the time.
Garbage of tasks is collected as ever, and files that a program adds are found as ever.

Spark starts it by ``spark.python.daemon.module``, with PySpark's module of the worker as argument.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_ARCHIVES = (".zip", ".jar")

_PRELOADED = ("dstreams.context", "dstreams.structured")


def main() -> None:
    """Load what workers share, and wait for tasks."""
    _forget_archives()
    # Imported only now: they may not come from an archive that is forgotten.
    import pyspark.worker  # noqa: F401, PLC0415
    from pyspark import daemon  # noqa: PLC0415

    for module in _PRELOADED:
        import_module(module)

    daemon.worker = quiet_without_spark(daemon.worker)
    gc.collect()
    gc.freeze()
    daemon.manager()


def quiet_without_spark(worker: Callable[..., int]) -> Callable[..., int]:
    """Let a worker end without a word when Spark has gone: it stops in the middle of tasks."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


def _forget_archives() -> None:
    """Import from no archive that an installed PySpark has of itself."""
    installed = PathFinder.find_spec(
        "pyspark", [entry for entry in sys.path if not entry.endswith(_ARCHIVES)]
    )
    if installed is None or installed.origin is None:
        return
    home = Path(installed.origin).resolve().parent
    for entry in list(sys.path):
        if entry.endswith(_ARCHIVES) and home in Path(entry).resolve().parents:
            sys.path.remove(entry)
            for known in list(sys.path_importer_cache):
                if known == entry or known.startswith(entry + os.sep):
                    del sys.path_importer_cache[known]


if __name__ == "__main__":
    main()

"""A daemon of Python workers that imports and freezes shared modules before it forks workers.

Each worker of PySpark's own daemon imports its modules after the fork, collects garbage in all of
them after each task, and searches PySpark's archives before each task, although it imports the
installed package. For a small task, this is most of the time. Garbage of tasks is still collected,
and files that a program adds are still found.

Spark starts it by ``spark.python.daemon.module``, with the module of PySpark's worker as argument.
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
    """Load shared modules, and wait for tasks."""
    _forget_archives()
    # Not imported before, because they must not come from one of these archives.
    import pyspark.worker  # noqa: F401, PLC0415
    from pyspark import daemon  # noqa: PLC0415

    for module in _PRELOADED:
        import_module(module)

    daemon.worker = quiet_without_spark(daemon.worker)
    gc.collect()
    gc.freeze()
    daemon.manager()


def quiet_without_spark(worker: Callable[..., int]) -> Callable[..., int]:
    """Let a worker exit without a traceback if Spark stops during a task."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


def _forget_archives() -> None:
    """Remove archives of PySpark from the import path if PySpark is installed."""
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

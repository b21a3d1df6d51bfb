"""PySpark's daemon, with what its workers share loaded and frozen before it forks them.

A worker of PySpark's own daemon loads its modules after the fork, and after each task collects
garbage in all of them: of tests, whose tasks are small and whose workers often end with a failed
one, that was half the processor time. Before each task it reads the directories of all archives
that it imports from, which was half of the rest. Garbage of tasks is collected as ever.
"""

from __future__ import annotations

import gc
import sys
from zipimport import zipimporter

_ARCHIVES = (".zip", ".jar")

# PySpark is installed beside the tests; of its archive each package has a directory to be read.
sys.path.sort(key=lambda entry: entry.endswith(_ARCHIVES))

import pyspark.worker  # noqa: E402, F401 - the workers find it loaded
from pyspark.daemon import manager  # noqa: E402

import dstreams.streaming_context  # noqa: E402, F401 - and what their functions are defined in

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(_ARCHIVES)]
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()
    manager()

"""Stores that a restart moves state into, where it is to be in other partitions than before.

They count when a commit record names them. If the driver is killed before that, a later one deletes
them.
"""

from __future__ import annotations

import re

from checkpoint import CommitLog, Files
from checkpoint.state_store import STORE_PREFIX

_FILE = re.compile(rf"{re.escape(STORE_PREFIX)}[^/]+/epoch-(?P<epoch>\d+)-\d+/")


def moved_store(epoch: int, time_ms: int) -> str:
    """Return the name of the store that a driver moves the version of a batch into.

    Each version has a store of its own: two contents in one would be two versions 1 of it.
    """
    return f"epoch-{epoch}-{time_ms}"


def delete_abandoned(files: Files, epoch: int) -> int:
    """Delete the stores of moved state that an earlier driver left, and return how many files.

    No record names them, not even a void one, which a rewind may make count again. What the driver
    of this *epoch* has moved stays.

    Raises:
        CheckpointError: something could not be read or deleted; a later call deletes the rest.
    """
    old: dict[str, list[str]] = {}
    for name in files.list(STORE_PREFIX):
        match = _FILE.match(name)
        if match is not None and int(match["epoch"]) < epoch:
            old.setdefault(match[0], []).append(name)
    if not old:
        return 0
    log = CommitLog(files)
    for record_id in log.all_ids():
        for name in log.read_record(record_id).file_names():
            match = _FILE.match(name)
            if match is not None:
                old.pop(match[0], None)
    names = [name for group in old.values() for name in group]
    for name in names:
        files.delete(name)
    return len(names)

"""Which queries run in this process, whatever their sessions: one on a checkpoint, one of an id.

Epochs keep two processes apart that run on one checkpoint: the newer one goes on. In one process
that is a mistake of the program, so the second query is refused before it touches anything.
"""

from __future__ import annotations

import os
import threading

from dstreams.errors import StreamLifecycleError
from dstreams.sources.file_listing import local_path

_lock = threading.Lock()
_active: list[ActiveCheckpoint] = []


class ActiveCheckpoint:
    """A checkpoint in the hands of a query that starts or runs."""

    def __init__(self, location: str | None, who: str) -> None:
        self.who = who
        self.location = location
        self._key = None if location is None else _key_of(location)
        self._query_id: str | None = None

    def claim_id(self, query_id: str) -> None:
        """Take the identity that the checkpoint gives to the query.

        Raises:
            StreamLifecycleError: a query of that id runs, on a copy of the checkpoint.
        """
        with _lock:
            for other in _active:
                if other is not self and other._query_id == query_id:
                    raise StreamLifecycleError(
                        f"{other.who} runs on {other.location} already, of which "
                        f"{self.location} is a copy: both are query {query_id}; stop it first, or "
                        "begin a new checkpoint"
                    )
            self._query_id = query_id

    def release(self) -> None:
        """Let other queries have the checkpoint; idempotent."""
        with _lock:
            if self in _active:
                _active.remove(self)

    def conflicts(self, other: ActiveCheckpoint) -> bool:
        return self._key is not None and self._key == other._key


def claim_checkpoint(location: str | None, who: str) -> ActiveCheckpoint:
    """Take a checkpoint for a query until it has ended.

    Raises:
        StreamLifecycleError: another query starts or runs there.
    """
    claimed = ActiveCheckpoint(location, who)
    with _lock:
        for other in _active:
            if claimed.conflicts(other):
                raise StreamLifecycleError(
                    f"{other.who} runs on {location} already; stop it first, or give another "
                    "checkpointLocation"
                )
        _active.append(claimed)
    return claimed


def _key_of(location: str) -> str:
    path = local_path(location)
    if path is None and "://" in location:
        return location.rstrip("/")
    return os.path.realpath(location if path is None else path)

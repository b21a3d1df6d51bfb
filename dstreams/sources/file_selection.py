"""Which files of a listing a batch reads: decided from names and modification times alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import NamedTuple


class Selection(NamedTuple):
    """The decision for one batch: paths to read, oldest first, and reason by path ignored."""

    taken: tuple[str, ...]
    ignored: dict[str, str]


class FileSelection:
    """Takes each new file into one batch.

    ::

        not new        ( t - remember window ............ t ]        future
        ignored        taken, unless taken before                    a later batch decides

    The lower bound is never below *new_since_ms*, which is what makes only new files count. A file
    that is written again after the remember window is a new file, as in Spark.

    Args:
        new_since_ms: files modified at this time or before are not new.
        remember_ms: the remember window.

    Semantics: Spark's FileInputDStream, which does not say what it ignores.
    """

    def __init__(self, new_since_ms: int, remember_ms: int) -> None:
        self._new_since_ms = new_since_ms
        self._remember_ms = remember_ms
        self._taken: dict[str, int] = {}
        self._ignored: set[str] = set()

    def select(self, modified_ms: Mapping[str, int], batch_time_ms: int) -> Selection:
        """Decide about the files of a listing; a file is named as ignored once.

        Args:
            modified_ms: modification time by path.
            batch_time_ms: not before that of the last call.
        """
        oldest_ms = batch_time_ms - self._remember_ms
        after_ms = max(self._new_since_ms, oldest_ms)
        self._forget(modified_ms, oldest_ms)
        taken: list[str] = []
        ignored: dict[str, str] = {}
        for path, time_ms in sorted(modified_ms.items(), key=lambda item: (item[1], item[0])):
            if time_ms > batch_time_ms or self._taken.get(path, oldest_ms - 1) >= oldest_ms:
                continue
            if time_ms > after_ms and ":" not in path.rpartition("/")[2]:
                taken.append(path)
            elif path not in self._taken and path not in self._ignored:
                ignored[path] = _reason(time_ms, after_ms)
        self._taken.update(dict.fromkeys(taken, batch_time_ms))
        self._ignored.update(ignored)
        return Selection(tuple(taken), ignored)

    def _forget(self, listed: Mapping[str, int], oldest_ms: int) -> None:
        """Drop what no decision needs: files that are gone, and were not taken lately."""
        self._ignored.intersection_update(listed)
        self._taken = {
            path: time_ms
            for path, time_ms in self._taken.items()
            if time_ms >= oldest_ms or path in listed
        }


def _reason(time_ms: int, after_ms: int) -> str:
    if time_ms <= after_ms:
        return f"modified at {_utc(time_ms)}, which is not after {_utc(after_ms)}"
    return "a colon in the name, which Hadoop's file systems cannot open"


def _utc(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds")

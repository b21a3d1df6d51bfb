"""The selection of files for a batch, by names, times and earlier batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from checkpoint import INPUT_END, INPUT_FILES, InputPast
from dstreams.sources.file_listing import FileStamp, stamps_in

SETTLED = "settled_ms"
"""Fact of a batch with files: all files that appeared until this time were read."""

_NEW_SINCE, _BEFORE = "new_since_ms", "there_before"

Listing = Mapping[str, FileStamp]
"""Files by path."""


@dataclass(frozen=True)
class FileRules:
    """Rules for the files that a stream reads.

    Args:
        batch_ms: batch duration.
        window_ms: time for which a vanished file is remembered, and the maximum age of a new file
            if *max_age_ms* is None.
        max_age_ms: maximum age of a file when it is first listed, by its modification time. None
            for Spark's rule, by which a batch also ignores files with a later modification time.
        max_files: maximum number of files in a batch, None if unlimited.
        accepts: filter of paths; called once for each file.
        refuses: returns the reason why a selected file cannot be read, None if it can.
    """

    batch_ms: int
    window_ms: int
    max_age_ms: int | None = None
    max_files: int | None = None
    accepts: Callable[[str], bool] | None = None
    refuses: Callable[[FileStamp], str | None] | None = None


class Selection(NamedTuple):
    """The decision for one batch.

    Args:
        files: files of the batch, oldest first.
        settled_ms: all files that appeared until this time were read; earlier than the batch time
            if files wait.
        waiting: files for later batches, because this one has reached its limit.
        ignored: reasons by path of files that will not be read; each is reported once.
        unfinished: the same for names that mark files which are still being written.
        changed: files that changed after they were read; each is reported once.
        refused: reasons by path of selected files that cannot be read.
    """

    files: tuple[FileStamp, ...]
    settled_ms: int
    waiting: tuple[FileStamp, ...] = ()
    ignored: Mapping[str, str] = {}
    unfinished: Mapping[str, str] = {}
    changed: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}


class FileSelection:
    """Selects each file for exactly one batch, also across restarts.

    By default, as in Spark, the modification time decides when a file is first listed::

        not new        ( t - window ..................... t ]        future
        ignored        read, unless read before                      a later batch decides

    The lower bound is at least *new_since_ms*. After a gap in the listings, such as a restart, the
    window begins before the gap. With a maximum age, a file is read if it was not listed at the
    start and is not older.

    The age of a file is measured by the clock. If batch times are ahead of the clock, because it
    was set back, the lower bounds are earlier by the same amount. So is *new_since_ms*, once this
    run has listed the files that existed before.

    Files that were read are remembered while they are listed, and for one more window.

    Args:
        rules: rules for files.
        new_since_ms: files modified until this time are not new.
        settled_ms: all files that appeared until this time were read or do not count.
        there_before: files that existed at the start and do not count.
    """

    def __init__(
        self,
        rules: FileRules,
        new_since_ms: int,
        settled_ms: int,
        there_before: tuple[FileStamp, ...] = (),
    ) -> None:
        self._rules = rules
        self._new_since_ms = new_since_ms
        self._there_before = there_before
        self._settled = {0: settled_ms}  # by the offsets of batches with files
        self._seen_upto_ms: int | None = None
        self._taken: dict[str, tuple[FileStamp, int]] = {}  # with the offset of the batch
        self._ignored: dict[str, FileStamp | None] = {stamp.path: stamp for stamp in there_before}
        self._changed: set[str] = set()
        self._waiting: set[str] = set()
        self._gone_ms: dict[str, int] = {}
        self._has_decided = False

    @classmethod
    def resumed(cls, rules: FileRules, past: InputPast) -> FileSelection:
        """Return the selection of an earlier run, from its snapshot and later batches."""
        facts = past.facts or {}
        before = stamps_in(facts, _BEFORE)
        selection = cls(rules, facts[_NEW_SINCE], facts[SETTLED], before)
        selection._remember(stamps_in(facts), facts[SETTLED], 0)
        for time_ms, said in sorted(past.batches.items()):
            if time_ms > past.upto_ms and INPUT_FILES in said:
                selection._remember(stamps_in(said), said[SETTLED], int(said[INPUT_END]))
        selection._seen_upto_ms = selection._settled[max(selection._settled)]
        return selection

    def select(self, listing: Listing, batch_time_ms: int, ahead_ms: int = 0) -> Selection:
        """Select files of a listing; :meth:`take` marks them as read.

        Args:
            listing: the files that exist.
            batch_time_ms: the batch time, not before that of the last call.
            ahead_ms: its distance ahead of the clock, in whole batch durations.
        """
        self.expect(batch_time_ms)
        self._forget(listing, batch_time_ms)
        candidates: list[FileStamp] = []
        ignored: dict[str, str] = {}
        unfinished: dict[str, str] = {}
        refused: dict[str, str] = {}
        changed: list[str] = []
        after_ms = self._after_ms(batch_time_ms, ahead_ms)
        upto_ms = batch_time_ms if self._rules.max_age_ms is None else None
        for path, stamp in listing.items():
            if path in self._taken:
                if self._taken[path][0] != stamp and path not in self._changed:
                    changed.append(path)
            elif path in self._waiting:
                candidates.append(stamp)
            elif self._ignored.get(path, _UNKNOWN) in (stamp, None):
                continue
            elif (reason := _unfinished(path)) is not None:
                unfinished[path] = reason
                self._ignored[path] = None
            elif upto_ms is not None and stamp.modified_ms > upto_ms:
                continue
            elif (reason := self._unwanted(stamp, after_ms)) is not None:
                self._ignored[path] = stamp
                if reason:
                    ignored[path] = reason
            elif (reason := self._refusal(stamp)) is not None:
                self._ignored[path] = stamp
                refused[path] = reason
            else:
                candidates.append(stamp)
        candidates.sort(key=lambda stamp: (stamp.modified_ms, stamp.path))
        limit = len(candidates) if self._rules.max_files is None else self._rules.max_files
        first, rest = candidates[:limit], candidates[limit:]
        settled_ms = min([batch_time_ms, *(stamp.modified_ms - 1 for stamp in rest[:1])])
        self._changed.update(changed)
        return Selection(
            tuple(first), settled_ms, tuple(rest), ignored, unfinished, tuple(changed), refused
        )

    def expect(self, batch_time_ms: int) -> None:
        """Note that a batch is due: files that appear after the previous batch are not too old."""
        if self._seen_upto_ms is None:
            self._seen_upto_ms = batch_time_ms - self._rules.batch_ms

    def take(self, selection: Selection, batch_time_ms: int, end: int | None) -> None:
        """Mark the files of a selection as read by the batch that ends at an offset."""
        if selection.files:
            self._remember(selection.files, selection.settled_ms, int(end or 0))
        self._waiting = {stamp.path for stamp in selection.waiting}
        self._seen_upto_ms = batch_time_ms
        self._has_decided = True

    @property
    def is_waiting(self) -> bool:
        """Whether files wait because batches have reached their limit."""
        return bool(self._waiting)

    def has_new(self, listing: Listing) -> bool:
        """Return whether a listing has files without a decision."""
        return any(
            path not in self._taken
            and self._ignored.get(path, _UNKNOWN) not in (stamp, None)
            and _unfinished(path) is None
            for path, stamp in listing.items()
        )

    def snapshot(self, end: int | None) -> dict[str, object]:
        """Return the remembered files up to an offset, as JSON."""
        upto = int(end or 0)
        before = (stamp for stamp in self._there_before if self._ignored.get(stamp.path) == stamp)
        return {
            _NEW_SINCE: self._new_since_ms,
            SETTLED: self._settled[max(number for number in self._settled if number <= upto)],
            _BEFORE: tuple(before),
            INPUT_FILES: tuple(stamp for stamp, number in self._taken.values() if number <= upto),
        }

    def retire(self, end: int | None) -> None:
        """Forget the batches up to an offset except for the newest of them."""
        known = sorted(number for number in self._settled if number <= int(end or 0))
        for number in known[:-1]:
            del self._settled[number]

    @property
    def taken_count(self) -> int:
        """Number of files that are remembered as read."""
        return len(self._taken)

    def _remember(self, files: Iterable[FileStamp], settled_ms: int, end: int) -> None:
        self._taken.update({stamp.path: (stamp, end) for stamp in files})
        self._settled[end] = settled_ms

    def _forget(self, listing: Listing, time_ms: int) -> None:
        """Forget files that are not listed any more; those that were read, after a window."""
        self._waiting.intersection_update(listing)
        for path in self._ignored.keys() - listing.keys():
            del self._ignored[path]
        missing = self._taken.keys() - listing.keys()
        self._gone_ms = {path: self._gone_ms.get(path, time_ms) for path in missing}
        for path, since_ms in list(self._gone_ms.items()):
            if time_ms - since_ms >= self._rules.window_ms:
                del self._gone_ms[path], self._taken[path]
                self._changed.discard(path)

    def _after_ms(self, time_ms: int, ahead_ms: int) -> int:
        """Return the time until which modified files are too old or not new."""
        rules = self._rules
        age_ms = rules.window_ms if rules.max_age_ms is None else rules.max_age_ms
        whole_ms = -(-age_ms // rules.batch_ms) * rules.batch_ms
        seen_ms = time_ms if self._seen_upto_ms is None else self._seen_upto_ms
        oldest_ms = min(time_ms, seen_ms + rules.batch_ms) - whole_ms - ahead_ms
        if rules.max_age_ms is not None:
            return oldest_ms
        return max(self._new_since_ms - (ahead_ms if self._has_decided else 0), oldest_ms)

    def _unwanted(self, stamp: FileStamp, after_ms: int) -> str | None:
        """Return the reason to ignore a file, ``""`` for the filter; None if it counts."""
        if stamp.modified_ms <= after_ms:
            return self._age(stamp.modified_ms, after_ms)
        if self._rules.accepts is not None and not self._rules.accepts(stamp.path):
            return ""
        name = stamp.path.rpartition("/")[2]
        if ":" in name:
            return "a colon in the name, which Hadoop's file systems cannot open"
        if not name.isascii() and _is_undecodable(name):
            return "a name that is not UTF-8, which cannot be passed to Spark"
        return None

    def _refusal(self, stamp: FileStamp) -> str | None:
        return None if self._rules.refuses is None else self._rules.refuses(stamp)

    def _age(self, modified_ms: int, after_ms: int) -> str:
        reason = f"modified at {_utc(modified_ms)}, which is not after {_utc(after_ms)}"
        is_old = self._rules.max_age_ms is not None or after_ms > self._new_since_ms
        if is_old:
            return f"{reason}: too old; to read it, raise maxFileAge"
        return f"{reason}: not new; to read it, set newFilesOnly=False"


_UNKNOWN = FileStamp("", 0, -1)


def _unfinished(path: str) -> str | None:
    """Return the reason why a name marks a file as unfinished or not data, None otherwise."""
    name = path.rpartition("/")[2]
    if name.startswith((".", "_")):
        return f"name begins with {name[0]}"
    ending = next((ending for ending in ("._COPYING_", ".tmp") if name.endswith(ending)), None)
    return None if ending is None else f"name ends in {ending}"


def _is_undecodable(name: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in name)


def _utc(time_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec="milliseconds")

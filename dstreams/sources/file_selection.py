"""Which files of a listing a batch reads: decided from names, times and what was taken before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from checkpoint import INPUT_END, INPUT_FILES, InputPast
from dstreams.sources.file_listing import FileStamp, stamps_in

SETTLED = "settled_ms"
"""Fact of a batch with files: what has appeared up to then was taken."""

_NEW_SINCE, _BEFORE = "new_since_ms", "there_before"

Listing = Mapping[str, FileStamp]
"""Files by path."""


@dataclass(frozen=True)
class FileRules:
    """What makes a file count.

    Args:
        batch_ms: batch duration.
        window_ms: how long a file that has vanished is remembered, and how old a new file may be
            where *max_age_ms* does not say.
        max_age_ms: how old a file may be when it is first seen, by its modification time. None:
            Spark's rule, for which a file is also not there before its modification time.
        max_files: files in a batch at most, None for no limit.
        accepts: says of a path whether its file is wanted; asked once.
        refuses: says why a file that would be taken cannot be read, None when it can.
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
        files: what it reads, in that order, oldest first.
        settled_ms: what has appeared up to then was taken, now or before; older than the batch
            where files have to wait.
        waiting: files that later batches will take, because this one has as many as it may.
        ignored: reason by path, for files that will not be taken; each is named once.
        unfinished: the same for names that other programs write under, until they have finished.
        changed: files that were taken and have been changed since; each is named once.
        refused: reason by path, for files that would have been taken and cannot be read.
    """

    files: tuple[FileStamp, ...]
    settled_ms: int
    waiting: tuple[FileStamp, ...] = ()
    ignored: Mapping[str, str] = {}
    unfinished: Mapping[str, str] = {}
    changed: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}


class FileSelection:
    """Takes each file into one batch, also over restarts.

    By default, as in Spark, a file counts by its modification time when it is first seen::

        not new        ( t - window ..................... t ]        future
        ignored        taken, unless taken before                    a later batch decides

    The lower bound is never below the time since which files are new, and where listings were
    missing, as after a restart, the window begins before the gap. With a maximum age, a file counts
    if it was not there at the start and is not older than that, whatever else its time says.

    Files are as old as the clock says. Where batch times are ahead of it, because it was set back,
    the lower bounds are earlier by as much; so is the time since which files are new, once a
    listing of this run has shown which ones were there before.

    What was taken is remembered as long as it is listed, and then for a window more.

    Args:
        rules: what makes a file count.
        new_since_ms: files modified up to then are not new.
        settled_ms: what has appeared up to then was taken, or does not count.
        there_before: files that were there at the start and do not count.
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
        """Go on from what an earlier run has written down, of which there is a snapshot."""
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
        """Decide about the files of a listing; nothing is taken until :meth:`take`.

        Args:
            listing: the files that are there.
            batch_time_ms: not before that of the last call.
            ahead_ms: how far that is ahead of the clock, in whole batch durations.
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
        """Say that a batch is due: what comes after the one before it is not too old any more."""
        if self._seen_upto_ms is None:
            self._seen_upto_ms = batch_time_ms - self._rules.batch_ms

    def take(self, selection: Selection, batch_time_ms: int, end: int | None) -> None:
        """Make a decision count, before the next one.

        Args:
            selection: the decision.
            batch_time_ms: the batch that it is for.
            end: offset of that batch.
        """
        if selection.files:
            self._remember(selection.files, selection.settled_ms, int(end or 0))
        self._waiting = {stamp.path for stamp in selection.waiting}
        self._seen_upto_ms = batch_time_ms
        self._has_decided = True

    @property
    def is_waiting(self) -> bool:
        """Whether files wait because batches had as many as they may."""
        return bool(self._waiting)

    def has_new(self, listing: Listing) -> bool:
        """Whether a listing has files that nothing was decided about."""
        return any(
            path not in self._taken
            and self._ignored.get(path, _UNKNOWN) not in (stamp, None)
            and _unfinished(path) is None
            for path, stamp in listing.items()
        )

    def snapshot(self, end: int | None) -> dict[str, object]:
        """Say what was taken up to an offset, as far as it is remembered."""
        upto = int(end or 0)
        before = (stamp for stamp in self._there_before if self._ignored.get(stamp.path) == stamp)
        return {
            _NEW_SINCE: self._new_since_ms,
            SETTLED: self._settled[max(number for number in self._settled if number <= upto)],
            _BEFORE: tuple(before),
            INPUT_FILES: tuple(stamp for stamp, number in self._taken.values() if number <= upto),
        }

    def retire(self, end: int | None) -> None:
        """Forget what is known of single batches up to an offset but of the newest of them."""
        known = sorted(number for number in self._settled if number <= int(end or 0))
        for number in known[:-1]:
            del self._settled[number]

    @property
    def taken_count(self) -> int:
        """How many files are remembered as taken."""
        return len(self._taken)

    def _remember(self, files: Iterable[FileStamp], settled_ms: int, end: int) -> None:
        self._taken.update({stamp.path: (stamp, end) for stamp in files})
        self._settled[end] = settled_ms

    def _forget(self, listing: Listing, time_ms: int) -> None:
        """Drop what is not listed any more: at once, but what was taken after a window only."""
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
        """Files modified up to then are not new, or too old."""
        rules = self._rules
        age_ms = rules.window_ms if rules.max_age_ms is None else rules.max_age_ms
        whole_ms = -(-age_ms // rules.batch_ms) * rules.batch_ms
        seen_ms = time_ms if self._seen_upto_ms is None else self._seen_upto_ms
        oldest_ms = min(time_ms, seen_ms + rules.batch_ms) - whole_ms - ahead_ms
        if rules.max_age_ms is not None:
            return oldest_ms
        return max(self._new_since_ms - (ahead_ms if self._has_decided else 0), oldest_ms)

    def _unwanted(self, stamp: FileStamp, after_ms: int) -> str | None:
        """Say why a file does not count, ``""`` where its owner knows; None when it does."""
        if stamp.modified_ms <= after_ms:
            return self._age(stamp.modified_ms, after_ms)
        if self._rules.accepts is not None and not self._rules.accepts(stamp.path):
            return ""
        name = stamp.path.rpartition("/")[2]
        if ":" in name:
            return "a colon in the name, which Hadoop's file systems cannot open"
        if not name.isascii() and _is_undecodable(name):
            return "a name that is no UTF-8, which Spark cannot be told"
        return None

    def _refusal(self, stamp: FileStamp) -> str | None:
        return None if self._rules.refuses is None else self._rules.refuses(stamp)

    def _age(self, modified_ms: int, after_ms: int) -> str:
        reason = f"modified at {_utc(modified_ms)}, which is not after {_utc(after_ms)}"
        is_old = self._rules.max_age_ms is not None or after_ms > self._new_since_ms
        if is_old:
            return f"{reason}: too old; to have it, raise maxFileAge"
        return f"{reason}: there before; to have it, say newFilesOnly=False"


_UNKNOWN = FileStamp("", 0, -1)


def _unfinished(path: str) -> str | None:
    """Say which convention a name follows that means "not finished, or not data"."""
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

"""Forks: copies of a stream that begin at an earlier batch. The original may be running."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from checkpoint.cli.common import UsageError, moment, nearest
from checkpoint.cli.rewind import plan_rewind, rewind
from checkpoint.cli.savepoint import needed_files
from checkpoint.errors import CheckpointError, CorruptCheckpointError
from checkpoint.log.batch_records import BatchLog, CommitLog
from checkpoint.log.fencing import DriverProcess, Takeover, claim_epoch
from checkpoint.log.lineage import Lineage, read_lineage, write_takeover
from checkpoint.log.record_files import RecordId
from checkpoint.log.recovery import plan_recovery, read_log
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, in_parallel
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.trust import require_trusted, unsigned


@dataclass(frozen=True)
class Fork:
    """A copy of a stream at an earlier batch.

    Args:
        after_ms: time of the batch after which the copy begins; None before the first batch.
        again_ms: times of the later batches, oldest first, which run again with their input.
        original: the commit records of the original, by batch time; their files are in the copy.
    """

    after_ms: int | None
    again_ms: tuple[int, ...]
    original: Mapping[int, RecordId]


def fork_stream(
    files: Files,
    into: Files,
    first_ms: int | None = None,
    after_ms: int | None = None,
    last_ms: int | None = None,
) -> Fork:
    """Copy a stream into an empty location, as of an earlier batch.

    The files that a restart needs are copied first, as hard links if both locations are on one
    disk, so it does not matter what a running driver deletes later. Then the copy is rewound.

    Args:
        files: the stream.
        into: the location.
        first_ms: time of the first batch that runs again.
        after_ms: instead of it, time of the batch before; no batch needs to follow. None for both:
            the oldest batch after which a restart is possible, and after which there are others.
        last_ms: time of the last batch that runs again; None for the newest.

    Raises UsageError if that batch is not kept, or CheckpointError.
    """
    files = require_trusted(files)
    in_parallel(into, partial(_copy, unsigned(files), unsigned(into)), needed_files(files))
    lineage = read_lineage(into)
    begins = lineage.begins(BatchLog(into).all_ids())
    original = {one.time_ms: one for one in lineage.commits(CommitLog(into).all_ids())}
    times = list(begins)
    starts_new = bool(begins) and BatchLog(into).read_record(begins[times[0]]).previous is None
    places = [0, *original] if starts_new else [*original]
    if first_ms is not None and first_ms not in begins:
        near = nearest(times, first_ms)
        raise UsageError(
            f"{files.url} does not keep the batch at {moment(first_ms)}; {near}; "
            f"{_runnable(into, places, times)}"
        )
    if last_ms is not None and last_ms < max([first_ms or 0, *times[:1]]):
        raise UsageError(
            f"{files.url}: no batch up to {moment(last_ms)} can run again; "
            f"{_runnable(into, places, times)}"
        )
    if after_ms is not None and after_ms not in original:
        near = nearest([*original], after_ms)
        raise UsageError(f"{files.url} keeps no state of {moment(after_ms)}; {near}")
    if starts_new and after_ms is None and first_ms in (None, times[0]):
        chosen = _upto(begins.values(), last_ms)
        _rewind_to_start(into, lineage, chosen)
        return Fork(None, tuple(one.time_ms for one in chosen), original)
    chosen_ms = [*original]
    if after_ms is not None:
        chosen_ms = [after_ms]
    elif first_ms is not None:
        chosen_ms = [time_ms for time_ms in original if time_ms < first_ms][-1:]
    problem: Exception | None = None
    for time_ms in chosen_ms:
        try:
            target = plan_rewind(into, time_ms)
        except (CheckpointError, UsageError, FileNotFoundError) as error:
            problem = problem or error
            continue
        target = replace(target, begins=_upto(target.begins, last_ms))
        if target.begins or after_ms is not None:
            rewind(into, target)
            return Fork(time_ms, tuple(begun.time_ms for begun in target.begins), original)
    kept = _runnable(into, places, times)
    raise _lost(files, first_ms or after_ms, problem, kept)


def _lost(files: Files, wanted_ms: int | None, problem: Exception | None, kept: str) -> UsageError:
    which = "any batch" if wanted_ms is None else f"the batch at {moment(wanted_ms)}"
    is_damaged = isinstance(problem, CorruptCheckpointError) and not problem.is_missing
    why = problem if is_damaged else f"the state before it was deleted; {kept}"
    return UsageError(f"{files.url} does not keep what {which} needs to run again: {why}")


def _runnable(files: Files, places: Sequence[int], times: Sequence[int]) -> str:
    """Return a text about the batches that can run again; a place of 0 is before the first one."""
    for time_ms in places:
        with suppress(CheckpointError, UsageError, FileNotFoundError):
            if time_ms:
                plan_rewind(files, time_ms)
            later = [one for one in times if one > time_ms]
            if later:
                return f"those from {moment(later[0])} to {moment(later[-1])} can run again"
    return "no batch can run again"


def _upto(begins: Iterable[RecordId], last_ms: int | None) -> tuple[RecordId, ...]:
    return tuple(one for one in begins if last_ms is None or one.time_ms <= last_ms)


def _copy(files: Files, into: Files, name: str) -> None:
    # A running driver deletes files; the rewind notices if one of them is needed.
    with suppress(FileNotFoundError):
        if isinstance(files, LocalFiles) and isinstance(into, LocalFiles):
            path = os.path.join(into.root, name)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with suppress(OSError):
                os.link(os.path.join(files.root, name), path, follow_symlinks=False)
                return
        into.create(name, files.read_chunks(name, READ_CHUNK_BYTES))


def _rewind_to_start(into: Files, lineage: Lineage, begins: tuple[RecordId, ...]) -> None:
    """Let all batches run again, from the first one on."""
    stream_id = BatchLog(into).read_record(begins[0]).stream_id
    lease = claim_epoch(into, stream_id, DriverProcess.of_this_process(0, {"tool": "fork"}))
    takeover = Takeover(stream_id, lease.epoch, lineage.head, None, begins, "rewind")
    write_takeover(lease, takeover)
    lease.check()
    lease.release()
    plan_recovery(read_log(into))

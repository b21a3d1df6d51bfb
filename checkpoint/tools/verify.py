"""``verify``: every checksum and every promise, each problem with its file and a remedy.

First every file is read to its end, which checks all checksums, and has to say of itself what its
name says. Then every record that counts is followed: each file that it names is there, with the
size and the digest it had; changelogs lead back to a snapshot or to the beginning; records follow
each other without a gap; the log of every input can be read.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from checkpoint.batch_log import BEGIN_PREFIX, BEGIN_SUFFIX, BatchLog
from checkpoint.block_log import RECEIVED_PREFIX, BlockLog
from checkpoint.commit_log import COMMIT_PREFIX, COMMIT_SUFFIX, CommitLog, CommitRecord
from checkpoint.errors import CheckpointError, CorruptCheckpointError, StorageRefusedError
from checkpoint.fencing import CLAIM, END, epoch_of_file, read_claim
from checkpoint.file_log import FILES_PREFIX, FileLog
from checkpoint.files import READ_CHUNK_BYTES, Files, location
from checkpoint.framing import RESTORE, FileKind, read_frames
from checkpoint.graph_snapshot import GRAPH_PREFIX, GRAPH_SUFFIX, RDDS_PREFIX, read_graph
from checkpoint.input_log import INPUTS_PREFIX, InputLog
from checkpoint.lineage import Lineage, read_base, read_lineage
from checkpoint.record_files import RecordId, record_ids
from checkpoint.recovery import read_plan
from checkpoint.state_files import (
    STATE_PREFIX,
    StateFileRef,
    StatePartition,
    read_state_file,
    state_file_record,
)
from checkpoint.state_store import EMPTY
from checkpoint.state_store.chain import walk_back
from checkpoint.state_store.changelog import read_base as read_changelog_base
from checkpoint.state_store.changelog import read_changelog
from checkpoint.state_store.commits import reference_of, store_id
from checkpoint.state_store.reference import Reference, StoredKind, StoreId, parse_file_name
from checkpoint.state_store.snapshot import list_snapshots
from checkpoint.stored_state import StoredPartition
from checkpoint.tools.common import (
    PROBLEMS,
    SUCCEEDED,
    Commands,
    Problem,
    Result,
    add_location,
    open_stream_at,
)

_INPUT = re.compile(rf"({FILES_PREFIX}|{RECEIVED_PREFIX}|{INPUTS_PREFIX})[^/]+/")
_FOREIGN = "remove it, if nobody needs it: no stream has written it"


@dataclass
class Findings:
    """What was looked at, and what is wrong.

    Args:
        problems: what is wrong, each once.
        notes: what is no problem and may be of interest.
        checked: how many files were read.
    """

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: int = 0

    def try_to(self, check: Callable[[], object], where: str) -> bool:
        """Run a check, and keep what it fails with; whether it succeeded."""
        try:
            check()
        except CorruptCheckpointError as error:
            self.add(Problem.of(error))
        except FileNotFoundError:
            self.add(Problem(where, "is missing", "the file", "restore it from a copy"))
        except (CheckpointError, ValueError) as error:
            remedy = (
                "look at that storage" if isinstance(error, StorageRefusedError) else "see there"
            )
            self.add(Problem(where, f"cannot be verified: {error}", "a good file", remedy))
        else:
            return True
        return False

    def add(self, problem: Problem) -> None:
        """Keep a problem, unless that of the same file is known."""
        if all(problem.file != known.file for known in self.problems):
            self.problems.append(problem)


def add_verify(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "verify", help="every checksum, every promise", description=__doc__
    )
    add_location(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> Result:
    files = open_stream_at(options.url, options.stream)
    findings = verify_stream(files)
    data = {
        "url": files.url,
        "checked_files": findings.checked,
        "problems": [vars(problem) for problem in findings.problems],
        "notes": findings.notes,
    }
    count = len(findings.problems)
    summary = f"{findings.checked} files verified, {count or 'no'} problem{'s'[: count != 1]}"
    lines = [*map(str, findings.problems), *findings.notes, summary]
    return Result(data, lines, status=PROBLEMS if findings.problems else SUCCEEDED)


def verify_stream(files: Files) -> Findings:
    """Verify everything of one stream; nothing is changed.

    Args:
        files: the directory of the stream.

    Raises:
        StorageRefusedError: it cannot be listed.
    """
    findings = Findings()
    names = files.list("")
    for name in names:
        findings.checked += 1
        _read_whole(files, name, findings)
    lineage: list[Lineage] = []
    if findings.try_to(lambda: lineage.append(read_lineage(files)), files.url):
        _verify_records(files, names, lineage[0], findings)
        findings.try_to(lambda: read_plan(files), files.url)
        verify_inputs(files, names, lineage[0], findings)
    return findings


# Each file by itself ------------------------------------------------------------------------------


def _read_whole(files: Files, name: str, findings: Findings) -> None:
    """Read a file to its end, and require what its name says."""
    where = location(files, name)
    reader = reader_of(files, name)
    if reader is None:
        findings.add(Problem(where, "is no file of a checkpoint", "no such file", _FOREIGN))
        return
    findings.try_to(reader, where)


def reader_of(files: Files, name: str) -> Callable[[], object] | None:
    """Return what reads a file to its end; None for a file that no stream writes."""
    for prefix, suffix, read in (
        (COMMIT_PREFIX, COMMIT_SUFFIX, CommitLog(files).read_record),
        (BEGIN_PREFIX, BEGIN_SUFFIX, BatchLog(files).read_record),
        (GRAPH_PREFIX, GRAPH_SUFFIX, lambda found: read_graph(files, found)),
    ):
        record_id = RecordId.parse(name, prefix, suffix)
        if record_id is not None:
            return _bound(read, record_id)
    epoch = epoch_of_file(name)
    if epoch is not None and not name.endswith(f".{END}"):
        return _bound(read_claim if name.endswith(f".{CLAIM}") else read_base, files, epoch)
    kind = FileKind.CLAIM if epoch is not None else _kind(name)
    return None if kind is None else _bound(_read_frames, files, name, kind)


def _kind(name: str) -> FileKind | None:
    name = name.removeprefix(RDDS_PREFIX)
    stored = parse_file_name(name)
    if stored is not None:
        return FileKind.CHANGES if stored[2] is StoredKind.CHANGES else FileKind.SNAPSHOT
    if state_file_record(name) is not None:
        return FileKind.STATE
    return _input_kind(name) if _INPUT.match(name) else None


def _bound(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments)


def _input_kind(name: str) -> FileKind:
    if name.startswith(FILES_PREFIX):
        return FileKind.FILES
    if name.startswith(INPUTS_PREFIX):
        return FileKind.INPUT
    return FileKind.RECEIVED if name.endswith(".block") else FileKind.ALLOCATION


def _read_frames(files: Files, name: str, kind: FileKind) -> None:
    chunks = files.read_chunks(name, READ_CHUNK_BYTES)
    for _ in read_frames(chunks, kind, location(files, name)).blocks:
        pass


# What records promise -----------------------------------------------------------------------------


def _verify_records(
    files: Files, names: Iterable[str], lineage: Lineage, findings: Findings
) -> None:
    listed = list(names)
    ids = record_ids(listed, COMMIT_PREFIX, COMMIT_SUFFIX)
    counted = lineage.commits(ids)
    log = CommitLog(files)
    records: dict[RecordId, CommitRecord] = {}
    named: set[str] = set()
    for record_id in ids:
        try:
            record = log.read_record(record_id)
        except (CheckpointError, FileNotFoundError):
            continue  # known already
        named |= record.file_names()
        if record_id in counted:
            records[record_id] = record
    for record in records.values():
        verify_record(files, record, findings)
        for name in record.file_names().difference(listed):
            wanted = f"a file that the record of {record.record_id} names"
            findings.add(Problem(location(files, name), "is missing", wanted, RESTORE))
    for record in list(records.values())[-1:]:
        verify_stores(files, record, findings)
    for record in records.values():
        previous = record.previous
        is_known = previous is None or previous in ids or previous < counted[0]
        if previous is not None and not is_known:
            where = location(files, f"{COMMIT_PREFIX}{previous.stem}{COMMIT_SUFFIX}")
            wanted = f"the record that comes before that of {record.record_id}"
            findings.add(Problem(where, "is missing", wanted, RESTORE))
    void = sorted(set(ids) - set(counted))
    if void:
        times = ", ".join(map(str, void))
        findings.notes.append(f"void, of older drivers or taken back: commits at {times}")
    orphans = [name for name in listed if name.startswith(STATE_PREFIX) and name not in named]
    if orphans:
        findings.notes.append(f"{len(orphans)} state files that no record names; see gc")


def verify_record(files: Files, record: CommitRecord, findings: Findings) -> None:
    """Verify the state files that a record names."""
    for uid, commit in record.operators.items():
        for ref in commit.files:
            wanted = StatePartition(
                record.stream_id,
                uid,
                record.batch_time_ms,
                ref.partition,
                len(commit.files),
                commit.partitioner,
            )

            read = _bound(_read_state, files, ref, wanted)
            findings.try_to(read, location(files, ref.name))


def _read_state(files: Files, ref: StateFileRef, wanted: StatePartition) -> None:
    for _ in read_state_file(files, ref, wanted):
        pass


def verify_stores(files: Files, record: CommitRecord, findings: Findings) -> None:
    """Verify the stores that a record names, back to a snapshot of each."""
    for commit in record.stores:
        for stored in commit.partitions:
            store = store_id(record.stream_id, commit, stored.partition)
            reference = reference_of(stored)
            if reference == EMPTY:
                continue

            where = location(files, stored.file)
            if findings.try_to(_bound(_walk_to_snapshot, files, store, reference), where):
                findings.try_to(_bound(_require_stored, files, store, stored), where)


def _require_stored(files: Files, store: StoreId, stored: StoredPartition) -> None:
    """Raise unless a changelog is the one that a record names."""
    changelog = read_changelog(files, store, reference_of(stored))
    for _ in changelog.parts:
        pass
    totals = changelog.totals
    if (totals.size_bytes, totals.digest) != (stored.size_bytes, stored.digest):
        found = f"has {totals.size_bytes} bytes and digest {totals.digest}"
        wanted = f"{stored.size_bytes} and {stored.digest}, as its record says"
        raise CorruptCheckpointError(location(files, stored.file), found, wanted, RESTORE)


def _walk_to_snapshot(files: Files, store: StoreId, newest: Reference) -> None:
    """Follow changelogs back to a snapshot, or to the empty store."""
    snapshots = list_snapshots(files, store)
    for reference in walk_back(newest, lambda found: read_changelog_base(files, store, found)):
        if reference in snapshots and reference != newest:
            return
        if reference != EMPTY:
            for _ in read_changelog(files, store, reference).parts:
                pass


# What inputs promise ------------------------------------------------------------------------------


def verify_inputs(files: Files, names: Iterable[str], lineage: Lineage, findings: Findings) -> None:
    """Verify the logs of all inputs, as they are in a lineage."""
    for directory, name in sorted(_first_of_each(names).items()):
        where = location(files, directory.rstrip("/"))
        if findings.try_to(_bound(_input_ids, files, name), location(files, name)):
            read = _READERS[name.partition("/")[0] + "/"]
            findings.try_to(_bound(read, files, _input_ids(files, name), lineage), where)


def _input_ids(files: Files, name: str) -> tuple[str, str]:
    """Return stream and input that a file says it is of."""
    file = location(files, name)
    header = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), _input_kind(name), file).header
    return str(header.get("stream_id")), str(header.get("input_uid"))


def _read_file_log(files: Files, ids: tuple[str, str], lineage: Lineage) -> None:
    FileLog(files, *ids, 0).load(lineage)


def _first_of_each(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        match = _INPUT.match(name)
        if match:
            found.setdefault(match[0], name)
    return found


def _read_blocks(files: Files, ids: tuple[str, str], lineage: Lineage) -> None:
    log = BlockLog(files, *ids, 0)
    for refs in log.allocated(lineage).values():
        for ref in refs:
            log.read(ref)


def _read_values(files: Files, ids: tuple[str, str], lineage: Lineage) -> None:
    InputLog(files, *ids, 0).read(sys.maxsize, lineage)


_READERS = {
    FILES_PREFIX: _read_file_log,
    RECEIVED_PREFIX: _read_blocks,
    INPUTS_PREFIX: _read_values,
}

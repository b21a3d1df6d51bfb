"""Verification of the files and records of a stream.

First every file is read to its end, which checks all checksums, and compared with its name. Then
the records that count are followed: the files they name exist with the recorded size and digest,
changelogs lead back to a snapshot or to the empty store, no record is missing between two others,
and the history of the inputs and received blocks are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import msgspec

from checkpoint.cli.common import opened_version
from checkpoint.cli.progress_bar import SILENT, Progress
from checkpoint.errors import (
    RESTORE,
    CheckpointError,
    CorruptCheckpointError,
    Damage,
    StorageRefusedError,
)
from checkpoint.log.batch_records import (
    BEGIN_PREFIX,
    BEGIN_SUFFIX,
    COMMIT_PREFIX,
    COMMIT_SUFFIX,
    INPUTS_PREFIX,
    BatchLog,
    CommitLog,
    CommitRecord,
    StoreId,
    VersionId,
    begin_file,
    commit_file,
)
from checkpoint.log.fencing import (
    CLAIM,
    RELEASED,
    epoch_file,
    epoch_of_file,
    epochs_with,
    read_claim,
    read_release,
    read_takeover,
)
from checkpoint.log.graph_record import (
    GRAPH_PREFIX,
    GRAPH_SUFFIX,
    RDDS_PREFIX,
    GraphSnapshot,
    read_graph,
    read_graph_in,
    read_newest_graph,
    read_rdds,
)
from checkpoint.log.input_offsets import (
    INPUTS_SUFFIX,
    RECEIVED_PREFIX,
    InputHistory,
    ReceivedBlocks,
    blocks_of,
    read_input_snapshot,
    read_inputs,
)
from checkpoint.log.lineage import Lineage, read_lineage
from checkpoint.log.record_files import RecordId, misplaced, missing, record_ids
from checkpoint.log.recovery import RecoveryPlan, StreamLog, plan_recovery, read_log, read_plan
from checkpoint.log.state_files import (
    STATE_PREFIX,
    StatePartition,
    read_file_id,
    read_state_file,
    state_file_record,
)
from checkpoint.state_store import EMPTY
from checkpoint.state_store.static_files import STATIC, STATIC_PREFIX, verify_static
from checkpoint.state_store.store_files import (
    StoredKind,
    list_snapshots,
    parse_file_name,
    read_changelog,
    read_header,
    read_parent,
    walk_back,
)
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location, uid_part
from checkpoint.storage.framing import FileKind, FileRef, read_frames
from checkpoint.storage.json_records import convert

_STORED = {FileKind.CHANGES: StoredKind.CHANGES, FileKind.SNAPSHOT: StoredKind.SNAPSHOT}
FOREIGN = "remove it, unless you need it: it was not written by a stream"
_CLAIM_AGAIN = (
    "make sure that no driver is running, then start the stream, which claims the next epoch, or "
    "rewind it to its last batch"
)
_OLD_CLAIM = "remove it: a newer driver has claimed the stream, and nothing needs this claim"


class Note(Enum):
    """Notes of verify that are not problems; the runbook documents each."""

    VOID = "void, superseded or rewound: commits at {times}"
    ORPHANS = "{count} state files that no record names; see gc"
    OLD_CLAIM = "{claim} is missing; nothing needs it, as epoch {newest} has a newer one"
    UNTRUSTED = "a restart by this user is refused: {error}"

    def __call__(self, **facts: object) -> str:
        """Return the text of the note."""
        return self.value.format(**facts)


@dataclass
class Verification:
    """The findings of a verification."""

    problems: list[CorruptCheckpointError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: int = 0

    def try_to(self, check: Callable[[], object], where: str) -> bool:
        """Run a check, and return whether it succeeded; add a problem if it failed."""
        try:
            check()
        except CorruptCheckpointError as error:
            self.add(error)
        except FileNotFoundError:
            self.report(where, "is missing", "the file", "restore it from a copy", Damage.MISSING)
        except (CheckpointError, ValueError) as error:
            remedy = (
                "check the storage" if isinstance(error, StorageRefusedError) else "see the error"
            )
            found = f"cannot be verified: {error}"
            self.report(where, found, "a good file", remedy, Damage.UNREADABLE)
        else:
            return True
        return False

    def add(self, problem: CorruptCheckpointError) -> None:
        """Add a problem, unless the file already has one."""
        if all(problem.file != known.file for known in self.problems):
            self.problems.append(problem)

    def report(self, file: str, found: str, expected: str, remedy: str, damage: Damage) -> None:
        """Add the problem of a file; the arguments are those of CorruptCheckpointError."""
        self.add(CorruptCheckpointError(file, found, expected, remedy, damage))


def verify_stream(files: Files, progress: Progress = SILENT) -> Verification:
    """Verify all files and records of one stream."""
    findings = Verification()
    names = files.list("")
    streams: dict[str, str] = {}
    for name in progress.over(names, "reading files"):
        findings.checked += 1
        stream_id = _read_whole(files, name, findings)
        if stream_id is not None:
            streams[name] = stream_id
    lineage: list[Lineage] = []
    plans: list[RecoveryPlan] = []
    if findings.try_to(lambda: lineage.append(read_lineage(files)), files.url):
        _verify_records(files, names, lineage[0], findings, progress)
        _verify_claims(files, names, lineage[0], findings)
        findings.try_to(lambda: plans.append(read_plan(files)), files.url)
    for plan in plans:
        if plan.stream_id is not None:
            _require_stream(files, streams, plan.stream_id, findings)
        for lost in plan.missing_begins(min(plan.committed_ms, default=0) - 1):
            wanted = "the begin record that another record names"
            where = location(files, begin_file(lost))
            findings.add(missing(where, wanted))
        findings.try_to(partial(verify_graph, files, plan), files.url)
        verify_inputs(files, plan, findings, progress)
    _forget_deleted(files, names, findings)
    return findings


def _forget_deleted(files: Files, names: Collection[str], findings: Verification) -> None:
    """Drop the problems of files that a running driver has deleted since they were listed."""
    if not findings.problems:
        return
    deleted = {location(files, name) for name in set(names).difference(files.list(""))}
    kept = [problem for problem in findings.problems if problem.file not in deleted]
    if kept != findings.problems and restart_problem(files) is None:
        findings.problems = kept


def verify_restart(
    files: Files, log: StreamLog, plan: RecoveryPlan, findings: Verification
) -> None:
    """Verify what a restart with this plan reads: graph, state and inputs."""
    findings.try_to(partial(_verify_graph_in, files, plan), files.url)
    _verify_state_and_inputs(files, log, plan, findings)


def _verify_state_and_inputs(
    files: Files, log: StreamLog, plan: RecoveryPlan, findings: Verification
) -> None:
    holders = set() if plan.last is None else set(plan.last.newest_snapshots.values())
    for record_id in sorted(holders.intersection(log.commits)):  # not of removed operators
        verify_record(files, log.commits[record_id], findings)
    if plan.last is not None:
        verify_stores(files, plan.last, findings)
    verify_inputs(files, plan, findings)


def restart_problem(files: Files) -> CorruptCheckpointError | None:
    """Return the problem for which a restart would be refused, None if it is possible."""
    findings = Verification()

    def check() -> None:
        log = read_log(files)
        plan = plan_recovery(log)
        verify_graph(files, plan)
        _verify_state_and_inputs(files, log, plan, findings)

    findings.try_to(check, files.url)
    return next(iter(findings.problems), None)


def _verify_claims(
    files: Files, names: Collection[str], lineage: Lineage, findings: Verification
) -> None:
    """Report epochs whose claim is missing.

    A claim fences older drivers, and so does each newer one. Only the newest is therefore needed; a
    restart, or a rewind to the last batch, replaces a lost one by claiming the next epoch.
    """
    claimed = epochs_with(list(names), CLAIM)
    newest = max(claimed, default=0)
    old = {location(files, epoch_file(epoch, CLAIM)) for epoch in claimed if epoch < newest}
    findings.problems = [
        CorruptCheckpointError(
            problem.file, problem.found, problem.expected, _OLD_CLAIM, problem.damage
        )
        if problem.file in old and problem.remedy == RESTORE
        else problem
        for problem in findings.problems
    ]
    for takeover in lineage.takeovers:
        epoch, claim = takeover.epoch, epoch_file(takeover.epoch, CLAIM)
        if claim in names:
            continue
        if epoch < newest:
            findings.notes.append(Note.OLD_CLAIM(claim=claim, newest=newest))
        else:
            wanted = f"the claim of epoch {epoch}, which fences older drivers"
            where = location(files, claim)
            findings.report(where, "is missing", wanted, _CLAIM_AGAIN, Damage.NO_CLAIM)


def _read_whole(files: Files, name: str, findings: Verification) -> str | None:
    """Read a file to its end, and return the id of its stream, None if it cannot be read."""
    where = location(files, name)
    reader = reader_of(files, name)
    if reader is None:
        wrong = "is not a checkpoint file"
        findings.report(where, wrong, "no such file", FOREIGN, Damage.FOREIGN)
        return None
    found: list[str] = []
    findings.try_to(lambda: found.append(reader()), where)
    return found[0] if found else None


def _require_stream(
    files: Files, streams: Mapping[str, str], stream_id: str, findings: Verification
) -> None:
    """Report files that another stream has written."""
    for name, found in streams.items():
        if found != stream_id:
            where, wanted = location(files, name), f"stream {stream_id}"
            findings.add(misplaced(where, f"is of stream {found}", wanted))


def _verify_records(
    files: Files,
    names: Iterable[str],
    lineage: Lineage,
    findings: Verification,
    progress: Progress,
) -> None:
    listed = list(names)
    ids = record_ids(listed, COMMIT_PREFIX, COMMIT_SUFFIX)
    counted = lineage.commits(ids)
    log = CommitLog(files)
    records: dict[RecordId, CommitRecord] = {}
    named: set[str] = set()
    for record_id in progress.over(ids, "reading commit records"):
        try:
            record = log.read_record(record_id)
        except (CheckpointError, FileNotFoundError):
            continue  # reported already
        named |= record.file_names()
        if record_id in counted:
            records[record_id] = record
    snapshots = [commit for record in records.values() for commit in record.snapshots.values()]
    progress.begin("following records", sum(len(commit.files) for commit in snapshots))
    for record in records.values():
        verify_record(files, record, findings, progress)
        for name in record.file_names().difference(listed):
            wanted = f"a file that the record of {record.record_id} names"
            findings.add(missing(location(files, name), wanted))
    for record in list(records.values())[-1:]:
        verify_stores(files, record, findings, progress)
    for record in records.values():
        previous = record.previous
        is_known = previous is None or previous in ids or previous < counted[0]
        if previous is not None and not is_known:
            where = location(files, commit_file(previous))
            wanted = f"the record that comes before that of {record.record_id}"
            findings.add(missing(where, wanted))
    void = sorted(set(ids) - set(counted))
    if void:
        times = ", ".join(map(str, void))
        findings.notes.append(Note.VOID(times=times))
    unnamed = [name for name in listed if name.startswith(STATE_PREFIX) and name not in named]
    orphans = [name for name in unnamed if not _is_in_flight(name, lineage.head, counted)]
    if orphans:
        findings.notes.append(Note.ORPHANS(count=len(orphans)))


def _is_in_flight(name: str, epoch: int, commits: Sequence[RecordId]) -> bool:
    """Return whether a file is of the newest driver, whose commit record for it may follow."""
    record_id = state_file_record(name)
    if record_id is None or record_id.epoch != epoch:
        return False
    return all(record_id > newest for newest in commits[-1:])


def verify_record(
    files: Files, record: CommitRecord, findings: Verification, progress: Progress = SILENT
) -> None:
    """Verify the state files that a record names."""
    for uid, commit in record.snapshots.items():
        for ref, wanted in commit.partitions(record.stream_id, uid, record.batch_time_ms):
            read = partial(_read_state, files, ref, wanted)
            findings.try_to(read, location(files, ref.name))
            progress.advance()


def _read_state(files: Files, ref: FileRef, wanted: StatePartition) -> None:
    for _ in read_state_file(files, ref, wanted):
        pass


def verify_stores(
    files: Files, record: CommitRecord, findings: Verification, progress: Progress = SILENT
) -> None:
    """Verify the stores that a record names, back to a snapshot of each."""
    stored_in = [(commit, stored) for commit in record.stores for stored in commit.partitions]
    for commit, stored in progress.over(stored_in, "rebuilding stored state"):
        if stored.file is None:
            continue
        store = commit.store_id(record.stream_id, stored.partition)
        version_id = stored.version_id
        where = location(files, stored.file.name)
        if findings.try_to(partial(_walk_to_snapshot, files, store, version_id), where):
            require = partial(_require_stored, files, store, version_id, stored.file)
            if findings.try_to(require, where):
                findings.try_to(partial(_require_content, files, store, version_id), where)


def _require_stored(files: Files, store: StoreId, version_id: VersionId, ref: FileRef) -> None:
    """Raise unless a changelog matches the reference of a record."""
    changelog = read_changelog(files, store, version_id)
    for _ in changelog.parts:
        pass
    ref.require(changelog.totals, location(files, ref.name))


def _require_content(files: Files, store: StoreId, version_id: VersionId) -> None:
    """Raise unless the files produce the content whose checksum the writer recorded."""
    with opened_version(files, store, version_id):
        pass


def _walk_to_snapshot(files: Files, store: StoreId, newest: VersionId) -> None:
    """Follow changelogs back to a snapshot, or to the empty store."""
    snapshots = list_snapshots(files, store)
    for version_id in walk_back(newest, lambda found: read_parent(files, store, found)):
        if version_id in snapshots and version_id != newest:
            return
        if version_id != EMPTY:
            for _ in read_changelog(files, store, version_id).parts:
                pass


def verify_graph(files: Files, plan: RecoveryPlan) -> None:
    """Verify the graph that a restart would use, and the RDDs that it names."""
    _verify_rdds(files, read_newest_graph(files, plan.graph))


def _verify_graph_in(files: Files, plan: RecoveryPlan) -> None:
    """Verify the graph that a restart would use with the lineage of the plan."""
    _verify_rdds(files, read_graph_in(files, plan.lineage, plan.graph))


def _verify_rdds(files: Files, snapshot: GraphSnapshot | None) -> None:
    if snapshot is not None:
        for _ in read_rdds(files, snapshot):
            pass


def verify_inputs(
    files: Files, plan: RecoveryPlan, findings: Verification, progress: Progress = SILENT
) -> None:
    """Verify the history of the inputs, the received blocks that it names, and static data."""
    with_static = [begun for begun in plan.begins.values() if STATIC in begun.facts]
    for begun in progress.over(with_static, "reading static data"):
        where = location(files, begin_file(begun.record_id))
        findings.try_to(partial(verify_static, files, begun), where)
    inputs: list[InputHistory] = []
    findings.try_to(lambda: inputs.append(read_inputs(files, plan)), files.url)
    for found in inputs:
        retired_ms = -1 if found.snapshot is None else found.snapshot.time_ms
        blocks_named = list(blocks_of(files, plan))
        for time_ms, uid, ref in progress.over(blocks_named, "reading received blocks"):
            if time_ms > retired_ms:
                blocks = ReceivedBlocks(files, plan.stream_id or "", uid, 0)
                findings.try_to(partial(blocks.read, ref), location(files, ref.name))


def reader_of(files: Files, name: str) -> Callable[[], str] | None:
    """Return a function that reads a file to its end and returns the id of its stream.

    None if streams write no file of this name.
    """
    for prefix, suffix, read in (
        (COMMIT_PREFIX, COMMIT_SUFFIX, CommitLog(files).read_record),
        (BEGIN_PREFIX, BEGIN_SUFFIX, BatchLog(files).read_record),
        (GRAPH_PREFIX, GRAPH_SUFFIX, partial(read_graph, files)),
        (INPUTS_PREFIX, INPUTS_SUFFIX, partial(read_input_snapshot, files)),
    ):
        record_id = RecordId.parse(name, prefix, suffix)
        if record_id is not None:
            return _stream_of(partial(read, record_id))
    epoch = epoch_of_file(name)
    if epoch is not None:
        ending = name.rpartition(".")[2]
        read_epoch = {CLAIM: read_claim, RELEASED: read_release}.get(ending, read_takeover)
        return _stream_of(partial(read_epoch, files, epoch))
    kind = _kind(name)
    return None if kind is None else partial(_read_frames, files, name, kind)


def _stream_of(read: Callable[[], object]) -> Callable[[], str]:
    return lambda: str(getattr(read(), "stream_id", ""))


def _kind(name: str) -> FileKind | None:
    name = name.removeprefix(_below(name))
    stored = parse_file_name(name)
    if stored is not None:
        return FileKind.CHANGES if stored[2] is StoredKind.CHANGES else FileKind.SNAPSHOT
    if state_file_record(name) is not None:
        return FileKind.STATE
    return FileKind.RECEIVED if name.startswith(RECEIVED_PREFIX) else None


def _below(name: str) -> str:
    """Return the prefix in front of the name of a state file."""
    return next((one for one in (STATIC_PREFIX, RDDS_PREFIX) if name.startswith(one)), "")


def _read_frames(files: Files, name: str, kind: FileKind) -> str:
    file = location(files, name)
    frames = read_frames(files.read_chunks(name, READ_CHUNK_BYTES), kind, file)
    for _ in frames.blocks:
        pass
    stream_id, written = _written_as(frames.header, kind, name, file)
    if written != name:
        raise misplaced(file, f"was written as {written}", name)
    return stream_id


class _BlockHeader(msgspec.Struct, frozen=True):
    """The header of a received block."""

    stream_id: str
    input_uid: str
    epoch: int
    sequence: int
    attempt: str


def _written_as(
    header: Mapping[str, object], kind: FileKind, name: str, file: str
) -> tuple[str, str]:
    """Return the stream and the original name of a file, from its header."""
    if kind is FileKind.STATE:
        state = read_file_id(header, file)
        return state.stream_id, f"{_below(name)}{state.name}"
    if kind in _STORED:
        stored = read_header(header, _STORED[kind], file)
        return stored.store.stream_id, stored.name
    found = convert(header, _BlockHeader, file, "the header of a received block")
    block = f"{found.sequence:016d}-e{found.epoch}-{found.attempt}.block"
    return found.stream_id, f"{RECEIVED_PREFIX}{uid_part(found.input_uid)}/{block}"

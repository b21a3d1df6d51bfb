"""Preflight: a cheap check of the state that a restart needs, before anything runs.

Small files are read to the end, and of large ones only the header, because tasks check the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage
from checkpoint.log.graph_record import RDDS_PREFIX, GraphSnapshot, rdd_files
from checkpoint.log.recovery import RecoveryPlan
from checkpoint.log.state_files import StatePartition, read_state_file
from checkpoint.state_store.store_files import (
    HEADER_CHUNK_BYTES,
    STORE_PREFIX,
    StoredKind,
    directory_of,
    open_stored,
    parse_file_name,
)
from checkpoint.storage.files import Files, PrefixedFiles, location
from checkpoint.storage.framing import FileRef

READ_WHOLE_BYTES = 32 << 20
"""The most bytes of state to read at a start."""


class ReadBudget:
    """Reads files to the end, until a limit is used up."""

    def __init__(self, whole_bytes: int = READ_WHOLE_BYTES) -> None:
        self._left_bytes = whole_bytes

    def read(self, parts: Iterator[object], size_bytes: int) -> None:
        """Read an open file to its end if the limit allows it."""
        if size_bytes <= self._left_bytes:
            self._left_bytes -= size_bytes
            for _ in parts:
                pass


def require_stored_state(
    files: Files, plan: RecoveryPlan, operators: Collection[str] | None = None
) -> None:
    """Check the state that a restart begins with.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    reading = ReadBudget()
    for uid, newest in plan.snapshots.items():
        if newest.snapshot is not None and (operators is None or uid in operators):
            wanted = newest.snapshot.partitions(plan.stream_id or "", uid, newest.time_ms)
            _require(files, wanted, reading)
    _require_stores(files, plan, operators, reading)


def require_rdds(files: Files, snapshot: GraphSnapshot) -> None:
    """Check the RDDs that a graph refers to.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    below = PrefixedFiles(files, RDDS_PREFIX.rstrip("/"))
    _require(below, rdd_files(files, snapshot), ReadBudget())


def _require(
    files: Files, wanted: Iterable[tuple[FileRef, StatePartition]], reading: ReadBudget
) -> None:
    for ref, partition in wanted:
        reading.read(read_state_file(files, ref, partition), ref.size_bytes)


def _require_stores(
    files: Files, plan: RecoveryPlan, operators: Collection[str] | None, reading: ReadBudget
) -> None:
    versions: dict[str, dict[StoredKind, set[int]]] = {}
    for name in files.list(STORE_PREFIX) if plan.stores else ():
        found = parse_file_name(name)
        if found is not None:
            kinds = versions.setdefault(found[0], {kind: set() for kind in StoredKind})
            kinds[found[2]].add(found[1].version)
    for commit in plan.stores:
        is_kept = operators is None or commit.operator_uid in operators
        for stored in commit.partitions if is_kept else ():
            if stored.file is not None:
                store = commit.store_id(plan.stream_id or "", stored.partition)
                changelog = open_stored(
                    files, store, stored.version_id, StoredKind.CHANGES, HEADER_CHUNK_BYTES
                )
                reading.read(changelog.parts, stored.file.size_bytes)
                _require_chain(files, directory_of(store), stored.version_id.version, versions)


def _require_chain(
    files: Files,
    directory: str,
    version: int,
    versions: dict[str, dict[StoredKind, set[int]]],
) -> None:
    """Raise if changelogs are missing between a version and the last snapshot before it."""
    there = versions.get(directory, {kind: set() for kind in StoredKind})
    snapshots = [found for found in there[StoredKind.SNAPSHOT] if found <= version]
    first = max(snapshots, default=0) + 1
    lost = set(range(first, version + 1)) - there[StoredKind.CHANGES]
    # A replica on a worker may still have these changes, but nothing else has them.
    if lost:
        name = f"{directory}{max(lost):016d}-*.changes"
        wanted = f"the changes that led to version {version}, from version {first} on"
        raise CorruptCheckpointError(
            location(files, name), "is missing", wanted, RESTORE, Damage.MISSING
        )

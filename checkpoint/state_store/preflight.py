"""Preflight: a cheap check of the state that a restart needs, before anything runs.

Small files are read to the end, and of large ones only the header, because tasks check the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from checkpoint.errors import RESTORE, CorruptCheckpointError, Damage
from checkpoint.log.batch_records import STORE_PREFIX, StoreId, VersionId
from checkpoint.log.graph_record import RDDS_PREFIX, GraphSnapshot, rdd_files
from checkpoint.log.recovery import RecoveryPlan
from checkpoint.log.state_files import StatePartition, read_state_file
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.classes import Classes, StoredClassError
from checkpoint.state_store.shapes import Shapes, shape_reader
from checkpoint.state_store.store_files import (
    HEADER_CHUNK_BYTES,
    StoredKind,
    directory_of,
    open_stored,
    parse_file_name,
)
from checkpoint.storage.files import Files, PrefixedFiles, in_parallel, location
from checkpoint.storage.framing import FileRef

READ_WHOLE_BYTES = 32 << 20
"""The most bytes of state to read at a start."""


class ReadBudget:
    """Reads files to the end until a limit is used up, and only opens the others."""

    def __init__(self, whole_bytes: int = READ_WHOLE_BYTES) -> None:
        self._left_bytes = whole_bytes
        self._reads: list[Callable[[], None]] = []

    def add(self, open_file: Callable[[], Iterator[object]], size_bytes: int) -> None:
        """Plan to open a file, and to read it if the limit allows it."""
        is_whole = size_bytes <= self._left_bytes
        self._left_bytes -= size_bytes if is_whole else 0
        self._reads.append(partial(_open, open_file, is_whole))

    def read(self, files: Files) -> None:
        """Read what is planned, many files at a time."""
        in_parallel(files, lambda read: read(), self._reads)


def _open(open_file: Callable[[], Iterator[object]], is_whole: bool) -> None:
    parts = open_file()
    for _ in parts if is_whole else ():
        pass


def require_stored_state(
    files: Files,
    plan: RecoveryPlan,
    operators: Collection[str] | None = None,
    classes: Classes | None = None,
) -> None:
    """Check the state that a restart begins with, and whether *classes* can restore its instances.

    The classes of instances inside lists, dicts and other instances are checked when they are read.

    Raises CorruptCheckpointError, StorageRefusedError or StoredClassError.
    """
    reading = ReadBudget()
    for uid, newest in plan.snapshots.items():
        if newest.snapshot is not None and (operators is None or uid in operators):
            wanted = newest.snapshot.partitions(plan.stream_id or "", uid, newest.time_ms)
            _require(files, wanted, reading)
    schemas: dict[str, set[str]] = {}
    _require_stores(files, plan, operators, reading, schemas)
    reading.read(files)
    problems = [] if classes is None else _class_problems(schemas, classes)
    if problems:
        raise StoredClassError("; ".join(problems))


def class_problems(
    files: Files, plan: RecoveryPlan, classes: Classes, operators: Collection[str] | None = None
) -> list[str]:
    """Return why *classes* cannot restore instances of the state that a restart begins with.

    Raises as :func:`require_stored_state` does, for the files that it opens.
    """
    reading, schemas = ReadBudget(0), dict[str, set[str]]()
    _require_stores(files, plan, operators, reading, schemas)
    reading.read(files)
    return _class_problems(schemas, classes)


def _class_problems(schemas: Mapping[str, set[str]], classes: Classes) -> list[str]:
    """Return the problems with shapes, given their schemas by uid."""
    found = []
    for uid, texts in sorted(schemas.items()):
        for schema in sorted(texts):
            try:
                shape_reader(schema, classes)
            except StoredClassError as error:
                found.append(f"the state of {uid!r}: {error}")
    return found


def require_rdds(files: Files, snapshot: GraphSnapshot) -> None:
    """Check the RDDs that a graph refers to.

    Raises CorruptCheckpointError or StorageRefusedError.
    """
    below = PrefixedFiles(files, RDDS_PREFIX.rstrip("/"))
    reading = ReadBudget()
    _require(below, rdd_files(files, snapshot), reading)
    reading.read(below)


def _require(
    files: Files, wanted: Iterable[tuple[FileRef, StatePartition]], reading: ReadBudget
) -> None:
    for ref, partition in wanted:
        reading.add(partial(read_state_file, files, ref, partition), ref.size_bytes)


def _require_stores(
    files: Files,
    plan: RecoveryPlan,
    operators: Collection[str] | None,
    reading: ReadBudget,
    schemas: dict[str, set[str]],
) -> None:
    """Plan to open the newest changelogs, which also adds the schemas of their shapes by uid."""
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
                known = schemas.setdefault(commit.operator_uid, set())
                open_file = partial(_changes, files, store, stored.version_id, known)
                reading.add(open_file, stored.file.size_bytes)
                _require_chain(files, directory_of(store), stored.version_id.version, versions)


def _changes(
    files: Files, store: StoreId, version_id: VersionId, schemas: set[str]
) -> Iterator[Changes]:
    stored = open_stored(files, store, version_id, StoredKind.CHANGES, HEADER_CHUNK_BYTES)
    schemas.update(Shapes(stored.header.codec).to_codec().values())
    return stored.parts


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

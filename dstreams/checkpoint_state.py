"""CheckpointState: look-ups in the state of a checkpoint, from any process and without Spark."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, NoReturn, TypeVar, cast

from pyspark import RDD

from checkpoint import (
    CheckpointError,
    CommitLog,
    CommitRecord,
    Files,
    OperatorSnapshot,
    RecoveryPlan,
    newest_stream,
    open_existing,
    open_stream,
    read_newest_graph,
    read_plan,
    read_state_file,
    require_trusted,
    state_pairs,
    stream_ids,
    without_secrets,
)
from checkpoint.state_store import (
    DataValues,
    LmdbBackend,
    PickleValues,
    StateReader,
    StateStore,
    ValueCodec,
)
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.monitoring.state_queries import (
    Found,
    KeysInRange,
    LiveState,
    Queryable,
    ReadableState,
    StateQueries,
)
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.stable_hash import STABLE_HASH_NAME
from dstreams.spark.state_version import StateVersion
from dstreams.state.processor_states import StateOfProcessor
from dstreams.state.state_classes import AllowedClasses, classes_of_program
from dstreams.structured.execution.state_reader import ShownState
from dstreams.structured.operators.aggregation_state import AGGREGATION_STATE_FORMAT

_T = TypeVar("_T")
_ATTEMPTS = 3  # as the driver may delete the files of a version that later ones replace


class CheckpointState:
    """The states in the checkpoint of a running or stopped stream or query, read-only.

    >>> with CheckpointState("/checkpoints/app") as states:   # doctest: +SKIP
    ...     states.state("counts").get("alice")
    2

    Each look-up reads the newest commit record, and then the version that it names; batches do not
    wait for it. Stored state is read through replicas in a directory of this process: the first
    look-up in a partition builds its replica, later ones add the changes since. The state of
    ``updateStateByKey`` and of windows is read from its newest snapshot, which may be older than
    the last batch: ``look_up(key).batch_time_ms`` says from which batch it is.

    Args:
        checkpoint: path or URL of the checkpoint directory of a stream, or of a query.
        stateClasses: classes of data in states, in addition to those that the calling program
            mentions.
        localDirectory: directory for the replicas, on a local file system, to keep them for later
            processes. None: a temporary directory, deleted by :meth:`close`.

    Raises:
        InvalidStreamError: the location has no checkpoint.
        RestartError: the checkpoint is damaged.
    """

    def __init__(
        self,
        checkpoint: str,
        *,
        stateClasses: Iterable[type] = (),  # noqa: N803 - as in StreamingContext
        localDirectory: str | None = None,  # noqa: N803
    ) -> None:
        files = _open(checkpoint)
        try:
            plan = read_plan(files)
        except CheckpointError as error:
            raise RestartError(f"cannot read checkpoint {files.url}: {error}") from error
        allowed = AllowedClasses().and_more(stateClasses, None)
        values = DataValues(classes_of_program(allowed=allowed, depth=2))
        self._scratch = None
        if localDirectory is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="dstreams-look-ups-")
        local = localDirectory or cast("tempfile.TemporaryDirectory[str]", self._scratch).name
        versions = _CommittedVersions(files, local, values)
        described = _described(files, plan)
        states: dict[str, Queryable] = {
            uid: _SnapshotFiles(files, uid) for uid in sorted(plan.snapshots)
        }
        for commit in plan.stores:
            uid = commit.operator_uid
            state = _readable(uid, versions, commit.partitioner, len(commit.partitions))
            states[uid] = described[uid](state) if uid in described else state
        self._queries = StateQueries(states)
        self._url = files.url

    @property
    def uids(self) -> list[str]:
        """The uids of the operators with state."""
        return list(self._queries.states)

    def state(self, uid: str | None = None) -> LiveState:
        """Return the state of an operator.

        Args:
            uid: the operator; None if only one has state.

        Raises:
            InvalidStreamError: no operator has this uid; the error lists the uids.
        """
        return self._queries.state(uid)

    def close(self) -> None:
        """Delete the temporary directory."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> CheckpointState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<states of {self._url}: {', '.join(self.uids) or 'none'}>"


def _open(location: str) -> Files:
    """Open the newest stream of a checkpoint directory, or the checkpoint of a query."""
    try:
        files = open_existing(location)
        found = newest_stream(stream_ids(files), partial(open_stream, location))
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise InvalidStreamError(
            f"the checkpoint {without_secrets(str(location))!r} cannot be opened: {error}"
        ) from error
    return files if found is None else found[1]


_Described = Callable[[ReadableState], ReadableState]
"""Returns a state by the keys and states that users know."""


def _described(files: Files, plan: RecoveryPlan) -> dict[str, _Described]:
    """Return the descriptions of the operators of a query, or of the processors of a stream."""
    newest = plan.begins[max(plan.begins)].facts if plan.begins else {}
    conf, operators = newest.get("conf"), newest.get("operators")
    if isinstance(conf, Mapping) and isinstance(operators, Sequence):
        form = int(conf.get(AGGREGATION_STATE_FORMAT, 2))
        return {one["uid"]: partial(_of_query, one, form) for one in operators}
    graph = read_newest_graph(files, plan.graph, plan.lineage)
    nodes: Any = () if graph is None else graph.description.get("operators", ())
    return {one["uid"]: partial(_of_stream, one) for one in nodes if "stateVariables" in one}


def _of_query(
    facts: Mapping[str, Any], aggregation_format: int, state: ReadableState
) -> ReadableState:
    shown = ShownState.of(facts, aggregation_format)
    own = StateOfProcessor.of_described(facts) if "stateVariables" in facts else None
    return replace(
        state, value_of=shown.value, key_of=shown.key_of, stored_of=shown.stored_of, own=own
    )


def _of_stream(facts: Mapping[str, Any], state: ReadableState) -> ReadableState:
    return replace(state, own=StateOfProcessor.of_described(facts, are_pairs=True))


def _readable(
    uid: str, versions: _CommittedVersions, partitioner: str, partitions: int
) -> ReadableState:
    is_known = partitioner == STABLE_HASH_NAME
    placed_by = StablePartitioner(partitions) if is_known else None
    return ReadableState(uid, versions, int, partitioner=placed_by, runs_jobs=False)


class _CommittedVersions:
    """The versions that the newest commit record names."""

    def __init__(self, files: Files, local: str, values: DataValues) -> None:
        self._files = files
        self._backend = LmdbBackend(files, local)
        self._values = values
        self._stores: dict[str, StateStore] = {}
        self._reading = Lock()

    def read_here(
        self,
        uid: str,
        committed: Callable[[], int],
        splits: Callable[[StateVersion], Iterable[int]],
        read: Callable[[StateReader], _T],
    ) -> tuple[int, list[_T]] | None:
        """Return the batch time, and what *read* returns of partitions."""
        with self._reading:
            for attempt in range(_ATTEMPTS):
                record = _latest(self._files)
                version = None if record is None else _version(record, uid)
                if record is None or version is None:
                    return None
                try:
                    store = self._store(uid, version)
                    parts: list[_T] = []
                    for split in splits(version):
                        with version.open(store, split) as reader:
                            parts.append(read(reader))
                    return record.batch_time_ms, parts
                except CheckpointError:
                    is_current = _latest(self._files) == record
                    if is_current or attempt == _ATTEMPTS - 1:
                        raise
            raise AssertionError("the last attempt returns or raises")

    def read_newest(
        self, uid: str, upto: int, read: Callable[[StateReader], Iterator[tuple[Any, ...]]]
    ) -> tuple[int, RDD[Any]] | None:
        raise _no_spark()

    def _store(self, uid: str, version: StateVersion) -> StateStore:
        """Return the stores of an operator, with the codec that they were written with."""
        if uid not in self._stores:
            raw = self._backend.open(version.store_id, version.version_ids[0])
            try:
                found = raw.codec.get("values", self._values.name)
            finally:
                raw.close()
            values: ValueCodec = self._values
            if found.split()[0] == PickleValues().name:
                require_trusted(self._files)
                values = PickleValues()
            self._stores[uid] = StateStore(self._backend, values)
        return self._stores[uid]


@dataclass(frozen=True)
class _SnapshotFiles:
    """The newest snapshot of a state RDD."""

    files: Files
    uid: str

    def look_up(self, key: Any) -> Found | None:
        """Return the state of a key as of the snapshot; reads one partition if the key decides."""
        found = self._newest()
        if found is None:
            return None
        record, snapshot = found
        time_ms = record.batch_time_ms
        if snapshot is None:
            return Found(time_ms)
        splits = list(range(len(snapshot.files)))
        if snapshot.partitioner == STABLE_HASH_NAME:
            splits = StablePartitioner(len(snapshot.files)).partitions_of([key])
        for split in splits:
            for other, value in self._pairs(record, snapshot, split):
                if other == key:
                    return Found(time_ms, split, (value, None))
        return Found(time_ms)

    def range(self, wanted: KeysInRange) -> tuple[int, list[tuple[Any, Any]]] | None:
        """Return the batch time of the snapshot, and the pairs of the first keys of a range."""
        found = self._newest()
        if found is None:
            return None
        record, snapshot = found
        pairs: list[tuple[Any, Any]] = []
        for split in range(0 if snapshot is None else len(snapshot.files)):
            pairs += wanted.of_pairs(split, self._pairs(record, snapshot, split))
        return record.batch_time_ms, pairs

    def sizes(self, count: int) -> NoReturn:
        raise _no_spark()

    def _newest(self) -> tuple[CommitRecord, OperatorSnapshot | None] | None:
        """Return the record with the newest snapshot, and the snapshot; None for an empty state."""
        log = CommitLog(require_trusted(self.files))
        latest = log.latest()
        record_id = None if latest is None else latest.newest_snapshots.get(self.uid)
        if latest is None or record_id is None:
            return None
        record = latest if record_id == latest.record_id else log.read_record(record_id)
        return record, record.snapshots.get(self.uid)

    def _pairs(
        self, record: CommitRecord, snapshot: OperatorSnapshot | None, split: int
    ) -> Iterator[tuple[Any, Any]]:
        assert snapshot is not None, "a partition is one of a snapshot"
        parts = snapshot.partitions(record.stream_id, self.uid, record.batch_time_ms)
        ref, wanted = next(part for part in parts if part[1].partition == split)
        for payload in read_state_file(require_trusted(self.files), ref, wanted):
            yield from state_pairs(payload, pickle.loads)


def _latest(files: Files) -> CommitRecord | None:
    return CommitLog(files).latest()


def _version(record: CommitRecord, uid: str) -> StateVersion | None:
    commits = [commit for commit in record.stores if commit.operator_uid == uid]
    return StateVersion.committed(record.stream_id, commits[-1]) if commits else None


def _no_spark() -> InvalidStreamError:
    return InvalidStreamError("this reads the whole state in a job; use StreamSession.readState")

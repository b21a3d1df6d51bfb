"""Readers of the state of running and stopped queries, at any retained batch.

>>> state = session.readState("/checkpoints/counts")   # doctest: +SKIP
>>> state.operators()                                  # doctest: +SKIP
>>> state.rows().filter(lambda row: row.key == "spark").collect()   # doctest: +SKIP
>>> state.changes(10, 12).toDF()                       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint import CommitLog, StoreCommit
from checkpoint.state_store import EMPTY, Classes, StateStore
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.spark.encryption import require_encrypted_files
from dstreams.spark.state_version import StateVersion
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.store_maintenance import open_store, require_trusted_values
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.query_checkpoint import (
    read_checkpoint,
    recovered_of,
    time_of_batch,
)
from dstreams.structured.operators.aggregation_state import (
    AGGREGATION_STATE_FORMAT,
)
from dstreams.structured.operators.grouping import EVENT_TIME
from dstreams.structured.operators.time_windows import join_time, split_time


class StateRow(NamedTuple):
    """One key of a state.

    Args:
        key: the key. A window is its end in milliseconds, before the rest of the key. Event times
            that an operator adds to keys are in microseconds: before the key of a duplicate, and
            for the start of a session, after its key.
        value: the state of a group; the buffer of an aggregate, such as the number of a count; a
            dict of the buffers of several aggregates, by names such as ``Count()``; or other data
            of the operator.
        timeoutMs: time of the key's timer, milliseconds since the epoch; None without a timer.
        partition: number of the partition.
    """

    key: Any
    value: Any
    timeoutMs: int | None
    partition: int


class StateChange(NamedTuple):
    """The change of one key by a batch.

    Args:
        batchId: the batch.
        changeType: ``update`` for a new key or a new value, ``delete`` for a removed key.
        key: as of :class:`StateRow`.
        value: the new value, None for a removed key.
        partition: number of the partition.
    """

    batchId: int
    changeType: str
    key: Any
    value: Any
    partition: int


class OperatorMetadata(NamedTuple):
    """A stateful operator and its stored state.

    Args:
        operatorId: number in its plan.
        operatorName: kind of operator.
        uid: its identity.
        numPartitions: number of partitions of its state.
        minBatchId: oldest batch whose state is retained.
        maxBatchId: newest batch.
    """

    operatorId: int
    operatorName: str
    uid: str
    numPartitions: int
    minBatchId: int
    maxBatchId: int


class QueryStateReader:
    """Reads the state in a checkpoint, without affecting the query.

    Semantics: the data sources ``statestore`` and ``state-metadata`` of Spark.

    Raises:
        RestartError: the location has no checkpoint of a query.
    """

    def __init__(
        self,
        spark: SparkContext,
        location: str,
        conf: QueryConf,
        classes: Classes | None = None,
    ) -> None:
        self._spark = spark
        self._location = location
        found = read_checkpoint(location)
        last = None if found is None else found[1].last
        newest = None if found is None else recovered_of(found[1], location).committed
        if found is None or newest is None or last is None:
            raise RestartError(
                f"{location} has no committed batch of a query; use the checkpointLocation of one"
            )
        self._files, self._plan = found
        self._newest = newest
        self._last = last.batch_id
        self._first = self._last + 1 - len(self._plan.committed_ms)
        self._query_id = last.stream_id
        self._commits = CommitLog(self._files)
        restored = conf.restored(newest.conf)
        require_encrypted_files(spark, restored)
        files = require_trusted_values(self._files, restored)
        self._store = open_store(files, 0, restored, classes)

    def operators(self) -> list[OperatorMetadata]:
        """Return the stateful operators, in the order of the plan."""
        stores = {store.operator_uid: store for store in self._stores(self._last)}
        return [
            OperatorMetadata(
                number,
                facts["operatorName"],
                facts["uid"],
                len(stores[facts["uid"]].partitions),
                self._first,
                self._last,
            )
            for number, facts in enumerate(self._newest.operators)
        ]

    def rows(self, batchId: int | None = None, operatorId: int = 0) -> RDD[StateRow]:
        """Return all keys after a batch.

        Args:
            batchId: the batch, None for the newest.
            operatorId: number of the operator.

        Raises:
            InvalidStreamError: the batch is not retained, or the operator does not exist.
        """
        number = self._last if batchId is None else batchId
        version, shown = self._version(number, operatorId), self._shown(operatorId)
        return self._each_partition(version, _ReadKeys(self._store, version, shown))

    def changes(
        self, startBatchId: int, endBatchId: int | None = None, operatorId: int = 0
    ) -> RDD[StateChange]:
        """Return the changes of keys by batches.

        Args:
            startBatchId: the first batch; the state before it must also be retained.
            endBatchId: the last batch, None for the newest.
            operatorId: number of the operator.

        Raises:
            InvalidStreamError: a batch is not retained, or the operator does not exist.
        """
        last = self._last if endBatchId is None else endBatchId
        if last < startBatchId:
            raise InvalidStreamError(
                f"endBatchId of changes must be at least startBatchId, {startBatchId}, got {last}"
            )
        shown = self._shown(operatorId)
        found = []
        for number in range(startBatchId, last + 1):
            after = self._version(number, operatorId)
            empty = replace(after, version_ids=(EMPTY,) * len(after.version_ids))
            before = self._version(number - 1, operatorId) if number else empty
            if len(before.version_ids) != len(after.version_ids):
                raise InvalidStreamError(
                    f"batch {number} of {self._location} moved the state into other partitions: "
                    f"use batches up to {number - 1}, or after {number}"
                )
            task = _ReadChanges(self._store, before, after, number, shown)
            found.append(self._each_partition(after, task))
        return found[0] if len(found) == 1 else self._spark.union(found)

    def _each_partition(self, version: StateVersion, task: Any) -> RDD[Any]:
        count = len(version.version_ids)
        rows: RDD[Any] = PipelinedRDD(self._spark.parallelize(range(count), count), task)
        return rows

    def _version(self, batch_id: int, operator: int) -> StateVersion:
        uid = self._facts(operator)["uid"]
        for store in self._stores(batch_id):
            if store.operator_uid == uid:
                return StateVersion.committed(self._query_id, store)
        raise InvalidStreamError(
            f"batch {batch_id} of {self._location} has no state of operator {uid!r}"
        )

    def _stores(self, batch_id: int) -> tuple[StoreCommit, ...]:
        time_ms = time_of_batch(self._plan, batch_id)
        if time_ms is None:
            raise InvalidStreamError(
                f"{self._location} has no state of batch {batch_id}; use a batch from "
                f"{self._first} to {self._last}"
            )
        return self._commits.read(time_ms).stores

    def _shown(self, number: int) -> ShownState:
        version = int(self._newest.conf.get(AGGREGATION_STATE_FORMAT, "2"))
        return ShownState.of(self._facts(number), version)

    def _facts(self, operator: int) -> Any:
        known = self._newest.operators
        if not 0 <= operator < len(known):
            raise InvalidStreamError(
                f"operatorId must be below {len(known)}, the number of stateful operators, got "
                f"{operator}"
            )
        return known[operator]


_FOLDED = ("flatMapGroupsWithState", "stateStoreSave")
"""Operators whose rows begin with the state or buffer."""


@dataclass(frozen=True)
class ShownState:
    """Converts stored keys and rows of an operator for display.

    *stored_of* is the inverse of *key_of*, None if a key does not determine its stored key. *place*
    is the index of the displayed part of a row, None for all of it; *names* are those of several
    aggregates, whose buffers are in that part.
    """

    key_of: Callable[[Any], Any] | None
    place: int | None
    names: tuple[str, ...] = ()
    stored_of: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any], aggregation_format: int = 2) -> ShownState:
        """Return the conversion for an operator, from its description in begin records."""
        grouping = str(facts.get("grouping", ""))
        key_of: Callable[[Any], Any] | None = None
        stored_of: Callable[[Any], Any] | None = None
        if grouping == EVENT_TIME:
            key_of = itemgetter(1)
        elif grouping.startswith("windows of") or facts.get("withEventTime"):
            key_of, stored_of = split_time, _joined
        names = tuple(facts.get("aggregates", ()))
        several = names if 1 < len(names) == len(set(names)) else ()
        operator = facts["operatorName"]
        place = 0 if operator in _FOLDED else None
        if operator == "stateStoreSave" and aggregation_format == 1:
            place = 1  # behind the key
        return cls(key_of, place, several, stored_of)

    def key(self, stored: Any) -> Any:
        return stored if self.key_of is None else self.key_of(stored)

    def value(self, row: Any) -> Any:
        if self.place is None:
            return row
        shown = row[self.place]
        return dict(zip(self.names, shown, strict=True)) if self.names else shown


def _joined(key: Any) -> Any:
    """Return the stored key of a key that begins with a time; it may be the time alone."""
    has_time = isinstance(key, tuple) and len(key) == 2 and type(key[0]) is int
    return join_time(*key) if has_time else key


@dataclass(frozen=True)
class _ReadKeys:
    store: StateStore
    version: StateVersion
    shown: ShownState

    def __call__(self, split: int, _: Iterable[Any]) -> Iterator[StateRow]:
        settle_worker()
        with self.version.open(self.store, split) as reader:
            for key, row in reader.items():
                shown, value = self.shown.key(key), self.shown.value(row)
                yield StateRow(shown, value, reader.timeout_ms(key), split)


@dataclass(frozen=True)
class _ReadChanges:
    store: StateStore
    before: StateVersion
    after: StateVersion
    batch_id: int
    shown: ShownState

    def __call__(self, split: int, _: Iterable[Any]) -> Iterator[StateChange]:
        settle_worker()
        with (
            self.before.open(self.store, split) as old,
            self.after.open(self.store, split) as new,
        ):
            for key, row in new.items():
                if old.get(key) != row:
                    shown, value = self.shown.key(key), self.shown.value(row)
                    yield StateChange(self.batch_id, "update", shown, value, split)
            for key, _row in old.items():
                if new.get(key) is None:
                    yield StateChange(self.batch_id, "delete", self.shown.key(key), None, split)

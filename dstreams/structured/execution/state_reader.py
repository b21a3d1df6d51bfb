"""Looking into the state of a query, running or not: any batch that is kept, and what changed.

>>> state = session.readState("/checkpoints/counts")   # doctest: +SKIP
>>> state.operators()                                  # doctest: +SKIP
>>> state.rows().filter(lambda row: row.key == "spark").collect()   # doctest: +SKIP
>>> state.changes(10, 12).toDF()                       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from checkpoint import CommitLog, StoreCommit
from checkpoint.state_store import EMPTY, Classes, StateStore
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.spark.state_version import StateVersion
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.store_maintenance import open_store, require_encrypted, require_trusted_values
from dstreams.structured.conf import QueryConf
from dstreams.structured.execution.query_checkpoint import (
    read_checkpoint,
    recovered_of,
    time_of_batch,
)
from dstreams.structured.operators.grouping import EVENT_TIME
from dstreams.structured.operators.streaming_aggregation_state_manager import (
    AGGREGATION_STATE_FORMAT,
)
from dstreams.structured.operators.time_windows import split_time


class StateRow(NamedTuple):
    """One key of a state.

    Args:
        key: of a group; a window is its end in milliseconds, in front of the rest of the key. An
            event time that an operator has added to the key is in microseconds: in front of that
            of a duplicate, the start of a session behind its key.
        value: the state of a group; the buffer of an aggregate, such as the number of a count; of
            several aggregates a dict of them, by names such as ``Count()``; or what else the
            operator keeps.
        timeoutMs: when a timer is due, milliseconds since the epoch; None without one.
        partition: where it is.
    """

    key: Any
    value: Any
    timeoutMs: int | None
    partition: int


class StateChange(NamedTuple):
    """What a batch did to one key.

    Args:
        batchId: the batch.
        changeType: ``update`` for a key that is new or has another value, ``delete`` for one that
            is gone.
        key: as of :class:`StateRow`.
        value: the new value, None for a key that is gone.
        partition: where it is.
    """

    batchId: int
    changeType: str
    key: Any
    value: Any
    partition: int


class OperatorMetadata(NamedTuple):
    """What is known of a stateful operator.

    Args:
        operatorId: number in its plan.
        operatorName: what it is.
        uid: its identity.
        numPartitions: partitions of its state.
        minBatchId: oldest batch whose state is kept.
        maxBatchId: newest batch.
    """

    operatorId: int
    operatorName: str
    uid: str
    numPartitions: int
    minBatchId: int
    maxBatchId: int


class QueryStateReader:
    """The state in a checkpoint; reading it disturbs no query.

    Semantics: the data sources ``statestore`` and ``state-metadata`` of Spark.

    Args:
        spark: where tasks run.
        location: path or URL of the checkpoint.
        conf: where hosts keep replicas.
        classes: the classes of data that the program names, None for none.

    Raises:
        RestartError: there is no query's checkpoint.
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
                f"{location} has no committed batch of a query; give the checkpointLocation of one"
            )
        self._files, self._plan = found
        self._newest = newest
        self._last = last.batch_id
        self._first = self._last + 1 - len(self._plan.committed_ms)
        self._query_id = last.stream_id
        self._commits = CommitLog(self._files)
        restored = conf.restored(newest.conf)
        require_encrypted(spark, restored)
        files = require_trusted_values(self._files, restored)
        self._store = open_store(files, 0, restored, classes)

    def operators(self) -> list[OperatorMetadata]:
        """Return what is known of the stateful operators, in the order of the plan."""
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
            operatorId: of the operator.

        Raises:
            InvalidStreamError: the batch is not kept, or there is no such operator.
        """
        number = self._last if batchId is None else batchId
        version, shown = self._version(number, operatorId), self._shown(operatorId)
        return self._each_partition(version, _ReadKeys(self._store, version, shown))

    def changes(
        self, startBatchId: int, endBatchId: int | None = None, operatorId: int = 0
    ) -> RDD[StateChange]:
        """Return what batches did, key by key.

        Args:
            startBatchId: the first batch; the state before it has to be kept as well.
            endBatchId: the last batch, None for the newest.
            operatorId: of the operator.

        Raises:
            InvalidStreamError: a batch is not kept, or there is no such operator.
        """
        last = self._last if endBatchId is None else endBatchId
        if last < startBatchId:
            raise InvalidStreamError(
                f"changes go from batch {startBatchId} to {last}, which is backwards"
            )
        shown = self._shown(operatorId)
        found = []
        for number in range(startBatchId, last + 1):
            after = self._version(number, operatorId)
            before = self._version(number - 1, operatorId) if number else _emptied(after)
            task = _ReadChanges(self._store, before, after, number, shown)
            found.append(self._each_partition(after, task))
        return found[0] if len(found) == 1 else self._spark.union(found)

    def _each_partition(self, version: StateVersion, task: Any) -> RDD[Any]:
        count = len(version.version_ids)
        numbers = self._spark.parallelize(range(count), count)
        rows: RDD[Any] = PipelinedRDD(numbers, task)
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
                f"{self._location} keeps no state of batch {batch_id}; there are batches "
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
                f"there is no stateful operator {operator}; the query has {len(known)}"
            )
        return known[operator]


def _emptied(version: StateVersion) -> StateVersion:
    """Return the state before the first batch."""
    return replace(version, version_ids=(EMPTY,) * len(version.version_ids))


_FOLDED = ("flatMapGroupsWithState", "stateStoreSave")
"""Operators whose rows have a state and its timer, or a buffer alone."""


def _users_key(key: tuple[int | None, Any]) -> Any:
    return key[1]


@dataclass(frozen=True)
class ShownState:
    """How keys and rows of an operator are told of, as they are stored in another form.

    Attributes:
        key_of: makes the key that is told of the stored one; None where they are the same.
        place: which part of a stored row is shown; None for all of it.
        names: of the aggregates that have a buffer each in it, where there are several.
    """

    key_of: Callable[[Any], Any] | None
    place: int | None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any], aggregation_format: int = 2) -> ShownState:
        """Return that of an operator, by what begin records say of it."""
        grouping = str(facts.get("grouping", ""))
        key_of: Callable[[Any], Any] | None = None
        if grouping == EVENT_TIME:
            key_of = _users_key
        elif grouping.startswith("windows of") or facts.get("withEventTime"):
            key_of = split_time
        names = tuple(facts.get("aggregates", ()))
        several = names if 1 < len(names) == len(set(names)) else ()
        operator = facts["operatorName"]
        place = 0 if operator in _FOLDED else None
        if operator == "stateStoreSave" and aggregation_format == 1:
            place = 1  # behind the key
        return cls(key_of, place, several)

    def key(self, stored: Any) -> Any:
        return stored if self.key_of is None else self.key_of(stored)

    def value(self, row: Any) -> Any:
        if self.place is None:
            return row
        shown = row[self.place]
        return dict(zip(self.names, shown, strict=True)) if self.names else shown


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

"""``mapWithState``: its specification, and one call of the function for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from pyspark import RDD, SparkContext

from checkpoint.state_store import StateWriter
from dstreams.common.callables import call_site, describe, require_arity, require_picklable
from dstreams.common.durations import batch_datetime, require_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import shorten
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import unhashable_key
from dstreams.spark.state_version import StateMetrics
from dstreams.state.flat_map_groups import Pairs, timed
from dstreams.state.function_errors import failed_with_state, raise_refused
from dstreams.state.group_state import NO_TIMESTAMP, GroupStateTimeout, State, StoredState
from dstreams.state.input_processor import InputProcessor
from dstreams.state.state_classes import require_classes
from dstreams.state.state_manager import (
    BatchedStore,
    Rows,
    StateData,
    StateManager,
    StoredRows,
    TimerIndex,
)


@dataclass(frozen=True)
class MappingFunction:
    """The user's function in one of its two forms.

    With *takes_time* it is ``f(time, key, value, state)``, and results of None are not emitted.
    Otherwise it is ``f(key, value, state)``, and all results are. *classes* are more classes of
    states.
    """

    func: Callable[..., Any]
    takes_time: bool
    where: str
    classes: tuple[type, ...] = ()


@dataclass(frozen=True)
class TouchedStates(StateManager):
    """Rows ``(state, time it was last touched)``, and a timer *idle_ms* after that time.

    The batch touches every row that it puts, so the timer follows from the batch time.
    """

    batch_time_ms: int
    idle_ms: int | None

    @property
    def has_columns(self) -> bool:
        return False

    @property
    def due_ms(self) -> int | None:
        """The timer of a key that this batch touches."""
        return None if self.idle_ms is None else self.batch_time_ms + self.idle_ms

    def state_data(self, key: Any, row: Any) -> StateData:
        if row is None:
            return StateData(key, None, NO_TIMESTAMP)
        return StateData(
            key, row[0], NO_TIMESTAMP if self.idle_ms is None else row[1] + self.idle_ms
        )

    def put_state(self, store: Rows, key: Any, state: Any, timeout_ms: int) -> None:
        store.put(key, (state, self.batch_time_ms), self.due_ms)

    def timed_out_states(self, store: StoredRows, threshold_ms: int) -> Iterator[StateData]:
        """Iterate over the states that are due.

        The timers of an index are from the batch that touched the key, even if the idle time has
        changed since.
        """
        if not isinstance(store, TimerIndex):
            yield from super().timed_out_states(store, threshold_ms)
            return
        for key, row, due_ms in store.due(threshold_ms):
            yield StateData(key, row[0], due_ms)


@dataclass(frozen=True)
class MapRecords:
    """``mapWithState`` as one value: definition, task and parent operator of its processor.

    Each record is one call; keys that are due are called last: in every batch, or *at_checkpoints*
    in the batches at the stream's checkpoint interval, as in Spark.
    """

    mapping: MappingFunction
    batchTimestampMs: int = 0
    idle_ms: int | None = None
    at_checkpoints: bool = False
    expires_keys: bool = True

    eventTimeWatermark: ClassVar[None] = None
    keepTimer: ClassVar[bool] = False
    getKeyObj: ClassVar[None] = None
    getValueObj: ClassVar[None] = None
    getOutputRow: ClassVar[None] = None
    pair_key: ClassVar[None] = None

    @property
    def func(self) -> Callable[..., Any]:
        return self.mapping.func

    @property
    def where(self) -> str:
        return self.mapping.where

    @property
    def timeoutConf(self) -> GroupStateTimeout:
        timeouts = GroupStateTimeout
        return timeouts.NoTimeout if self.idle_ms is None else timeouts.ProcessingTimeTimeout

    @cached_property
    def stateManager(self) -> TouchedStates:
        return TouchedStates(self.batchTimestampMs, self.idle_ms)

    def in_batch(self, time_ms: int, watermark_ms: int, is_checkpoint: bool) -> MapRecords:
        """Return the task of a batch."""
        expires = is_checkpoint or not self.at_checkpoints
        return replace(self, batchTimestampMs=time_ms, expires_keys=expires)

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        processor = RecordProcessor(store, self, metrics)
        processor.put_initial_states(initial)
        yield from processor.process_new_data(records)
        if self.expires_keys:
            yield from timed(processor.process_timed_out_state(), metrics)


class RecordProcessor(InputProcessor):
    """Calls a function for each record, and for each key that got none for the idle time.

    A key is touched when its state is set and, with a timeout, whenever a record of it comes while
    it has a state.

    Semantics: MapWithStateRDDRecord (Spark Streaming 4.3).
    """

    operator: MapRecords

    def put_initial_states(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Store states as if this batch had touched them; a later one of a key wins."""
        for key, state in pairs:
            self._require_one(key, [state])
            self._store(self.store, key, state, NO_TIMESTAMP)

    def process_new_data(self, rows: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
        """Call the function for each record, in order, and yield its output."""
        mapping, time, manager = self.operator.mapping, self._time, self.operator.stateManager
        batched = BatchedStore(self.store, mapping.where)
        func, takes_time, put = mapping.func, mapping.takes_time, batched.put
        time_ms, due_ms = manager.batch_time_ms, manager.due_ms
        out = updated = removed = 0
        # Inlined, because this runs for each record.
        try:
            for key, value, stored in batched.of(rows):
                state: State[Any] = StoredState(None if stored is None else stored[0])
                try:
                    emitted = (
                        func(time, key, value, state) if takes_time else func(key, value, state)
                    )
                except (Exception, SystemExit) as error:
                    raise failed_with_state(mapping.where, key, error) from error
                if state.is_removed:
                    batched.remove(key)
                    removed += 1
                elif state.is_updated or (due_ms is not None and state.exists):
                    try:
                        put(key, (state._value, time_ms), due_ms)
                    except Exception as error:
                        raise_refused(mapping.where, "state of key", key, error)
                    updated += state.is_updated
                if emitted is not None or not takes_time:
                    out += 1
                    yield emitted
        finally:
            self.metrics.numOutputRows += out
            self.metrics.numUpdatedStateRows += updated
            self.metrics.numRemovedStateRows += removed

    def _call(
        self,
        groups: Iterable[tuple[StateData, Iterator[Any]]],
        *,
        rows: Rows | None = None,
        has_timed_out: bool = False,
    ) -> Iterator[Any]:
        """Call the function for each value of a key, or for the last time if it has timed out."""
        if not has_timed_out:
            calls = ((data.key, value) for data, values in groups for value in values)
            yield from self.process_new_data(calls)
            return
        mapping, time, metrics = self.operator.mapping, self._time, self.metrics
        func, takes_time, remove = mapping.func, mapping.takes_time, self.store.remove
        for (key, value, _), _ in groups:
            state: State[Any] = StoredState(value, is_timing_out=True)
            try:
                emitted = func(time, key, None, state) if takes_time else func(key, None, state)
            except (Exception, SystemExit) as error:
                raise failed_with_state(mapping.where, key, error) from error
            remove(key)
            metrics.numRemovedStateRows += 1
            if emitted is not None or not takes_time:
                metrics.numOutputRows += 1
                yield emitted

    @cached_property
    def _time(self) -> datetime:
        return batch_datetime(self.operator.batchTimestampMs)


_SHAPE = "f(key, value, state) or f(time, key, value, state)"


@dataclass(frozen=True)
class StateSpec:
    """A specification; each method returns a copy with one more option.

    >>> def count(key, value, state):
    ...     state.update((state.getOption or 0) + 1)
    ...     return key, state.get
    >>> spec = StateSpec.function(count).numPartitions(4).timeout(60)
    >>> spec.idle_ms
    60000

    Semantics: org.apache.spark.streaming.StateSpec (4.3).

    Args:
        mapping: the user's function.
        initial: pairs of key and state to start with.
        partitions: partitions of the state, None for the default parallelism.
        partition_func: ``key -> partition``, None for the stable hash.
        idle_ms: time after which a key without records is removed; None disables the timeout.
    """

    mapping: MappingFunction
    initial: RDD[Any] | Iterable[tuple[Any, Any]] | None = None
    partitions: int | None = None
    partition_func: Callable[[Any], int] | StablePartitioner | None = None
    idle_ms: int | None = None

    @classmethod
    def function(cls, mappingFunction: Callable[..., Any]) -> StateSpec:
        """Return a specification with the function that is called for each record.

        Args:
            mappingFunction: ``f(key, value, state)``, whose result is always emitted; or
                ``f(time, key, value, state)`` with the batch time as a datetime, whose result is
                emitted unless it is None. *state* is a :class:`~dstreams.State`. When a key times
                out, *value* is None and ``state.isTimingOut`` is true.

        Raises:
            InvalidStreamError: the function takes other arguments, or cannot be sent to workers.
        """
        operation = f"StateSpec.function at {call_site()}"
        count = require_arity(mappingFunction, (3, 4), operation, _SHAPE)
        require_picklable(mappingFunction, operation)
        where = f"mapping function {describe(mappingFunction)}"
        return cls(MappingFunction(mappingFunction, count == 4, where))

    def initialState(self, rdd: RDD[Any] | Iterable[tuple[Any, Any]]) -> StateSpec:
        """Return the specification with pairs of key and state to start with.

        Args:
            rdd: an RDD or a collection of pairs, each key once.

        Raises:
            InvalidStreamError: *rdd* is neither.
        """
        _require_collection(rdd, "initialState")
        return replace(self, initial=rdd)

    def stateClasses(self, *classes: type) -> StateSpec:
        """Return the specification with more classes of data for states.

        Classes that the function, its module and the imports of that mention are known without it;
        see :meth:`dstreams.StreamingContext.stateClasses`.

        Raises:
            InvalidStreamError: one of them is not a class of data.
        """
        more = require_classes(classes, "stateClasses")
        return replace(self, mapping=replace(self.mapping, classes=(*self.mapping.classes, *more)))

    def numPartitions(self, numPartitions: int) -> StateSpec:
        """Return the specification with a number of partitions and the stable hash."""
        StablePartitioner(numPartitions)
        return replace(self, partitions=numPartitions, partition_func=None)

    def partitioner(self, partitioner: StablePartitioner | Callable[[Any], int]) -> StateSpec:
        """Return the specification with a partitioner, or a function ``key -> int``."""
        if isinstance(partitioner, StablePartitioner):
            return replace(self, partitions=partitioner.numPartitions, partition_func=partitioner)
        require_arity(partitioner, (1,), "StateSpec.partitioner", "f(key) -> int")
        return replace(self, partition_func=partitioner)

    def timeout(self, idleDuration: float) -> StateSpec:
        """Return the specification with a timeout.

        Args:
            idleDuration: seconds that a key may be without a record; in the first batch after
                that, the function is called once more for the key, and the key is removed. If
                ``spark.dstreams.mapWithState.timeouts`` is ``checkpoint``, this happens in the
                first such batch at the stream's checkpoint interval, as in Spark.

        Raises:
            InvalidStreamError: *idleDuration* is not a positive duration.
        """
        return replace(self, idle_ms=require_duration_ms(idleDuration, "idleDuration"))


def initial_states(
    initial: RDD[Any] | Iterable[tuple[Any, Any]] | None,
    spark: SparkContext,
    operation: str,
    *,
    each_once: bool = True,
) -> RDD[Any] | None:
    """Return an RDD of the user's pairs of key and state, None without any."""
    if initial is None or isinstance(initial, RDD):
        return initial
    _require_collection(initial, f"initialRDD of {operation}")
    pairs = list(initial.items()) if isinstance(initial, dict) else list(initial)
    _require_states(pairs, f"initialRDD of {operation}", each_once=each_once)
    return spark.parallelize(pairs)


def _require_collection(value: object, name: str) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, RDD | Iterable):
        raise InvalidStreamError(
            f"{name} must be an RDD or a collection of (key, state) pairs, got "
            f"{type(value).__name__}"
        )


def _require_states(pairs: list[Any], where: str, *, each_once: bool) -> None:
    keys: set[Any] = set()
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidStreamError(
                f"{where} must hold (key, state) pairs, got {shorten(pair)} ({type(pair).__name__})"
            )
        try:
            is_known = pair[0] in keys
        except TypeError as error:
            raise InvalidStreamError(unhashable_key([pair[0]], where) or str(error)) from error
        if is_known and each_once:
            raise InvalidStreamError(
                f"{where} has the key {shorten(pair[0])} twice; a key has one state, so reduce the "
                "pairs by key first"
            )
        keys.add(pair[0])

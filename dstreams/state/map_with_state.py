"""``mapWithState``: one call of the function for each record. It needs neither Spark nor files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from checkpoint.state_store import StateWriter
from dstreams.common.durations import batch_datetime
from dstreams.spark.state_metrics import StateMetrics
from dstreams.state.flat_map_groups import Pairs, timed
from dstreams.state.function_errors import failed_with_state, raise_refused
from dstreams.state.group_state import NO_TIMESTAMP, GroupStateTimeout
from dstreams.state.input_processor import InputProcessor
from dstreams.state.keyed_state import State, StoredState
from dstreams.state.keyed_store import BatchedStore, Rows, StoredRows, TimerIndex
from dstreams.state.state_manager import StateData, StateManager


@dataclass(frozen=True)
class MappingFunction:
    """The user's function in one of its two forms.

    The result of ``f(time, key, value, state)`` is emitted unless it is None, that of ``f(key,
    value, state)`` always. *classes* are classes of states, in addition to those that the program
    mentions.
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
        if has_timed_out:
            return self._end(data for data, _ in groups)
        return self.process_new_data(
            (data.key, value) for data, values in groups for value in values
        )

    def _end(self, timed_out: Iterable[StateData]) -> Iterator[Any]:
        mapping, time, metrics = self.operator.mapping, self._time, self.metrics
        func, takes_time, remove = mapping.func, mapping.takes_time, self.store.remove
        for key, value, _ in timed_out:
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

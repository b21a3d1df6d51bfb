"""What ``mapWithState`` does in one partition of one batch, record by record.

It needs neither Spark nor files: any store and any iterator will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dstreams.durations import batch_datetime
from dstreams.errors import InvalidStreamError
from dstreams.rdd.blocks import shorten
from dstreams.rdd.state_metrics import StateMetrics
from dstreams.state.batched_store import BatchedStore
from dstreams.state.function_errors import failed_with_state, raise_refused
from dstreams.state.group_state_rows import KeyedStore, Rows
from dstreams.state.keyed_state import State, StoredState


@dataclass(frozen=True)
class MappingFunction:
    """The user's function in one of its two forms.

    ``f(time, key, value, state)`` emits what it returns unless that is None, ``f(key, value,
    state)`` always emits what it returns. *classes* are classes of data of states, beside those
    that the program names.
    """

    func: Callable[..., Any]
    takes_time: bool
    where: str
    classes: tuple[type, ...] = ()

    def __call__(self, time: datetime, key: Any, value: Any, state: State[Any]) -> list[Any]:
        """Call the function; returns what it emits, one thing or none."""
        try:
            if not self.takes_time:
                return [self.func(key, value, state)]
            emitted = self.func(time, key, value, state)
        except (Exception, SystemExit) as error:
            raise failed_with_state(self.where, key, error) from error
        return [] if emitted is None else [emitted]


@dataclass(frozen=True)
class RecordProcessor:
    """Calls a function for each record and each key that got none for *idle_ms*.

    The store has rows ``(state, time it was last touched)``. A key is touched when its state is set
    and, with a timeout, whenever a record of it comes while it has a state.

    Semantics: MapWithStateRDDRecord (Spark Streaming 4.3). There keys time out in the batches that
    write a checkpoint; here in every batch that is asked to look.
    """

    store: KeyedStore
    func: MappingFunction
    batch_time_ms: int
    idle_ms: int | None
    metrics: StateMetrics = field(default_factory=StateMetrics)

    def put_initial_states(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Store states as if this batch had touched them; a later one of a key wins."""
        for key, state in pairs:
            if state is None:
                raise InvalidStreamError(
                    f"{self.func.where}: the initial state of the key {shorten(key)} is None, "
                    "which is no state; leave the key out"
                )
            self._put(self.store, key, state)

    def process_records(self, records: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
        """Call the function for each record, in order; yields what it emits."""
        time = batch_datetime(self.batch_time_ms)
        batched = BatchedStore(self.store, self.func.where)
        func, takes_time, put = self.func.func, self.func.takes_time, batched.put
        time_ms, idle_ms = self.batch_time_ms, self.idle_ms
        due_ms = None if idle_ms is None else time_ms + idle_ms
        out = updated = removed = 0
        # Written out, without a call for each step: what is done here is done for each record.
        try:
            for key, value, stored in batched.of(records):
                state: State[Any] = StoredState(None if stored is None else stored[0])
                try:
                    emitted = (
                        func(time, key, value, state) if takes_time else func(key, value, state)
                    )
                except (Exception, SystemExit) as error:
                    raise failed_with_state(self.func.where, key, error) from error
                if state.is_removed:
                    batched.remove(key)
                    removed += 1
                elif state.is_updated or (due_ms is not None and state.exists):
                    try:
                        put(key, (state._value, time_ms), due_ms)
                    except Exception as error:
                        raise_refused(self.func.where, "state of key", key, error)
                    updated += state.is_updated
                if emitted is not None or not takes_time:
                    out += 1
                    yield emitted
        finally:
            self.metrics.numOutputRows += out
            self.metrics.numUpdatedStateRows += updated
            self.metrics.numRemovedStateRows += removed

    def process_timeouts(self) -> Iterator[Any]:
        """Call the function, without a value, for each key that is due, and remove it."""
        if self.idle_ms is None:
            return
        time = batch_datetime(self.batch_time_ms)
        for key, (value, _), _ in self.store.due(self.batch_time_ms):
            state = StoredState(value, is_timing_out=True)
            emitted = self.func(time, key, None, state)
            self.store.remove(key)
            self.metrics.numRemovedStateRows += 1
            self.metrics.numOutputRows += len(emitted)
            yield from emitted

    def _put(self, rows: Rows, key: Any, state: Any) -> None:
        due_ms = None if self.idle_ms is None else self.batch_time_ms + self.idle_ms
        try:
            rows.put(key, (state, self.batch_time_ms), due_ms)
        except Exception as error:
            raise_refused(self.func.where, "state of key", key, error)

"""Deletion of obsolete files, in the background, and eviction of obsolete RDDs after a batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dstreams.engine.batch import Batch
from dstreams.engine.committer import BatchCommitter
from dstreams.engine.inputs import BatchInputs, InputOffsets
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.plan import Plan
from dstreams.state.store_maintenance import delete_abandoned

logger = logging.getLogger(__name__)

_MAINTENANCE_BATCHES = 10
"""Batches between two rounds of state maintenance and file deletion."""

CleanUp = Callable[[], None]


class GarbageCollector:
    """Runs clean-ups: in the calling thread, or in the background after :meth:`use_thread`.

    Each clean-up includes the work of all before it, so only the newest waiting one is kept. A
    failure is logged; the next clean-up makes up for it. The thread ends when nothing waits.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._has_thread = False
        self._is_closed = False
        self._waiting: tuple[str, CleanUp] | None = None
        self._thread: threading.Thread | None = None  # noqa: TID251

    def use_thread(self) -> None:
        """Run clean-ups in the background from now on."""
        self._has_thread = True

    def post(self, after: str, clean_up: CleanUp) -> None:
        """Run a clean-up now or soon; never raises. *after* is its batch, for messages."""
        if not self._has_thread:
            _run(after, clean_up)
            return
        with self._changed:
            if self._is_closed:
                return
            self._waiting = (after, clean_up)
            if self._thread is None:
                self._thread = threading.Thread(  # noqa: TID251
                    target=self._work, name="dstreams-janitor", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Finish what waits; later clean-ups are ignored."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._thread = None
                    return
            _run(*waiting)


def _run(after: str, clean_up: CleanUp) -> None:
    try:
        clean_up()
    except Exception:
        logger.warning("cleaning up after %s failed", after, exc_info=True)


@dataclass(eq=False)
class BatchCleanUp:
    """Cleans up after the batches of a stream: memory at once, files in the garbage collector.

    Batches of the last *history_ms* are kept even if no restart needs them.
    """

    plan: Plan
    rdds: GeneratedRdds
    inputs: BatchInputs
    offsets: InputOffsets
    committer: BatchCommitter | None
    garbage_collector: GarbageCollector
    history_ms: int = 0
    _deleted_abandoned: bool = field(default=False, init=False)

    def after(self, batch: Batch) -> None:
        """Evict RDDs and delete files that no batch after this one needs; never raises."""
        if not self.rdds.is_current(batch.time_ms):
            return  # a state that could not be computed needs everything since its last batch
        after = f"the batch at {batch.time_ms} ms"
        try:
            self.rdds.evict(batch.time_ms)
            self.inputs.evict(batch)
            is_turn = (batch.batch_id + 1) % _MAINTENANCE_BATCHES == 0
            has_stores = is_turn and self.plan.in_state_store()
            written = self.rdds.states.maintain() if has_stores else 0
            if self.committer is not None:
                if written:
                    self.committer.checkpoint.expect_snapshots()
                if is_turn or self.committer.snapshots.is_at(batch.time_ms):
                    self._post(after, batch.time_ms, self.committer)
        except Exception:
            logger.warning("cleaning up after %s failed", after, exc_info=True)

    def _post(self, after: str, time_ms: int, committer: BatchCommitter) -> None:
        snapshots = committer.snapshots
        since = snapshots.required_since(time_ms)
        oldest_ms = snapshots.oldest_needed_ms(time_ms, since, self.history_ms)
        # A restart after any batch that is kept, as after a rewind, finds what its windows read.
        since = snapshots.required_since(oldest_ms)
        inputs = (since[node] for node in self.plan.inputs if node in since)
        oldest_input_ms = min(inputs, default=oldest_ms) + 1
        snapshots.discard_before(oldest_ms)
        retire = partial(self._retire, committer.checkpoint, oldest_ms, oldest_input_ms)
        self.garbage_collector.post(after, retire)

    def _retire(self, checkpoint: StreamCheckpoint, oldest_ms: int, oldest_input_ms: int) -> None:
        # The input of a batch stays as long as its record: a rewind may go back to it.
        checkpoint.retire(oldest_ms, self.offsets, oldest_input_ms)
        if not self._deleted_abandoned and self.plan.in_state_store():
            checkpoint.require_newest()
            delete_abandoned(checkpoint.files, checkpoint.epoch)
            self._deleted_abandoned = True

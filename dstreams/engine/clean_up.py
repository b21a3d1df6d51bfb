"""What is forgotten after a batch, and what is deleted of the checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from dstreams.engine.batch import Batch
from dstreams.engine.batch_inputs import BatchInputs
from dstreams.engine.committer import BatchCommitter
from dstreams.engine.garbage_collector import Janitor
from dstreams.engine.input_offsets import InputEnds
from dstreams.engine.transaction_log import TransactionLog
from dstreams.graph.history import History
from dstreams.graph.plan import Plan
from dstreams.state.store_maintenance import delete_abandoned

logger = logging.getLogger(__name__)

_MAINTENANCE_BATCHES = 10
"""How often is looked after what piles up: snapshots that are due, files that nobody needs."""


@dataclass(eq=False)
class BatchCleanUp:
    """Cleans up after batches: in memory at once, in the checkpoint by the janitor."""

    plan: Plan
    history: History
    inputs: BatchInputs
    ends: InputEnds
    committer: BatchCommitter | None
    janitor: Janitor
    _is_swept: bool = field(default=False, init=False)

    def after(self, batch: Batch) -> None:
        """Forget what no batch after this one needs, and let files be deleted; never raises."""
        if not self.history.is_current(batch.time_ms):
            return  # a state that could not be made yet needs all that came since the last one
        after = f"the batch at {batch.time_ms} ms"
        try:
            self._forget(batch)
            is_turn = (batch.batch_id + 1) % _MAINTENANCE_BATCHES == 0
            has_stores = is_turn and self.plan.in_state_store()
            written = self.history.states.maintain() if has_stores else 0
            if self.committer is not None:
                if written:
                    self.committer.log.expect_snapshots()
                if is_turn or self.committer.snapshots.is_at(batch.time_ms):
                    self._post(after, batch.time_ms, self.committer)
        except Exception:
            logger.warning("cleaning up after %s failed", after, exc_info=True)

    def _forget(self, batch: Batch) -> None:
        self.history.forget(batch.time_ms)
        for stream in batch.inputs:
            remembered = self.plan.nodes.get(stream)
            kept_ms = 0 if remembered is None else remembered.remember_ms
            self.inputs.forget(stream, batch.time_ms - kept_ms)

    def _post(self, after: str, time_ms: int, committer: BatchCommitter) -> None:
        snapshots = committer.snapshots
        lookback = snapshots.lookback(time_ms)
        oldest_ms = snapshots.oldest_needed_ms(time_ms, lookback)
        inputs = (lookback[node] for node in self.plan.inputs if node in lookback)
        oldest_input_ms = min(chain(inputs, [time_ms])) + 1
        snapshots.discard_before(oldest_ms)
        self.janitor.post(after, partial(self._retire, committer.log, oldest_ms, oldest_input_ms))

    def _retire(self, log: TransactionLog, oldest_ms: int, oldest_input_ms: int) -> None:
        """Delete what neither a restart nor a batch to come needs; on any thread.

        Raises:
            CheckpointError: something could not be read or deleted, or a newer driver has taken
                over; nothing was deleted then.
        """
        # What a batch has read is there as long as its record: a rewind may go there.
        log.retire(oldest_ms, self.ends, oldest_input_ms)
        if not self._is_swept and self.plan.in_state_store():
            log.require_newest()
            delete_abandoned(log.files, log.epoch)
            self._is_swept = True

"""The parts that run the batches of one stream, and their end.

The engine has no thread. A scheduler calls it from its threads, a notebook or a test steps it by
hand, and both see the same batch: ``engine.runner.run(engine.planner.plan_batch())``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dstreams.common.clock import Clock
from dstreams.engine.batch_inputs import BatchInputs
from dstreams.engine.clean_up import BatchCleanUp
from dstreams.engine.committer import BatchCommitter
from dstreams.engine.garbage_collector import Janitor
from dstreams.engine.input_offsets import InputEnds
from dstreams.engine.planner import BatchPlanner
from dstreams.engine.rate_control import RateControl
from dstreams.engine.rdd_snapshots import RddSnapshots
from dstreams.engine.restart_progress import RestartProgress
from dstreams.engine.runner import BatchRunner
from dstreams.engine.transaction_log import TransactionLog
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import EventHandler
from dstreams.sources.source import SourceReader, close_all

logger = logging.getLogger(__name__)


class Engine:
    """The parts that plan, run, commit and clean up after the batches of one frozen graph.

    *tell* is told of each step of each batch. Without a checkpoint directory *log* and the
    committer are None. *rates* limits the readers, None where nothing does. *restart* shows how far
    the engine of an earlier stream is, None for a new one.
    """

    def __init__(
        self,
        plan: Plan,
        history: History,
        readers: Mapping[InputDStream, SourceReader],
        log: TransactionLog | None,
        clock: Clock,
        tell: EventHandler,
        stream_id: str,
        *,
        stops_on_failure: bool,
        rates: RateControl | None = None,
        restart: RestartProgress | None = None,
    ) -> None:
        self.plan = plan
        self.history = history
        self.readers = readers
        self.rates = rates
        self.restart = restart
        self.stream_id = stream_id
        self.log = log
        self.clock = clock
        self.janitor = Janitor()
        self.committer: BatchCommitter | None = None
        if log is not None:
            snapshots = RddSnapshots(plan, history, log)
            self.committer = BatchCommitter(plan, history, readers, snapshots, log)
        uids = plan.input_uids
        self.ends = InputEnds(
            {uids[stream]: reader for stream, reader in readers.items()},
            {} if log is None else log.plan.begins,
            0 if log is None else log.plan.last_ms or 0,
        )
        inputs = BatchInputs(history, readers, uids, self.ends)
        self.planner = BatchPlanner(plan, readers, self.ends, log, clock, tell, stream_id)
        clean_up = BatchCleanUp(plan, history, inputs, self.ends, self.committer, self.janitor)
        self.runner = BatchRunner(
            plan,
            history,
            inputs,
            self.planner.begun,
            self.committer,
            clean_up,
            clock,
            tell,
            stops_on_failure,
        )

    def rate_limits(self) -> dict[str, float]:
        """Return how many records a second inputs may give, by their name; unlimited ones not."""
        limits = {} if self.rates is None else self.rates.limits
        names = {stream.stream_id: name for stream, name in self.planner.names.items()}
        return {names[stream_id]: rate for stream_id, rate in limits.copy().items()}

    def checkpoint_now(self) -> None:
        """Make the state of the last batch durable, due or not; called at the end.

        Raises:
            Exception: it could not be made, written or committed; nothing is lost by that.
        """
        if self.committer is not None:
            self.committer.commit_last_state()

    def checkpoint_at_end(self, *, is_abandoned: bool) -> None:
        """Make the state of the last batch durable where that is worth it; never raises.

        Without it the next start computes the state of a few batches again, as far as it can read
        their input. A stream that was abandoned has time for it only where it could not.
        """
        try:
            if not is_abandoned or (self.committer is not None and self.committer.loses_input()):
                self.checkpoint_now()
        except Exception as error:
            logger.warning("no checkpoint at the end, the next start takes longer: %s", error)

    def close(self, *, in_order: bool = False) -> None:
        """Close the sources and forget everything; says on disk that this driver has stopped.

        *in_order* says that somebody has stopped the streams, which have not failed.
        """
        if self.restart is not None:
            self.restart.close()
        self.janitor.close()
        close_all(self.readers.values())
        self.history.clear()
        if self.log is None:
            return
        if self.plan.in_state_store():
            self.history.states.close(in_order=in_order)
        self.log.release()

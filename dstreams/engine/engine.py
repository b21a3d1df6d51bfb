"""The parts that run the batches of one stream, and their end.

The engine has no thread. A scheduler calls it from its threads, a notebook or a test steps it, and
both run the same batch: ``engine.runner.run(engine.planner.plan_batch())``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dstreams.common.clock import Clock
from dstreams.common.durations import batch_datetime
from dstreams.engine.batch import Batch
from dstreams.engine.committer import BatchCommitter, RddSnapshots
from dstreams.engine.garbage_collector import BatchCleanUp, GarbageCollector
from dstreams.engine.inputs import BatchInputs, InputOffsets
from dstreams.engine.planner import BatchPlanner
from dstreams.engine.rate_control import RateControl
from dstreams.engine.stream_batch import BatchRunner
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import InputDStream
from dstreams.graph.plan import Plan
from dstreams.monitoring.events import EventHandler
from dstreams.sources.source import (
    SourceReader,
    close_all,
    loss_with_driver,
)

logger = logging.getLogger(__name__)

Records = Mapping[str, "int | None"]
"""Numbers of records by the name of their input; None if unknown."""


@dataclass(frozen=True)
class UnfinishedWork:
    """Batches that were planned and did not finish, and records, when a stream stopped.

    No later run can read the *lost* records; the next start reads those *again* from the
    checkpoint.
    """

    batch_times_ms: tuple[int, ...] = ()
    lost: Records = field(default_factory=dict)
    again: Records = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.batch_times_ms or self.lost or self.again)

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        times = [f"{time_ms} ms ({batch_datetime(time_ms)})" for time_ms in self.batch_times_ms]
        if len(times) == 1:
            yield f"the batch at {times[0]} did not run to its end"
        elif times:
            yield f"{len(times)} batches did not run to their end, from {times[0]} to {times[-1]}"
        if self.lost:
            yield f"lost: {_counts_text(self.lost)}"
        if self.again:
            yield f"run again by the next start: {_counts_text(self.again)}"


def _counts_text(records: Records) -> str:
    return ", ".join(
        f"records of {name} that were not counted"
        if count is None
        else f"{count} record{'' if count == 1 else 's'} of {name}"
        for name, count in records.items()
    )


class Engine:
    """Plans, runs, commits and cleans up after the batches of one frozen graph.

    *notify* receives every event. Without a checkpoint directory there is neither *checkpoint* nor
    committer.
    """

    def __init__(
        self,
        plan: Plan,
        rdds: GeneratedRdds,
        readers: Mapping[InputDStream, SourceReader],
        checkpoint: StreamCheckpoint | None,
        clock: Clock,
        notify: EventHandler,
        stream_id: str,
        *,
        stops_on_failure: bool,
        rates: RateControl | None = None,
        on_close: Callable[[], None] = lambda: None,
        history_ms: int = 0,
    ) -> None:
        self.plan = plan
        self.rdds = rdds
        self.readers = readers
        self.rates = rates
        self._on_close = on_close
        self.stream_id = stream_id
        self.checkpoint = checkpoint
        self.clock = clock
        self.garbage_collector = GarbageCollector()
        self.committer: BatchCommitter | None = None
        if checkpoint is not None:
            snapshots = RddSnapshots(plan, rdds, checkpoint)
            self.committer = BatchCommitter(plan, rdds, readers, snapshots, checkpoint)
        self.offsets = InputOffsets(
            {plan.input_uids[stream]: reader for stream, reader in readers.items()},
            {} if checkpoint is None else checkpoint.plan.begins,
            0 if checkpoint is None else checkpoint.plan.last_ms or 0,
        )
        inputs = BatchInputs(plan, rdds, readers, self.offsets)
        self.planner = BatchPlanner(
            plan, readers, self.offsets, checkpoint, clock, notify, stream_id
        )
        self.runner = BatchRunner(
            plan,
            rdds,
            inputs,
            self.planner.begun,
            self.committer,
            BatchCleanUp(
                plan,
                rdds,
                inputs,
                self.offsets,
                self.committer,
                self.garbage_collector,
                history_ms,
            ),
            clock,
            notify,
            stops_on_failure,
        )

    @property
    def has_graph(self) -> bool:
        """True if a restart finds the graph in the checkpoint."""
        return self.checkpoint is not None and self.checkpoint.graph is not None

    def rate_limits(self) -> dict[str, float]:
        """Return the rate limit of each input by name, in records per second."""
        limits = {} if self.rates is None else self.rates.limits
        names = {stream.stream_id: name for stream, name in self.planner.names.items()}
        return {names[stream_id]: rate for stream_id, rate in limits.copy().items()}

    def unfinished_work(self, batches: Sequence[Batch], *, resumable: bool) -> UnfinishedWork:
        """Return what is left behind when no batch runs any more; call before :meth:`close`.

        *batches* were planned and did not finish. *resumable* says whether a later start finds the
        graph.
        """
        resumable = resumable and all(
            stream.source.restart_refusal is None for stream in self.plan.inputs
        )
        lost: dict[str, int | None] = {}
        again: dict[str, int | None] = {}
        for stream, reader in self.readers.items():
            counts = [batch.inputs[stream].records for batch in batches if stream in batch.inputs]
            counts.append(reader.waiting_records())
            records = None if None in counts else sum(filter(None, counts))
            if records != 0:
                is_lost = not resumable or loss_with_driver(stream.source, reader) is not None
                (lost if is_lost else again)[self.planner.names[stream]] = records
        return UnfinishedWork(tuple(batch.time_ms for batch in batches), lost, again)

    def checkpoint_now(self) -> None:
        """Write a snapshot of the last batch's state, due or not; nothing is lost if that fails."""
        if self.committer is not None:
            self.committer.commit_last_state()

    def checkpoint_at_end(self, *, is_abandoned: bool) -> None:
        """Write a snapshot of the last batch's state if it is worth the time; never raises.

        Without it the next start computes a few batches again. If the stream *is_abandoned*, it is
        only written if the next start could not read the input of these batches.
        """
        try:
            if not is_abandoned or (self.committer is not None and self.committer.loses_input()):
                self.checkpoint_now()
        except Exception as error:
            logger.warning("no checkpoint at the end, the next start takes longer: %s", error)

    def close(self, *, in_order: bool = False) -> None:
        """Close the sources, drop all RDDs, and record that this driver has stopped.

        *in_order* says that the streams were stopped and have not failed.
        """
        self._on_close()
        self.garbage_collector.close()
        close_all(self.readers.values())
        self.rdds.release()
        self.rdds.clear()
        if self.checkpoint is None:
            return
        if self.plan.in_state_store():
            self.rdds.states.close(in_order=in_order)
        self.checkpoint.release()

"""Commits of a stream: the snapshots and versions of state that a batch made, in one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint import INPUTS_NEEDED_AFTER, OperatorSnapshot
from dstreams.engine.batch import Batch
from dstreams.engine.rdd_snapshots import RddSnapshot, RddSnapshots
from dstreams.engine.transaction_log import (
    BETWEEN_BATCHES,
    UNREAD,
    VERSIONS_MADE_AT,
    TransactionLog,
)
from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.sources.source import SourceReader, loss_with_driver
from dstreams.spark.state_version import NO_EVENT_TIME, StateVersion


@dataclass(eq=False)
class BatchCommitter:
    """Commits what batches made, and at the end what the last one left."""

    plan: Plan
    history: History
    readers: Mapping[InputDStream, SourceReader]
    snapshots: RddSnapshots
    log: TransactionLog
    _last: Batch | None = field(default=None, init=False)
    _inputs_needed_after: Mapping[str, int] = field(default_factory=dict, init=False)

    def commit(
        self,
        batch: Batch,
        snapshots: Mapping[Node, RddSnapshot],
        failed_outputs: Sequence[str],
        unread: Iterable[InputDStream],
    ) -> str:
        """Commit a batch and let the next one read its snapshots: lineage ends here.

        *failed_outputs*, by uid, did not run to their end; *unread* inputs could not be read. What
        is returned says that to people, empty where no output failed.

        Raises:
            CheckpointError: it could not be committed; the stream must stop.
        """
        time_ms = batch.time_ms
        made_at = {uid: made_ms for uid, (made_ms, _) in self._states(time_ms).items()}
        lookback = self.snapshots.committing(time_ms, snapshots, made_at)
        needed_after = {
            self.plan.input_uids[stream]: lookback.get(stream, time_ms)
            for stream, reader in self.readers.items()
            if reader.input_can_vanish
        }
        left_out = self._write(
            batch.batch_id,
            time_ms,
            snapshots,
            {
                UNREAD: sorted(self.plan.input_uids[stream] for stream in unread),
                INPUTS_NEEDED_AFTER: needed_after,
            },
            self.snapshots.without_state(time_ms),
            failed_outputs,
        )
        self._inputs_needed_after = needed_after
        self._last = batch
        self.snapshots.committed(time_ms, snapshots)
        return left_out

    def commit_between(
        self, batch_id: int, time_ms: int, snapshots: Mapping[Node, RddSnapshot] | None = None
    ) -> None:
        """Commit snapshots and the versions in the state store, at a time between two batches.

        A version that a batch has made which was cut off afterwards is left to that batch.

        Raises:
            CheckpointError: it could not be committed.
        """
        self.log.begin(batch_id, time_ms, {}, facts={BETWEEN_BATCHES: True}, beginning="")
        facts = {INPUTS_NEEDED_AFTER: self._inputs_needed_after}
        self._write(batch_id, time_ms, snapshots or {}, facts)

    def _write(
        self,
        batch_id: int,
        time_ms: int,
        snapshots: Mapping[Node, RddSnapshot],
        facts: Mapping[str, object],
        without_state: Iterable[Node] = (),
        failed_outputs: Sequence[str] = (),
    ) -> str:
        """Write a commit record, with the versions of stored state and facts that say anything."""
        states, nodes = self._states(time_ms), self.plan.nodes
        versions = {uid: version for uid, (_, version) in states.items()}
        made_at = {uid: made_ms for uid, (made_ms, _) in states.items()}
        return self.log.commit(
            batch_id,
            time_ms,
            snapshots={
                nodes[node].uid: OperatorSnapshot(one.files.first.partitioner, one.files.files)
                for node, one in snapshots.items()
            },
            stores=[version.commit for version in versions.values() if version.commits],
            watermarks={
                uid: version.watermark_ms
                for uid, version in versions.items()
                if version.watermark_ms != NO_EVENT_TIME
            },
            without_state=[nodes[node].uid for node in without_state],
            failed_outputs=failed_outputs,
            facts={
                name: said for name, said in {VERSIONS_MADE_AT: made_at, **facts}.items() if said
            },
        )

    def commit_last_state(self) -> None:
        """Make the state of the last batch durable, due or not.

        It is committed as of one millisecond after that batch, whose own record says less.

        Raises:
            Exception: it could not be made, written or committed; nothing is lost by that.
        """
        last = self._last
        if last is None or self.plan.batch_ms == 1 or not self.history.is_current(last.time_ms):
            return
        time_ms = last.time_ms + 1
        snapshots: dict[Node, RddSnapshot] = {}
        for node in self.plan.checkpointed():
            newest_ms = self.plan.turn_upto(node, last.time_ms)
            rdd = self.history.before(node, newest_ms + node.slide_ms)
            if self.snapshots.newest(node, last.time_ms) < newest_ms and rdd is not None:
                snapshots[node] = self.snapshots.write(node, time_ms, rdd)
        if snapshots:
            self.commit_between(last.batch_id, time_ms, snapshots)

    def loses_input(self) -> bool:
        """Whether a restart would lack input of committed batches, which no source has again."""
        if self._last is None:
            return False
        last_ms = self._last.time_ms
        lookback = self.snapshots.lookback(last_ms)
        return any(
            lookback.get(stream, last_ms) < last_ms
            and loss_with_driver(stream.source, reader) is not None
            for stream, reader in self.readers.items()
        )

    def _states(self, upto_ms: int) -> dict[str, tuple[int, StateVersion]]:
        """The newest version of each state in the state store up to a batch, and whose it is."""
        return self.history.states.newest(upto_ms) if self.plan.in_state_store() else {}

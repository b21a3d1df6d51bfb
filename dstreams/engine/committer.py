"""The commit of a batch: its snapshots and state versions, in one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint import INPUTS_NEEDED_AFTER, OperatorSnapshot
from dstreams.engine.batch import Batch
from dstreams.engine.rdd_snapshots import RddSnapshot, RddSnapshots
from dstreams.engine.stream_checkpoint import (
    BETWEEN_BATCHES,
    UNREAD,
    VERSIONS_MADE_AT,
    StreamCheckpoint,
)
from dstreams.graph.generated_rdds import GeneratedRdds
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan
from dstreams.sources.source import SourceReader, loss_with_driver
from dstreams.spark.state_version import NO_EVENT_TIME, StateVersion


@dataclass(eq=False)
class BatchCommitter:
    """Commits batches, and the last state when the stream stops."""

    plan: Plan
    rdds: GeneratedRdds
    readers: Mapping[InputDStream, SourceReader]
    snapshots: RddSnapshots
    checkpoint: StreamCheckpoint
    _last: Batch | None = field(default=None, init=False)
    _inputs_needed_after: Mapping[str, int] = field(default_factory=dict, init=False)

    def commit(
        self,
        batch: Batch,
        snapshots: Mapping[Node, RddSnapshot],
        failed_outputs: Sequence[str],
        unread: Iterable[InputDStream],
    ) -> str:
        """Commit a batch and replace RDDs by its snapshots, which cuts their lineage.

        *failed_outputs*, by uid, failed; *unread* inputs could not be read. Return a message about
        the failed outputs, empty if none failed.

        Raises:
            CheckpointError: it could not be committed; the stream must stop.
        """
        time_ms = batch.time_ms
        made_at = {uid: made_ms for uid, (made_ms, _) in self._states(time_ms).items()}
        since = self.snapshots.committing(time_ms, snapshots, made_at)
        needed_after = {
            self.plan.input_uids[stream]: since.get(stream, time_ms)
            for stream, reader in self.readers.items()
            if reader.input_can_vanish
        }
        message = self._write(
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
        return message

    def commit_between(
        self, batch_id: int, time_ms: int, snapshots: Mapping[Node, RddSnapshot] | None = None
    ) -> None:
        """Commit snapshots and the versions in the state store, at a time between two batches.

        Versions of a batch that was cancelled are not committed.

        Raises:
            CheckpointError: it could not be committed.
        """
        self.checkpoint.begin(batch_id, time_ms, {}, facts={BETWEEN_BATCHES: True}, token="")
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
        """Write a commit record, with the versions of stored state and non-empty facts."""
        states, nodes = self._states(time_ms), self.plan.nodes
        versions = {uid: version for uid, (_, version) in states.items()}
        made_at = {uid: made_ms for uid, (made_ms, _) in states.items()}
        return self.checkpoint.commit(
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
        """Write a snapshot of the last batch's state, and commit it one millisecond later.

        Raises:
            Exception: it could not be computed, written or committed; nothing is lost.
        """
        last = self._last
        if last is None or self.plan.batch_ms == 1 or not self.rdds.is_current(last.time_ms):
            return
        time_ms = last.time_ms + 1
        snapshots: dict[Node, RddSnapshot] = {}
        for node in self.plan.checkpointed():
            newest_ms = self.plan.turn_upto(node, last.time_ms)
            rdd = self.rdds.before(node, newest_ms + node.slide_ms)
            if self.snapshots.newest(node, last.time_ms) < newest_ms and rdd is not None:
                snapshots[node] = self.snapshots.write(node, time_ms, rdd)
        if snapshots:
            self.commit_between(last.batch_id, time_ms, snapshots)

    def loses_input(self) -> bool:
        """Return whether a restart would need input that its source cannot read again."""
        if self._last is None:
            return False
        last_ms = self._last.time_ms
        since = self.snapshots.required_since(last_ms)
        return any(
            since.get(stream, last_ms) < last_ms
            and loss_with_driver(stream.source, reader) is not None
            for stream, reader in self.readers.items()
        )

    def _states(self, upto_ms: int) -> dict[str, tuple[int, StateVersion]]:
        """Return the newest version of each stored state up to a batch, with its batch time."""
        return self.rdds.states.newest(upto_ms) if self.plan.in_state_store() else {}

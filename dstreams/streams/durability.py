"""What a stream keeps on disk: what each batch reads, what it made, and which of it counts."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from checkpoint import (
    INPUTS_NEEDED_AFTER,
    BatchLog,
    BeginRecord,
    CommitLog,
    CommitRecord,
    Files,
    InputSnapshots,
    OperatorSnapshot,
    OwnedStream,
    RecordId,
)
from checkpoint.state_store import StreamRetention
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.kernel.record_facts import UNREAD, VERSIONS_MADE_AT
from dstreams.rdd.rdd_files import WrittenRdd
from dstreams.rdd.stable_hash import STABLE_HASH_NAME
from dstreams.rdd.state_version import NO_EVENT_TIME, StateVersion
from dstreams.sources.source import RetiringReader

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchCommit:
    """What a batch made.

    Args:
        batch_id: its number.
        time_ms: its time.
        written: the snapshots of RDDs that it wrote.
        states: the newest version of each state in the state store, by uid, and the time of the
            batch that made it.
        without_state: streams that have no state at all after it.
        failed_outputs: uids of the outputs that failed or did not run.
        unread: uids of the inputs that could not be read.
        inputs_needed_after: for each input, by uid, the time after which a restart may read it
            again.
    """

    batch_id: int
    time_ms: int
    written: Mapping[Node, WrittenRdd]
    states: Mapping[str, tuple[int, StateVersion]]
    without_state: Sequence[Node] = ()
    failed_outputs: Sequence[str] = ()
    unread: Sequence[str] = ()
    inputs_needed_after: Mapping[str, int] = field(default_factory=dict)


class StreamDurability:
    """Begins and commits the batches of a plan, and retires their records.

    The order is what makes a crash harmless: a batch is begun before anything of it is read; its
    tasks sync their files under names that no other attempt uses; then one commit record names the
    files of all operators, created only if there is none; only then is the state RDD replaced by
    one that reads the files. What no record names does not exist.

    Args:
        owned: the stream in the hands of this driver.
        stream_id: id of the stream, in every file.
        plan: the frozen graph.

    Attributes:
        graph: the snapshot of the graph that batches begin with, None for none.
        inputs: what batches have read.
        uids: of the streams with state.
        commits: the commit records.
        retention: deletes what nobody needs any more.
    """

    def __init__(self, owned: OwnedStream, stream_id: str, plan: Plan) -> None:
        self.files: Files = owned.lease.files
        self.owned = owned
        self._stream_id = stream_id
        self._plan = plan
        # Of others, which were removed, neither a record nor a file is kept.
        with_state = (*plan.checkpointed(), *plan.in_state_store())
        self.uids = frozenset(plan.nodes[node].uid for node in with_state)
        self.commits: CommitLog = owned.commits
        self.commits.operators = self.uids
        self._begins: BatchLog = owned.begins
        self.retention = StreamRetention(owned)
        self.graph: RecordId | None = None
        self.inputs = InputSnapshots(owned.lease, stream_id, owned.plan)

    def begin(
        self,
        batch_id: int,
        time_ms: int,
        inputs: Mapping[str, object],
        facts: Mapping[str, object],
        beginning: str = "",
    ) -> None:
        """Write down what a batch is going to read, by the uid of each input.

        Args:
            batch_id: its number.
            time_ms: its time.
            inputs: what each input says of the batch.
            facts: as in :class:`checkpoint.BeginRecord`.
            beginning: as in :class:`checkpoint.BeginRecord`.

        Raises:
            CheckpointError: it could not be written, or a newer driver has taken over.
        """
        record = BeginRecord(
            self._stream_id,
            batch_id,
            time_ms,
            self.owned.epoch,
            inputs,
            {},
            facts,
            self.inputs.newest,
            self.graph,
            beginning=beginning,
        )
        self._begins.begin(record)

    def commit(self, made: BatchCommit) -> None:
        """Write the record that makes a batch count.

        Raises:
            CheckpointError: it could not be written, or a newer driver has taken over.
        """
        uids = {node: plan.uid for node, plan in self._plan.nodes.items()}
        times = {uid: time_ms for uid, (time_ms, _) in made.states.items()}
        record = CommitRecord(
            stream_id=self._stream_id,
            batch_id=made.batch_id,
            batch_time_ms=made.time_ms,
            epoch=self.owned.epoch,
            snapshots={
                uids[node]: OperatorSnapshot(rdd.first.partitioner, rdd.files)
                for node, rdd in made.written.items()
            },
            writer={
                "python": platform.python_version(),
                "hash": STABLE_HASH_NAME,
                **({VERSIONS_MADE_AT: json.dumps(times)} if times else {}),
            },
            stores=tuple(version.commit for _, version in made.states.values() if version.commits),
            watermarks={
                uid: version.watermark_ms
                for uid, (_, version) in made.states.items()
                if version.watermark_ms != NO_EVENT_TIME
            },
            failed_outputs=tuple(made.failed_outputs),
            without_state=tuple(uids[node] for node in made.without_state),
            facts=_facts(made),
        )
        committed = self.commits.commit(record)
        if made.failed_outputs:
            self._tell_failed(committed)

    def _tell_failed(self, record: CommitRecord) -> None:
        """Log which outputs a batch was committed without, and how to run them again."""
        remedy = (
            "no batch is before it to go back to, so only a new checkpoint directory has it again"
        )
        if record.previous is not None:
            remedy = (
                "to run it again, with the same input, all of its outputs and all batches after "
                f"it: stop the stream, python -m checkpoint rewind {self.files.url} --to "
                f"{record.previous.time_ms}, as long as clean-up has left that batch, and start "
                "it again"
            )
        logger.error(
            "outputs %s of the batch at %d ms failed, and the batch is committed without them: no "
            "restart runs them again by itself; %s",
            ", ".join(record.failed_outputs),
            record.batch_time_ms,
            remedy,
        )

    def begin_inputs(self, readers: Mapping[str, RetiringReader]) -> None:
        """Write down what inputs begin with of which no earlier run has written anything.

        Args:
            readers: of the inputs that have to know what earlier batches have read, by uid.

        Raises:
            CheckpointError: what earlier runs have read is lost, or it could not be written.
        """
        last_ms = self.owned.plan.last_ms
        upto_ms = self._plan.zero_ms if last_ms is None else last_ms
        self.inputs.begin(readers, upto_ms, partial(_snapshot, readers))

    def retire(
        self,
        oldest_needed_ms: int,
        oldest_input_ms: int,
        readers: Mapping[str, RetiringReader],
    ) -> None:
        """Delete what neither a restart nor a batch to come can need; on any thread.

        Args:
            oldest_needed_ms: the earliest batch whose state may be wanted.
            oldest_input_ms: the earliest batch whose input may be.
            readers: of the inputs that have to know what earlier batches have read, by uid.

        Raises:
            CheckpointError: something could not be read or deleted, or a newer driver has taken
                over; nothing was deleted then.
        """

        def retire_inputs(upto_ms: int, batches: int) -> RecordId | None:
            size = sum(reader.snapshot_size() or 0 for reader in readers.values())
            snapshot = self.inputs.retire(upto_ms, batches, size, partial(_snapshot, readers))
            if snapshot is not None:
                for reader in readers.values():
                    reader.retire(snapshot.time_ms)
            return snapshot

        left = self.retention.retire(
            oldest_needed_ms, oldest_input_ms, retire_inputs if readers else None
        )
        for name in left:
            logger.warning("%s could not be deleted; it is tried again later", name)


def _snapshot(
    readers: Mapping[str, RetiringReader], upto_ms: int
) -> dict[str, Mapping[str, object]]:
    return {uid: reader.snapshot(upto_ms) for uid, reader in readers.items()}


def _facts(made: BatchCommit) -> dict[str, object]:
    facts: dict[str, object] = {}
    if made.unread:
        facts[UNREAD] = list(made.unread)
    if made.inputs_needed_after:
        facts[INPUTS_NEEDED_AFTER] = dict(made.inputs_needed_after)
    return facts

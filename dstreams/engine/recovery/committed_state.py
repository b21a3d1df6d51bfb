"""What the commit records of an earlier run say of its states and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint import CommitRecord, OperatorSnapshot, RecoveryPlan, StoreCommit
from dstreams.engine.recovery.restore_point import RestorePoint
from dstreams.engine.transaction_log import UNREAD, VERSIONS_MADE_AT
from dstreams.graph.lookback import lookback
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan

Snapshots = dict[str, dict[int, tuple[int, OperatorSnapshot | None]]]
"""By uid and batch time: the time that the files of a state RDD have, and the files; None where
the stream had no state."""

Versions = dict[str, dict[int, tuple[CommitRecord, StoreCommit]]]
"""By uid and batch time: a version in the state store, and the record that names it."""


@dataclass(frozen=True)
class CommittedState:
    """What a restart can stand on.

    Args:
        last_ms: time of the last committed batch.
        began: streams that were not there from the first batch on, and after which they began.
        snapshots: files of state RDDs.
        versions: versions in the state store.
        unread: inputs, by uid and batch time, that batches could not read and did without.
        lookback: what :func:`dstreams.graph.lookback.lookback` says of the last batch.
    """

    last_ms: int
    began: Mapping[Node, int]
    snapshots: Snapshots
    versions: Versions
    unread: frozenset[tuple[object, int]]
    lookback: Mapping[Node, int]

    def is_added(self, node: Node) -> bool:
        """Whether no run before this one had that stream."""
        return self.began.get(node) == self.last_ms


def read_committed_state(
    plan: Plan, recovery: RecoveryPlan, records: Iterable[CommitRecord], point: RestorePoint
) -> CommittedState:
    """Read the commit records that count, oldest first, for the graph of this run."""
    last_ms = last_batch_ms(recovery, plan)
    began = point.began_after(last_ms)
    snapshots: Snapshots = {}
    versions: Versions = {}
    unread: set[tuple[object, int]] = set()
    slides = {planned.uid: node.slide_ms for node, planned in plan.nodes.items()}
    for record in records:
        # A snapshot between two batches is that of the first.
        since_ms = record.batch_time_ms - plan.zero_ms
        for uid in (*record.snapshots, *record.without_state):
            time_ms = record.batch_time_ms - since_ms % slides.get(uid, plan.batch_ms)
            commit = record.snapshots.get(uid)
            snapshots.setdefault(uid, {})[time_ms] = record.batch_time_ms, commit
        facts: Mapping[str, Any] = record.facts
        made_at = facts.get(VERSIONS_MADE_AT, {})
        for store in record.stores:
            uid = store.operator_uid
            versions.setdefault(uid, {})[made_at[uid]] = record, store
        uids = record.facts.get(UNREAD)
        if isinstance(uids, list):
            unread.update((uid, record.batch_time_ms) for uid in uids)
    for uid, after_ms in began.items():  # what is older is of another stream that had this uid
        for times in (snapshots.get(uid, {}), versions.get(uid, {})):
            for time_ms in [time_ms for time_ms in times if time_ms <= after_ms]:
                del times[time_ms]
    begun = {
        node: began[planned.uid] for node, planned in plan.nodes.items() if planned.uid in began
    }

    def newest(node: Node, upto_ms: int) -> int:
        if begun.get(node) == last_ms:
            return last_ms
        uid = plan.nodes[node].uid
        times = (*snapshots.get(uid, ()), *versions.get(uid, ()))
        begun_ms = begun.get(node, plan.zero_ms)
        return max((time_ms for time_ms in times if time_ms <= upto_ms), default=begun_ms)

    return CommittedState(
        last_ms,
        begun,
        snapshots,
        versions,
        frozenset(unread),
        lookback(plan, last_ms, newest, begun),
    )


def last_batch_ms(recovery: RecoveryPlan, plan: Plan) -> int:
    """Return the time of the last committed batch, zero time for none.

    A record between two batches is that of the first of them.
    """
    return plan.zero_ms if recovery.last_ms is None else plan.batch_upto(recovery.last_ms)

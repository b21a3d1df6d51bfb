"""What the records of an earlier run say: the versions of its states, and what it did not read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpoint import CommitRecord, OperatorSnapshot, StoreCommit
from dstreams.graph.plan import Plan
from dstreams.kernel.record_facts import UNREAD, VERSIONS_MADE_AT


@dataclass
class Restorable:
    """What the commit records of an earlier run have for each stream, by uid and batch time.

    Args:
        snapshots: files of a state RDD, None where it had none, and the time that the files have.
        versions: versions in the state store.
    """

    snapshots: dict[str, dict[int, tuple[int, OperatorSnapshot | None]]] = field(
        default_factory=dict
    )
    versions: dict[str, dict[int, tuple[CommitRecord, StoreCommit]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, records: Iterable[CommitRecord], plan: Plan, began: Mapping[str, int]
    ) -> Restorable:
        """Read *records*, oldest first. A snapshot between two batches is that of the first.

        Args:
            records: the commit records that count.
            plan: the graph.
            began: after which batch streams began, by uid: what is older is of another stream, that
                had this uid before.
        """
        found = cls()
        slides = {planned.uid: node.slide_ms for node, planned in plan.nodes.items()}
        for record in records:
            since_ms = record.batch_time_ms - plan.zero_ms
            for uid in (*record.snapshots, *record.without_state):
                time_ms = record.batch_time_ms - since_ms % slides.get(uid, plan.batch_ms)
                commit = record.snapshots.get(uid)
                found.snapshots.setdefault(uid, {})[time_ms] = record.batch_time_ms, commit
            upto: dict[str, int] = json.loads(record.writer.get(VERSIONS_MADE_AT, "{}"))
            for store in record.stores:
                found.versions.setdefault(store.operator_uid, {})[upto[store.operator_uid]] = (
                    record,
                    store,
                )
        for uid, after_ms in began.items():
            for times in (found.snapshots.get(uid, {}), found.versions.get(uid, {})):
                for time_ms in [time_ms for time_ms in times if time_ms <= after_ms]:
                    del times[time_ms]
        return found

    def newest(self, uid: str, upto_ms: int, begun_ms: int) -> int:
        """Return the newest time up to *upto_ms* at which there is a state.

        Args:
            uid: the stream.
            upto_ms: the time.
            begun_ms: what to return where there is none.
        """
        times = (*self.snapshots.get(uid, ()), *self.versions.get(uid, ()))
        return max((time_ms for time_ms in times if time_ms <= upto_ms), default=begun_ms)


def unread_inputs(records: Iterable[CommitRecord]) -> set[tuple[object, int]]:
    """Return the inputs, by uid and batch time, that batches could not read and did without."""
    found: set[tuple[object, int]] = set()
    for record in records:
        uids = record.facts.get(UNREAD)
        if isinstance(uids, list):
            found.update((uid, record.batch_time_ms) for uid in uids)
    return found

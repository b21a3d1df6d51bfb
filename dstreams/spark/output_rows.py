"""The output rows of a stateful batch, and the check that rows and state come of one attempt.

Rows are kept in memory and on the local disk. With an executor they are lost, and Spark computes
them again; a function that is not deterministic may then emit rows that do not fit the state. So a
reader checks that rows are of the attempt that was committed, or equal to its rows.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from checkpoint import PartitionCommit
from checkpoint.state_store import VersionId
from dstreams.spark.blocks import Block
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.worker_gc import settle_worker

MARK = b"\xff"
"""What a frame begins with that is no block; none begins so."""


class RowsChangedError(RuntimeError):
    """Rows that were lost came out otherwise when they were computed again."""


class AttemptRows(NamedTuple):
    """The rows of one attempt: the state that it made, and a digest of its rows."""

    version_id: VersionId
    digest: bytes


@dataclass(frozen=True)
class PartitionResult:
    """What a task tells the driver of its partition; it also stands before the rows."""

    split: int
    committed: PartitionCommit
    metrics: StateMetrics
    rows: AttemptRows

    def to_frame(self) -> bytes:
        return MARK + pickle.dumps(self)

    @classmethod
    def from_frame(cls, frame: bytes) -> PartitionResult:
        made: PartitionResult = pickle.loads(frame[len(MARK) :])
        return made


@dataclass(frozen=True)
class ReadOutputRows:
    """Task: the frames of a partition -> its rows.

    *attempts* has the committed attempt of each partition; it is empty before the commit.
    """

    operator_uid: str
    attempts: list[AttemptRows]

    def __call__(self, split: int, frames: Iterable[bytes]) -> Iterator[Any]:
        settle_worker()
        rest = iter(frames)
        try:
            made = PartitionResult.from_frame(next(rest))
            for frame in self._that_count(made, rest):
                yield from Block(frame).values()
        finally:
            deque(rest, maxlen=0)  # a worker whose input is left unread is used no more

    def _that_count(self, made: PartitionResult, frames: Iterator[bytes]) -> Iterator[bytes]:
        if not self.attempts:
            return frames
        counts = self.attempts[made.split]
        if made.rows.version_id == counts.version_id or made.rows.digest == counts.digest:
            return frames
        raise RowsChangedError(
            f"rows of {self.operator_uid} in partition {made.split} were lost and computed "
            "again, and came out otherwise than those that its state was made with: its function "
            "does not return the same for the same input; make it do so: what is drawn or looked "
            "up belongs into the records, before the state"
        )

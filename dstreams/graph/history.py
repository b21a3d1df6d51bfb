"""The RDDs that were made, by stream and batch time: the only memory of the engine."""

from __future__ import annotations

from contextlib import suppress
from operator import itemgetter
from threading import RLock
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.graph.state_store_dstream import StateStoreDStream
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.spark.state_version import StateVersion
from dstreams.state.state_versions import StateVersions

LONGEST_LINEAGE = 10
"""Batches of state that one job may make up for: each takes a Python worker for each of its tasks,
all at the same time, because a state RDD is computed inside the one that is built on it."""


class History:
    """Makes each RDD once, persists it as planned, and forgets it when nobody can ask any more.

    "No RDD" is not remembered, except for what was fed and for streams that ask for their
    own past: asking again asks the node again.
    """

    def __init__(
        self,
        plan: Plan,
        spark: SparkContext,
        *,
        unpersist: bool = True,
        states: StateVersions | None = None,
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._unpersist = unpersist
        self._states = states
        self._rdds: dict[Node, dict[int, RDD[Any] | None]] = {node: {} for node in plan.nodes}
        self._begin_ms: dict[Node, int] = {}
        self._gaps: list[tuple[int, int]] = []
        self._resumed_ms: int | None = None
        self._withheld: dict[tuple[Node, int], Exception] = {}
        self._failed: tuple[Exception, Node] | None = None
        self._persisted_here: set[tuple[Node, RDD[Any]]] = set()
        self._lock = RLock()

    @property
    def spark(self) -> SparkContext:
        """The context RDDs are made in."""
        return self._spark

    @property
    def states(self) -> StateVersions:
        """The versions of the state in the state store."""
        if self._states is None:
            raise LookupError("no stream of this graph has state in the state store")
        return self._states

    def state_before(
        self, node: Node, time_ms: int, partitioner: StablePartitioner
    ) -> StateVersion:
        """The version of the state of *node* in the state store that a batch begins with."""
        uid, before_ms = self._plan.nodes[node].uid, time_ms - node.slide_ms
        version = self.states.at(uid, before_ms)
        if version is not None:
            return version
        if before_ms > self._plan.zero_ms:
            raise LookupError(
                f"the state of {node.operation} at {before_ms} ms was not made, so that of "
                f"{time_ms} ms cannot be"
            )
        return self.states.empty(uid, partitioner)

    def state_pairs(
        self, node: Node, time_ms: int, partitioner: StablePartitioner
    ) -> RDD[tuple[Any, Any]]:
        """All keys of the state of *node* in the state store, as the batch at a time left it."""
        return self.states.pairs(self._plan.nodes[node].uid, time_ms, partitioner)

    def make_state(self, node: StateStoreDStream, upto_ms: int) -> None:
        """Make the versions of a state up to a batch, and their rows: a job each, oldest first.

        Rows of restored versions are made again, but for the oldest: the others stand on it. The
        runner of a batch calls this, parents first, before anything asks for the rows.
        """
        uid, failure = self._plan.nodes[node].uid, None
        missing = self._missing(node, uid, upto_ms)
        for place, time_ms in enumerate(missing):
            try:
                rows = self.states.make(uid, time_ms, node.update(time_ms, self))
            except Exception as error:
                failure = failure or error
                # What stands on a version that is not there cannot be made either.
                is_last = self.states.at(uid, time_ms) is None
                for lost_ms in missing[place : None if is_last else place + 1]:
                    self.withhold(node, lost_ms, error)
                if is_last:
                    break
            else:
                self.feed(node, time_ms, rows)
        if failure is not None:
            raise failure

    def _missing(self, node: Node, uid: str, upto_ms: int) -> list[int]:
        """Return the batches up to a time that have no rows of a state in the state store."""
        known = {*self.times(node), *self.states.batches(uid)}
        begun_ms = max(self._plan.zero_ms, self._begin_ms.get(node, 0))
        first_ms = min(known, default=begun_ms) + node.slide_ms
        return [
            time_ms
            for time_ms in range(first_ms, upto_ms + 1, node.slide_ms)
            if time_ms not in self._rdds[node] and not self._is_left_out(node, time_ms)
        ]

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        """Whether a batch time is a multiple of the stream's checkpoint interval."""
        return self._plan.checkpoint_due(node, time_ms)

    def feed(self, node: Node, time_ms: int, rdd: RDD[Any] | None) -> None:
        """Set what a stream has for a batch; input streams that nobody uses are ignored."""
        with self._lock:
            self._withheld.pop((node, time_ms), None)
            if node in self._rdds:
                self._rdds[node][time_ms] = None if rdd is None else self._persisted(node, rdd)

    def withhold(self, node: Node, time_ms: int, error: Exception) -> None:
        """Set why nobody can have the RDD of a batch; :meth:`feed` takes that back."""
        with self._lock:
            if node in self._rdds:
                self._withheld[node, time_ms] = error

    def restore(self, node: Node, time_ms: int, rdd: RDD[Any] | None) -> None:
        """Set the RDD of a stream in a batch of an earlier run, None for no RDD."""
        with self._lock:
            self._rdds[node][time_ms] = None if rdd is None else self._persisted(node, rdd)

    def begin(self, node: Node, after_ms: int) -> None:
        """Note that a stream had nothing up to a time of an earlier run, which did not know it."""
        with self._lock:
            self._begin_ms[node] = after_ms

    def leave_out(self, after_ms: int, time_ms: int) -> None:
        """Note that no batch ran after *after_ms* and before *time_ms*: nobody has an RDD there.

        A stream that fires less often than there are batches has one, its first after *after_ms*,
        if some of these were to be in it. What a stream stands on after the gap is to be restored.
        """
        with self._lock:
            if (after_ms, time_ms) not in self._gaps:
                self._gaps.append((after_ms, time_ms))

    def resume(self, last_ms: int) -> None:
        """Note that batches up to a time ran in an earlier run: their RDDs are made on demand."""
        with self._lock:
            self._resumed_ms = last_ms

    def make_earlier(self, time_ms: int) -> None:
        """Make what windows of a batch ask for of an earlier run, before anything of the batch.

        So functions of ``transform`` are called for earlier batches first, as without a restart. A
        program may keep what such a function saw last, as programs of Kafka keep offsets.
        """
        resumed_ms = self._resumed_ms
        if resumed_ms is None:
            return
        asked = [
            (earlier_ms, parent)
            for node in self._plan.nodes
            if self._plan.fires(node, time_ms)
            for earlier_ms in node.earlier_times(time_ms)
            for parent in node.parents
            if earlier_ms <= resumed_ms
        ]
        for earlier_ms, parent in sorted(asked, key=itemgetter(0)):
            with suppress(Exception):  # who asks for it in the batch gets the error
                self.at(parent, earlier_ms)

    def before(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """What a stream that asks for its own past stands on at *time_ms*; None for nothing."""
        before_ms = time_ms - node.slide_ms
        with self._lock:
            if before_ms in self._rdds[node]:
                return self._rdds[node][before_ms]
            if before_ms > self._begin_ms.get(node, 0) and self._is_left_out(node, before_ms):
                raise LookupError(
                    f"{node.operation} cannot have an RDD at {time_ms} ms: what it was before the "
                    "batches that were left out is not known yet"
                )
            return self.at(node, before_ms)

    def at(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """The RDD of *node* at *time_ms*, made now if it was not; None when there is none."""
        with self._lock:
            if self._gaps and self._is_left_out(node, time_ms):
                return None
            known = self._rdds[node]
            if time_ms in known:
                return known[time_ms]
            if (node, time_ms) in self._withheld:
                raise self._withheld[node, time_ms]
            if time_ms <= self._begin_ms.get(node, 0) or not self._plan.fires(node, time_ms):
                return None
            if node.is_stateful and not isinstance(node, StateStoreDStream):
                self._catch_up(node, time_ms)
            made = self._computed(node, time_ms)
            if made is not None:
                known[time_ms] = self._persisted(node, made)
            elif node.is_stateful:
                known[time_ms] = None
            return made

    def _computed(self, node: Node, time_ms: int) -> RDD[Any] | None:
        try:
            return node.compute(time_ms, self)
        except Exception as error:
            if self._failed is None or self._failed[0] is not error:  # a parent comes first
                self._failed = error, node
            raise

    def failed_operation(self, error: Exception) -> str | None:
        """Return the operation whose ``compute`` raised *error*; None unless it failed last."""
        with self._lock:
            if self._failed is None or self._failed[0] is not error:
                return None
            return self._failed[1].operation

    def remembered(self, node: Node, after_ms: int, upto_ms: int) -> list[RDD[Any]]:
        """The RDDs of *node* at times in (after_ms, upto_ms] that are remembered, oldest first.

        None is made: ahead of its batch, or from input of which a part is forgotten, an RDD would
        hold other records, and be what later batches build on.
        """
        with self._lock:
            known = sorted(self._rdds[node].items())
            return [
                rdd
                for time, rdd in known
                if after_ms < time <= upto_ms and rdd is not None
                if not self._is_left_out(node, time)
            ]

    def newest(self, node: Node, upto_ms: int) -> tuple[int, RDD[Any]] | None:
        """The newest RDD of *node* up to a time that is remembered, after its time; none is made.

        None where no batch that is remembered had one.
        """
        with self._lock:
            for time_ms, rdd in sorted(self._rdds[node].items(), reverse=True):
                if time_ms > upto_ms or rdd is None or self._is_left_out(node, time_ms):
                    continue
                return time_ms, rdd
            return None

    def times(self, node: Node) -> list[int]:
        """Batch times of *node* that are remembered, sorted."""
        with self._lock:
            return sorted(self._rdds[node])

    def is_current(self, time_ms: int) -> bool:
        """Whether every stream that asks for its own past has been asked for *time_ms*."""
        with self._lock:
            return all(
                time_ms in known
                for node, known in self._rdds.items()
                if node.is_stateful and self._plan.fires(node, time_ms)
            )

    def replace(self, node: Node, time_ms: int, rdd: RDD[Any]) -> None:
        """Put *rdd*, which holds the same records, in the place of an RDD: its lineage is cut."""
        with self._lock:
            old = self._rdds[node].get(time_ms)
            self._rdds[node][time_ms] = self._persisted(node, rdd)
            self._release(node, old)

    def forget(self, time_ms: int) -> None:
        """Forget what no batch after the one at *time_ms* can ask for."""
        with self._lock:
            self._failed = None
            for node, plan in self._plan.nodes.items():
                known = self._rdds[node]
                if self._states is not None and isinstance(node, StateStoreDStream):
                    self._states.forget(plan.uid, time_ms - plan.remember_ms)
                for old in [time for time in known if time <= time_ms - plan.remember_ms]:
                    self._release(node, known.pop(old))
                for one, old in tuple(self._withheld):
                    if one is node and old <= time_ms - plan.remember_ms:
                        del self._withheld[one, old]

    def clear(self) -> None:
        """Forget everything, without a word to Spark: it may have stopped."""
        with self._lock:
            for known in self._rdds.values():
                known.clear()
            self._persisted_here.clear()
            self._withheld.clear()
            self._failed = None

    def _catch_up(self, node: Node, time_ms: int) -> None:
        """Make what is missing before *time_ms*, oldest first.

        Each asks for the one before it: after an hour without an RDD, or of batches that failed
        before they were made, Python would not go that deep.
        """
        before = (known for known in self._rdds[node] if known < time_ms)
        newest = max(before, default=max(self._plan.zero_ms, self._begin_ms.get(node, 0)))
        for missing in range(newest + node.slide_ms, time_ms, node.slide_ms):
            self.at(node, missing)

    def _is_left_out(self, node: Node, time_ms: int) -> bool:
        """Whether a time is in a gap, and no batch from before the gap has a part in it."""
        return any(
            after_ms < time_ms < end_ms and time_ms - node.slide_ms >= after_ms
            for after_ms, end_ms in self._gaps
        )

    def _persisted(self, node: Node, rdd: RDD[Any]) -> RDD[Any]:
        level = self._plan.nodes[node].storage_level
        if level is not None and not _is_persisted(rdd):
            rdd.persist(level)
            self._persisted_here.add((node, rdd))
        return rdd

    def _release(self, node: Node, rdd: RDD[Any] | None) -> None:
        """Unpersist what was persisted here, and for *node*.

        What a user persisted stays as it is, and so does an RDD that *node* handed on: its parent
        may be remembered longer.
        """
        if rdd is not None and (node, rdd) in self._persisted_here:
            self._persisted_here.discard((node, rdd))
            if self._unpersist:
                rdd.unpersist()


def _is_persisted(rdd: RDD[Any]) -> bool:
    return (rdd.blocks if isinstance(rdd, BlockPairsRDD) else rdd).is_cached

"""The RDDs that were made, by stream and batch time: the only memory of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock
from typing import Any

from pyspark import RDD, SparkContext

from dstreams.graph.node import Node
from dstreams.graph.plan import Plan


class History:
    """Makes each RDD once, persists it as planned, and forgets it when nobody can ask any more.

    "No RDD" is not remembered, except for what the runtime fed: asking again asks the node again.

    Args:
        plan: the frozen graph.
        spark: context RDDs are made in.
        unpersist: whether forgotten RDDs are unpersisted.
    """

    def __init__(self, plan: Plan, spark: SparkContext, *, unpersist: bool = True) -> None:
        self._plan = plan
        self._spark = spark
        self._unpersist = unpersist
        self._rdds: dict[Node, dict[int, RDD[Any] | None]] = {node: {} for node in plan.nodes}
        self._persisted_here: set[RDD[Any]] = set()
        self._lock = RLock()

    @property
    def spark(self) -> SparkContext:
        """The context RDDs are made in."""
        return self._spark

    def feed(self, node: Node, time_ms: int, rdd: RDD[Any] | None) -> None:
        """Say what an input stream has for a batch; unused input streams are ignored."""
        with self._lock:
            if node in self._rdds:
                self._rdds[node][time_ms] = None if rdd is None else self._persisted(node, rdd)

    def at(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """The RDD of *node* at *time_ms*, made now if it was not; None when there is none."""
        with self._lock:
            known = self._rdds[node]
            if time_ms in known:
                return known[time_ms]
            if not self._plan.fires(node, time_ms):
                return None
            made = node.compute(time_ms, self)
            if made is not None:
                known[time_ms] = self._persisted(node, made)
            return made

    def between(self, node: Node, after_ms: int, upto_ms: int) -> Iterator[RDD[Any]]:
        """The RDDs of *node* in the half-open range of times (after_ms, upto_ms], oldest first."""
        zero, slide = self._plan.zero_ms, node.slide_ms
        first = max(after_ms, zero) - (max(after_ms, zero) - zero) % slide + slide
        for time_ms in range(first, upto_ms + 1, slide):
            rdd = self.at(node, time_ms)
            if rdd is not None:
                yield rdd

    def times(self, node: Node) -> list[int]:
        """Batch times of *node* that are remembered, sorted."""
        with self._lock:
            return sorted(self._rdds[node])

    def replace(self, node: Node, time_ms: int, rdd: RDD[Any]) -> None:
        """Put *rdd*, which holds the same records, in the place of an RDD: its lineage is cut."""
        with self._lock:
            old = self._rdds[node].get(time_ms)
            self._rdds[node][time_ms] = self._persisted(node, rdd)
            self._release(old)

    def forget(self, time_ms: int) -> None:
        """Forget what no batch after the one at *time_ms* can ask for."""
        with self._lock:
            for node, plan in self._plan.nodes.items():
                known = self._rdds[node]
                for old in [time for time in known if time <= time_ms - plan.remember_ms]:
                    self._release(known.pop(old))

    def clear(self) -> None:
        """Forget everything, without a word to Spark: it may have stopped."""
        with self._lock:
            for known in self._rdds.values():
                known.clear()
            self._persisted_here.clear()

    def _persisted(self, node: Node, rdd: RDD[Any]) -> RDD[Any]:
        level = self._plan.nodes[node].storage_level
        if level is not None and not rdd.is_cached:
            rdd.persist(level)
            self._persisted_here.add(rdd)
        return rdd

    def _release(self, rdd: RDD[Any] | None) -> None:
        """Unpersist what was persisted here; what a user persisted stays as it is."""
        if rdd in self._persisted_here:
            self._persisted_here.discard(rdd)
            if self._unpersist:
                rdd.unpersist()

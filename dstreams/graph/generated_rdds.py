"""The RDDs of a stream, by node and batch time.

A batch is computed as a fold: every node after its parents, and after everything that it reads of
earlier batches (:meth:`GeneratedRdds.make`). Nodes only read what was computed before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from threading import RLock
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan
from dstreams.graph.state import StateDStream, StateStoreDStream
from dstreams.graph.windowed import ReducedWindowedDStream
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.state.state_versions import StateVersions

LONGEST_LINEAGE = 10
"""State batches that one job may compute. Each needs a Python worker for each task at the same
time, because a state RDD is computed inside the one that follows it."""


class FailedNode(NamedTuple):
    """The error that kept a node from having an RDD, and the node that raised it."""

    error: Exception
    node: Node


class GeneratedRdds:
    """Computes each RDD once, persists it as planned, and evicts it when no batch can need it.

    One thread computes; others may read meanwhile. The RDDs of a batch of an earlier process are
    computed again when a window needs them; the restart puts the input of that batch here.
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
        self._order = {node: number for number, node in enumerate(plan.nodes)}
        self._rdds: dict[Node, dict[int, RDD[Any] | None]] = {node: {} for node in plan.nodes}
        self._added_ms: dict[Node, int] = {}
        self._gaps: list[tuple[int, int]] = []
        self._resumed_ms = plan.zero_ms
        self._missing_inputs: dict[tuple[Node, int], Exception] = {}
        self._failed: dict[tuple[Node, int], FailedNode] = {}
        self._persisted_here: set[tuple[Node, RDD[Any]]] = set()
        self._lock = RLock()

    # Read by nodes ---------------------------------------------------------------------------

    @property
    def spark(self) -> SparkContext:
        """The context in which RDDs are made."""
        return self._spark

    @property
    def states(self) -> StateVersions:
        """The versions of the state in the state store."""
        if self._states is None:
            raise LookupError("no stream of this graph has state in the state store")
        return self._states

    def uid(self, node: Node) -> str:
        """Return the uid of a node."""
        return self._plan.nodes[node].uid

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        """Return whether a batch time is a multiple of the checkpoint interval of *node*."""
        return self._plan.checkpoint_due(node, time_ms)

    def get(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """Return the RDD of a node at a batch time, None if it has none; nothing is computed."""
        with self._lock:
            return None if self._is_in_gap(node, time_ms) else self._rdds[node].get(time_ms)

    def before(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """Return the RDD of a stateful node one slide earlier, also if carried over a gap."""
        with self._lock:
            return self._rdds[node].get(time_ms - node.slide_ms)

    # Computed by the batch -------------------------------------------------------------------

    def make(self, nodes: Iterable[Node], time_ms: int) -> None:
        """Compute the RDDs of *nodes* at a batch time and everything that they need, in order.

        A node that fails, and those that need it, have a :meth:`failure` until
        :meth:`retry_failed`.
        """
        self._make((node, time_ms) for node in nodes)

    def make_resumed(self, time_ms: int) -> None:
        """Compute what windows read of earlier runs, before anything else of the batch.

        So functions of ``transform`` are called in the order of batches, as without a restart: a
        program may keep what such a function saw last, as programs of Kafka keep offsets.
        """
        firing = [node for node in self._plan.nodes if self._plan.fires(node, time_ms)]
        self._make(
            (parent, earlier_ms)
            for node in firing
            for earlier_ms in node.earlier_times(time_ms)
            if earlier_ms <= self._resumed_ms
            for parent in node.parents
        )

    def _make(self, cells: Iterable[tuple[Node, int]]) -> None:
        for node, at_ms in self._missing(cells):
            failure = self._inherited_failure(node, at_ms)
            if failure is None:
                try:
                    self._compute(node, at_ms)
                except Exception as error:
                    failure = FailedNode(error, node)
            if failure is not None:
                self._failed[node, at_ms] = failure

    def retry_failed(self) -> None:
        """Let everything that failed be tried again."""
        self._failed.clear()

    def failure(self, node: Node, time_ms: int) -> FailedNode | None:
        """Return why a node has no RDD, None if it was not tried or has one."""
        return self._failed.get((node, time_ms))

    def at(self, node: Node, time_ms: int) -> RDD[Any] | None:
        """Return the RDD of a node, computed if needed; raises what kept it from being computed."""
        self.make([node], time_ms)
        failed = self.failure(node, time_ms)
        if failed is not None:
            raise failed.error
        return self.get(node, time_ms)

    def _missing(self, cells: Iterable[tuple[Node, int]]) -> list[tuple[Node, int]]:
        """Return what is to be computed, in order: by time, then parents first."""
        missing: set[tuple[Node, int]] = set()
        open_cells = list(cells)
        while open_cells:
            node, at_ms = cell = open_cells.pop()
            if cell not in missing and cell not in self._failed and self._is_missing(node, at_ms):
                missing.add(cell)
                open_cells.extend(self._needs(node, at_ms))
        by_parents = sorted(missing, key=lambda cell: self._order[cell[0]])
        return sorted(by_parents, key=itemgetter(1))

    def _inherited_failure(self, node: Node, time_ms: int) -> FailedNode | None:
        if not self._failed:
            return None
        found = (self._failed.get(needed) for needed in self._needs(node, time_ms))
        return next((failure for failure in found if failure is not None), None)

    def _is_missing(self, node: Node, time_ms: int) -> bool:
        return (
            time_ms not in self._rdds[node]
            and time_ms > self._added_ms.get(node, 0)
            and self._plan.fires(node, time_ms)
            and not self._is_in_gap(node, time_ms)
        )

    def _needs(self, node: Node, time_ms: int) -> Iterator[tuple[Node, int]]:
        """Yield what *node* reads at a time: itself, then parents, oldest first."""
        before_ms = time_ms - node.slide_ms
        has_version = isinstance(node, StateStoreDStream) and self._has_version(node, before_ms)
        if node.is_stateful and not has_version:
            yield node, before_ms
        times = (*node.earlier_times(time_ms), time_ms)
        yield from ((parent, at_ms) for at_ms in times for parent in node.parents)

    def _has_version(self, node: Node, time_ms: int) -> bool:
        return self.states.at(self.uid(node), time_ms) is not None

    def _compute(self, node: Node, time_ms: int) -> None:
        if (node, time_ms) in self._missing_inputs:
            raise self._missing_inputs[node, time_ms]
        if node.is_stateful:
            self._require_previous(node, time_ms)
        parents = [self.get(parent, time_ms) for parent in node.parents]
        rdd = node.compute(time_ms, parents, self)
        if not isinstance(node, InputDStream):  # an input without an RDD may get one later
            self.put(node, time_ms, rdd)

    def _require_previous(self, node: Node, time_ms: int) -> None:
        """Raise if the state before a batch is in a gap and was not carried over it."""
        before_ms = time_ms - node.slide_ms
        is_known = before_ms in self._rdds[node] or (
            isinstance(node, StateStoreDStream) and self._has_version(node, before_ms)
        )
        is_added = before_ms <= self._added_ms.get(node, 0)
        if not is_known and not is_added and self._is_in_gap(node, before_ms):
            raise LookupError(
                f"{node.operation} cannot have an RDD at {time_ms} ms: its state before the "
                "skipped batches is not known yet"
            )

    # Kept ------------------------------------------------------------------------------------

    def put(self, node: Node, time_ms: int, rdd: RDD[Any] | None) -> None:
        """Set the RDD of a node at a batch time; inputs that no output uses are ignored."""
        with self._lock:
            self._missing_inputs.pop((node, time_ms), None)
            if node in self._rdds:
                self._rdds[node][time_ms] = None if rdd is None else self._persisted(node, rdd)

    def replace(self, node: Node, time_ms: int, rdd: RDD[Any]) -> None:
        """Replace an RDD by one with the same records: its lineage is cut."""
        with self._lock:
            old = self._rdds[node].get(time_ms)
            self._rdds[node][time_ms] = self._persisted(node, rdd)
            self._release(node, old)

    def mark_missing(self, node: Node, time_ms: int, error: Exception) -> None:
        """Keep a batch from having its input, until :meth:`put` sets it."""
        with self._lock:
            if node in self._rdds:
                self._missing_inputs[node, time_ms] = error

    def mark_added(self, node: Node, after_ms: int) -> None:
        """Record that a node was added after a batch: it has no RDD up to that time."""
        with self._lock:
            self._added_ms[node] = after_ms

    def mark_resumed(self, last_ms: int) -> None:
        """Record that batches up to a time ran in an earlier run."""
        with self._lock:
            self._resumed_ms = last_ms

    def mark_gap(self, after_ms: int, time_ms: int) -> None:
        """Record that the batches between two times were skipped: no node has an RDD there.

        A node with a longer slide has one, its first after *after_ms*, if batches up to *after_ms*
        are in it. The state before *time_ms* must be put.
        """
        with self._lock:
            if (after_ms, time_ms) not in self._gaps:
                self._gaps.append((after_ms, time_ms))

    def between(self, node: Node, after_ms: int, upto_ms: int) -> list[RDD[Any]]:
        """Return the kept RDDs at times in (after_ms, upto_ms], oldest first; computes nothing."""
        with self._lock:
            return [
                rdd
                for time_ms, rdd in sorted(self._rdds[node].items())
                if after_ms < time_ms <= upto_ms and rdd is not None
                if not self._is_in_gap(node, time_ms)
            ]

    def newest(self, node: Node, upto_ms: int) -> tuple[int, RDD[Any]] | None:
        """Return the newest kept RDD up to a time, with its time; None if there is none."""
        with self._lock:
            for time_ms, rdd in sorted(self._rdds[node].items(), reverse=True):
                if time_ms <= upto_ms and rdd is not None and not self._is_in_gap(node, time_ms):
                    return time_ms, rdd
            return None

    def times(self, node: Node) -> list[int]:
        """Return the batch times that are kept of a node, sorted."""
        with self._lock:
            return sorted(self._rdds[node])

    def is_current(self, time_ms: int) -> bool:
        """Return whether every stateful node was computed for *time_ms*."""
        with self._lock:
            return all(
                time_ms in known
                for node, known in self._rdds.items()
                if node.is_stateful and self._plan.fires(node, time_ms)
            )

    def evict(self, time_ms: int) -> None:
        """Drop everything that no batch after the one at *time_ms* can need."""
        with self._lock:
            self._failed.clear()
            for node, planned in self._plan.nodes.items():
                upto_ms = time_ms - planned.remember_ms
                if self._states is not None and isinstance(node, StateStoreDStream):
                    self._states.evict(planned.uid, upto_ms)
                known = self._rdds[node]
                for old_ms in [old_ms for old_ms in known if old_ms <= upto_ms]:
                    self._release(node, known.pop(old_ms))
                for cell in tuple(self._missing_inputs):
                    if cell[0] is node and cell[1] <= upto_ms:
                        del self._missing_inputs[cell]

    def release(self) -> None:
        """Unpersist what was persisted here; no effect after Spark has stopped."""
        if not self._unpersist:
            return
        with self._lock, suppress(Py4JError, OSError, AttributeError):
            for _, rdd in self._persisted_here:
                rdd.unpersist()
            if self._states is not None:
                self._states.release()

    def clear(self) -> None:
        """Drop everything without a call to Spark, which may have stopped."""
        with self._lock:
            for known in self._rdds.values():
                known.clear()
            self._persisted_here.clear()
            self._missing_inputs.clear()
            self._failed.clear()

    def _is_in_gap(self, node: Node, time_ms: int) -> bool:
        """Return whether a time is in a gap, and no batch from before the gap is part of it."""
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
        """Unpersist an RDD if it was persisted here for *node*.

        RDDs that the user persisted stay persisted, as do those that *node* passed through from its
        parent, which may be kept longer.
        """
        if rdd is not None and (node, rdd) in self._persisted_here:
            self._persisted_here.discard((node, rdd))
            if self._unpersist:
                rdd.unpersist()


def _is_persisted(rdd: RDD[Any]) -> bool:
    return (rdd.blocks if isinstance(rdd, BlockPairsRDD) else rdd).is_cached


def carry_over_gap(
    plan: Plan,
    rdds: GeneratedRdds,
    after_ms: int,
    time_ms: int,
    required_since: Mapping[Node, int] | None = None,
) -> None:
    """Let the batch at *time_ms* continue from the state of the batch at *after_ms*.

    The batches between were skipped. States stay unchanged, a window keeps values whose time is
    still in it, and a state with a longer slide first takes in the batches up to *after_ms*. States
    that are not *required_since* are left alone. Call again after a failure to continue.
    """
    for node in plan.nodes:
        last_ms = plan.turn_upto(node, after_ms)
        first_ms = time_ms + (plan.zero_ms - time_ms) % node.slide_ms
        before_ms = first_ms - node.slide_ms
        is_required = required_since is None or required_since[node] < before_ms
        if before_ms <= last_ms or not is_required or before_ms in rdds.times(node):
            continue
        made_ms = last_ms if last_ms == after_ms else last_ms + node.slide_ms
        if isinstance(node, ReducedWindowedDStream):
            rdds.put(node, before_ms, node.over_gap(made_ms, before_ms, rdds.at))
        elif isinstance(node, StateDStream):
            rdds.put(node, before_ms, rdds.at(node, made_ms))
        elif isinstance(node, StateStoreDStream):
            uid = plan.nodes[node].uid
            if rdds.states.at(uid, made_ms) is None:
                rdds.at(node, made_ms)  # it failed when it was due, or was not due
            rdds.states.reuse(uid, made_ms, before_ms)

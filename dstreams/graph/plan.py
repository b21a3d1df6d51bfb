"""The graph of a program, and the plan that it is frozen into at start.

A :class:`StreamGraph` collects streams while a program defines them. :meth:`StreamGraph.freeze`
computes and checks storage levels, checkpoint intervals and remember durations, which never change
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import StorageLevel

from dstreams.errors import InvalidStreamError
from dstreams.graph.node import MEMORY_ONLY_SER, InputDStream, Node, OutputOperation
from dstreams.graph.state import StateStoreDStream

NO_STORAGE = StorageLevel(False, False, False, False, 1)
_DEFAULT_CHECKPOINT_MS = 10_000
_MOST_CHECKPOINT_SLIDES = 20
"""Default limit of batches between two snapshots, which a restart may have to compute again."""
_DEFAULT_CHECKPOINT_SLIDES_IN_STORE = 10


@dataclass
class StreamOptions:
    """The options that a user set on one stream before the start; None if not set."""

    storage_level: StorageLevel | None = None
    checkpoint_ms: int | None = None
    uid: str | None = None


@dataclass(frozen=True)
class NodePlan:
    """Properties of one node that follow from the whole graph."""

    uid: str
    storage_level: StorageLevel | None
    checkpoint_ms: int | None
    remember_ms: int
    is_chosen: bool = False


@dataclass(frozen=True)
class Plan:
    """A frozen graph."""

    batch_ms: int
    zero_ms: int
    inputs: tuple[InputDStream, ...]
    outputs: tuple[OutputOperation, ...]
    nodes: Mapping[Node, NodePlan]
    input_uids: Mapping[InputDStream, str] = field(default_factory=dict)
    chosen_inputs: frozenset[InputDStream] = frozenset()
    output_uids: tuple[str, ...] = ()

    def fires(self, node: Node, time_ms: int) -> bool:
        """Return whether *node* has a batch at *time_ms*; never at zero time or before."""
        since = time_ms - self.zero_ms
        return since > 0 and since % node.slide_ms == 0

    def batch_upto(self, time_ms: int) -> int:
        """Return the time of the last batch up to *time_ms*; zero time counts as a batch."""
        return time_ms - (time_ms - self.zero_ms) % self.batch_ms

    def turn_upto(self, node: Node, time_ms: int) -> int:
        """Return the last time up to *time_ms* at which *node* has a batch."""
        return time_ms - (time_ms - self.zero_ms) % node.slide_ms

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        """Return whether the RDD of *node* at *time_ms* is written to the checkpoint."""
        interval = self.nodes[node].checkpoint_ms
        return interval is not None and (time_ms - self.zero_ms) % interval == 0

    def checkpointed(self) -> tuple[Node, ...]:
        """Return the nodes whose RDDs are written to the checkpoint, parents first."""
        return tuple(
            node
            for node, plan in self.nodes.items()
            if plan.checkpoint_ms is not None and not isinstance(node, StateStoreDStream)
        )

    def stateful(self) -> tuple[Node, ...]:
        """Return the stateful nodes, parents first."""
        return tuple(node for node in self.nodes if node.is_stateful)

    def in_state_store(self) -> tuple[StateStoreDStream, ...]:
        """Return the nodes with state in the state store, parents first."""
        return tuple(node for node in self.nodes if isinstance(node, StateStoreDStream))

    def required_since(
        self,
        last_ms: int,
        newest_durable: NewestDurable,
        added: Mapping[Node, int] | None = None,
    ) -> dict[Node, int]:
        """Return for each node the time after which the next batch may read its RDDs.

        A node reads its parents at its own time, and a window also before that. A stateful node
        needs a durable version of itself, or is computed from the first batch::

            batches                        1   2   3   4   5   6   7   8 | 9     9 is the next one
            the state in files                         x               x
            the state reads its parent at                              8   9
            a window of 3 reads the state at                       7   8   9     so 3 is needed
            the state reads its parent at              4   5   6   7   8   9

        A restart reads everything after these times again, and a running stream must keep it.
        *added* nodes have nothing up to a time.
        """
        floors = added or {}
        since = dict.fromkeys(self.nodes, max(self.zero_ms, last_ms))
        for node in reversed(tuple(self.nodes)):  # children first
            if node.is_stateful:
                since[node] = newest_durable(node, since[node])
            for parent in node.parents:
                first_ms = since[node] - node.parents_remember_ms(0)
                since[parent] = min(since[parent], max(first_ms, floors.get(node, self.zero_ms)))
        return since

    def read_by_others_since(self, last_ms: int, since: Mapping[Node, int]) -> dict[Node, int]:
        """Return for each node the time after which nodes other than itself may read its RDDs."""
        found = dict.fromkeys(self.nodes, last_ms)
        for node in self.nodes:
            for parent in node.parents:
                found[parent] = min(found[parent], since[node] - node.parents_remember_ms(0))
        return found


NewestDurable = Callable[[Node, int], int]
"""``(node, time in ms) ->`` time of its newest durable version up to then, zero time if none."""


def depends_on_state_rdd(node: Node) -> bool:
    """Return whether an ancestor has a state RDD, which needs every batch, unlike stored state."""
    stack, seen = list(node.parents), set(node.parents)
    while stack:
        parent = stack.pop()
        if parent.is_stateful and not isinstance(parent, StateStoreDStream):
            return True
        stack += [one for one in parent.parents if one not in seen]
        seen.update(parent.parents)
    return False


@dataclass
class StreamGraph:
    """The streams that a program has defined so far."""

    batch_ms: int
    remember_ms: int | None = None
    inputs: list[InputDStream] = field(default_factory=list)
    outputs: list[OutputOperation] = field(default_factory=list)
    options: dict[Node, StreamOptions] = field(default_factory=dict)

    def options_of(self, node: Node) -> StreamOptions:
        """Return the options of *node*, which may be changed."""
        return self.options.setdefault(node, StreamOptions())

    def _chosen(self, node: Node) -> StreamOptions:
        """Return the options of *node* without adding it to the graph."""
        return self.options.get(node, StreamOptions())

    def name(self, node: Node, uid: str | None) -> None:
        """Keep state and progress of *node* under *uid*; if None, derive one from its position."""
        if uid is None:
            return
        if not isinstance(uid, str) or not uid.strip():
            raise InvalidStreamError(
                f"uid of {node.operation} must be a non-empty string, got {uid!r}; it identifies "
                "state and progress in the checkpoint when the program changes"
            )
        self.options_of(node).uid = uid

    def freeze(self, zero_ms: int, *, has_checkpoint_directory: bool) -> Plan:
        """Check the graph and return its plan."""
        if not self.outputs:
            raise InvalidStreamError(
                "no output operations registered, so nothing to execute; end a stream with an "
                "output such as pprint(), foreachRDD(f) or saveAsTextFiles(prefix)"
            )
        plan = self.draft(zero_ms)
        for node, planned in plan.nodes.items():
            if planned.checkpoint_ms is not None:
                if not has_checkpoint_directory:
                    raise InvalidStreamError(
                        f"{node.operation} makes its state durable, but the checkpoint directory "
                        "has not been set; set it with StreamingContext.checkpoint(directory)"
                    )
                self._require_checkpoint(node, planned.checkpoint_ms)
        uids: dict[Node, str] = {}
        uids.update(plan.input_uids.items())
        uids.update((node, planned.uid) for node, planned in plan.nodes.items())
        _require_own(uids)
        return plan

    def draft(self, zero_ms: int = 0, *others: Node) -> Plan:
        """Return the plan of the graph so far, including *others*; nothing is checked."""
        order = self._parents_first(others)
        intervals = {node: self._checkpoint_ms(node) for node in order}
        remember = self._remember_ms(order, intervals)
        levels = self._storage_levels(order)
        uids = self._uids(order)
        nodes = {
            node: NodePlan(
                uids[node],
                levels[node],
                intervals[node],
                remember[node],
                self._chosen(node).uid is not None,
            )
            for node in order
        }
        kinds = [_kind(output.operation) for output in self.outputs]
        return Plan(
            self.batch_ms,
            zero_ms,
            tuple(self.inputs),
            tuple(self.outputs),
            nodes,
            {stream: uids[stream] for stream in self.inputs},
            frozenset(s for s in self.inputs if self._chosen(s).uid is not None),
            tuple(f"{kind}-{kinds[:index].count(kind)}" for index, kind in enumerate(kinds)),
        )

    def _uids(self, order: list[Node]) -> dict[Node, str]:
        """Return the uid of every stream: the user's, or its position among those of its kind."""
        counts: Counter[str] = Counter()
        uids: dict[Node, str] = {}
        for node in dict.fromkeys((*self.inputs, *order)):
            chosen, kind = self._chosen(node).uid, _kind(node.operation)
            uids[node] = chosen or f"{kind}-{counts[kind]}"
            counts[kind] += chosen is None
        return uids

    def _parents_first(self, others: Iterable[Node]) -> list[Node]:
        order: dict[Node, None] = {}

        def visit(node: Node) -> None:
            if node not in order:
                for parent in node.parents:
                    visit(parent)
                order[node] = None

        for node in (*(output.parent for output in self.outputs), *others):
            visit(node)
        return list(order)

    def _storage_levels(self, order: list[Node]) -> dict[Node, StorageLevel | None]:
        """Return the level of each node: the user's, its default, or that needed by its readers.

        A level set on a window applies to the windowed stream, unless that has its own.
        """
        levels = {node: node.default_storage for node in order}
        for node in order:
            for parent in node.parents if node.rereads_parents else ():
                if levels[parent.holder] is None:
                    levels[parent.holder] = MEMORY_ONLY_SER
        # Children first, so that the choice for the stream itself comes last.
        for node in reversed(order):
            chosen = self._chosen(node).storage_level
            if chosen is not None:
                levels[node.holder] = chosen
        return {node: None if level == NO_STORAGE else level for node, level in levels.items()}

    def _checkpoint_ms(self, node: Node) -> int | None:
        chosen = self._chosen(node).checkpoint_ms
        if chosen is None and node.must_checkpoint:
            slides = -(-_DEFAULT_CHECKPOINT_MS // node.slide_ms)
            return min(slides, _MOST_CHECKPOINT_SLIDES) * node.slide_ms
        if chosen is None and isinstance(node, StateStoreDStream):
            return _DEFAULT_CHECKPOINT_SLIDES_IN_STORE * node.slide_ms
        return chosen

    def _require_checkpoint(self, node: Node, interval_ms: int) -> None:
        if interval_ms < node.slide_ms:
            raise InvalidStreamError(
                f"the checkpoint interval of {node.operation} is {interval_ms} ms, lower than its "
                f"slide of {node.slide_ms} ms; set it to at least {node.slide_ms} ms"
            )
        if interval_ms % node.slide_ms:
            above = -(-interval_ms // node.slide_ms) * node.slide_ms
            raise InvalidStreamError(
                f"the checkpoint interval of {node.operation} is {interval_ms} ms, which is not a "
                f"multiple of its slide of {node.slide_ms} ms; set it to {above} ms"
            )
        if self._chosen(node).storage_level == NO_STORAGE and node.must_checkpoint:
            raise InvalidStreamError(
                f"{node.operation} is checkpointed, but its storage level keeps nothing; "
                "choose one with persist(level) that does"
            )

    def _remember_ms(
        self, order: list[Node], intervals: Mapping[Node, int | None]
    ) -> dict[Node, int]:
        """Return how long each node is kept: as long as it or one of its children needs it."""
        remember = {node: _least_remember_ms(node, intervals[node]) for node in order}
        for output in self.outputs:
            requested = self.remember_ms or 0
            remember[output.parent] = max(remember[output.parent], requested)
        for node in reversed(order):
            needed = node.parents_remember_ms(remember[node])
            for parent in node.parents:
                remember[parent] = max(remember[parent], needed)
        return remember


def _least_remember_ms(node: Node, interval_ms: int | None) -> int:
    if interval_ms is None or isinstance(node, StateStoreDStream):
        return node.slide_ms
    return max(node.slide_ms, 2 * interval_ms)


def _require_own(uids: Mapping[Node, str]) -> None:
    """Raise if two streams have the same uid."""
    by_uid: dict[str, Node] = {}
    for node, uid in uids.items():
        other = by_uid.setdefault(uid, node)
        if other is not node:
            raise InvalidStreamError(
                f"{other.operation} and {node.operation} have the same uid, {uid!r}; give each its "
                "own, because state and progress are kept under it"
            )


def _kind(operation: str) -> str:
    return operation.split(" ", 1)[0]

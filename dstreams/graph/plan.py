"""The plan: a graph frozen at start, with everything that follows from the whole of it.

While a program defines streams, a :class:`StreamGraph` collects them. Starting freezes it: zero
time, storage levels, checkpoint intervals and remember durations are computed once, checked, and
never change again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import StorageLevel

from dstreams.errors import InvalidStreamError
from dstreams.graph.input import InputDStream
from dstreams.graph.node import MEMORY_ONLY_SER, Node
from dstreams.graph.output import OutputOperation
from dstreams.graph.state_store_dstream import StateStoreDStream

NO_STORAGE = StorageLevel(False, False, False, False, 1)
_DEFAULT_CHECKPOINT_MS = 10_000
_MOST_CHECKPOINT_SLIDES = 20
"""RDDs from one snapshot to the next, unless the user chooses: what a restart makes again."""
_DEFAULT_CHECKPOINT_SLIDES_IN_STORE = 10


@dataclass
class StreamOptions:
    """What a user chose for one stream before the start; None: not chosen."""

    storage_level: StorageLevel | None = None
    checkpoint_ms: int | None = None
    uid: str | None = None


@dataclass(frozen=True)
class NodePlan:
    """What the whole graph means for one node."""

    uid: str
    storage_level: StorageLevel | None
    checkpoint_ms: int | None
    remember_ms: int
    is_chosen: bool = False


@dataclass(frozen=True)
class Plan:
    """A graph that runs."""

    batch_ms: int
    zero_ms: int
    inputs: tuple[InputDStream, ...]
    outputs: tuple[OutputOperation, ...]
    nodes: Mapping[Node, NodePlan]
    input_uids: Mapping[InputDStream, str] = field(default_factory=dict)
    chosen_inputs: frozenset[InputDStream] = frozenset()
    output_uids: tuple[str, ...] = ()

    def fires(self, node: Node, time_ms: int) -> bool:
        """Whether *node* has a turn at *time_ms*; never at zero time or before."""
        since = time_ms - self.zero_ms
        return since > 0 and since % node.slide_ms == 0

    def batch_upto(self, time_ms: int) -> int:
        """Return the time of the last batch up to *time_ms*; zero time is one."""
        return time_ms - (time_ms - self.zero_ms) % self.batch_ms

    def turn_upto(self, node: Node, time_ms: int) -> int:
        """Return the last time up to *time_ms* at which *node* has a turn."""
        return time_ms - (time_ms - self.zero_ms) % node.slide_ms

    def checkpoint_due(self, node: Node, time_ms: int) -> bool:
        """Whether the RDD of *node* at *time_ms* is one that is made durable."""
        interval = self.nodes[node].checkpoint_ms
        return interval is not None and (time_ms - self.zero_ms) % interval == 0

    def checkpointed(self) -> tuple[Node, ...]:
        """Nodes whose RDDs are made durable, parents first."""
        return tuple(
            node
            for node, plan in self.nodes.items()
            if plan.checkpoint_ms is not None and not isinstance(node, StateStoreDStream)
        )

    def stateful(self) -> tuple[Node, ...]:
        """Nodes that stand on what they were in the batch before, parents first."""
        return tuple(node for node in self.nodes if node.is_stateful)

    def in_state_store(self) -> tuple[StateStoreDStream, ...]:
        """Nodes with state in the state store, parents first."""
        return tuple(node for node in self.nodes if isinstance(node, StateStoreDStream))


@dataclass
class StreamGraph:
    """The streams a program has defined so far."""

    batch_ms: int
    remember_ms: int | None = None
    inputs: list[InputDStream] = field(default_factory=list)
    outputs: list[OutputOperation] = field(default_factory=list)
    options: dict[Node, StreamOptions] = field(default_factory=dict)

    def options_of(self, node: Node) -> StreamOptions:
        """The options of *node*, to be read or changed."""
        return self.options.setdefault(node, StreamOptions())

    def _chosen(self, node: Node) -> StreamOptions:
        """The options of *node*, to be read: a stream that was only looked at is not kept."""
        return self.options.get(node, StreamOptions())

    def name(self, node: Node, uid: str | None) -> None:
        """Keep state and progress of *node* under *uid*; None: under a name from its place."""
        if uid is None:
            return
        if not isinstance(uid, str) or not uid.strip():
            raise InvalidStreamError(
                f"uid of {node.operation} must be a name, got {uid!r}; it stands for its "
                "state and progress in the checkpoint, also when the program changes"
            )
        self.options_of(node).uid = uid

    def freeze(self, zero_ms: int, *, has_checkpoint_directory: bool) -> Plan:
        """Check the graph and compute what follows from the whole of it."""
        if not self.outputs:
            raise InvalidStreamError(
                "no output operations registered, so nothing to execute; end a stream with an "
                "output such as pprint(), foreachRDD(f) or saveAsTextFiles(prefix)"
            )
        plan = self.draft(zero_ms)
        for node, planned in plan.nodes.items():
            if planned.checkpoint_ms is not None:
                self._require_directory(node, has_checkpoint_directory)
                self._require_checkpoint(node, planned.checkpoint_ms)
        uids: dict[Node, str] = {}
        uids.update(plan.input_uids.items())
        uids.update((node, planned.uid) for node, planned in plan.nodes.items())
        _require_own(uids)
        return plan

    def draft(self, zero_ms: int = 0, *others: Node) -> Plan:
        """Compute what follows from the graph as far as it is defined; nothing is checked.

        Of streams that no output uses yet only *others* are in it, and what these are made of.
        """
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
        """Name every stream: as the user did, else by its place among those of its operation."""
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
        """The level of each node: the user's choice, else the node's own, else what readers want.

        A level chosen for a window is one for the stream that it is a window of, unless that has a
        choice of its own.
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

    def _require_directory(self, node: Node, has_directory: bool) -> None:
        if not has_directory:
            raise InvalidStreamError(
                f"{node.operation} makes its state durable, but the checkpoint directory has not "
                "been set; set it with StreamingContext.checkpoint(directory)"
            )

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
        """How long each node is remembered: for itself, and as long as its children need it."""
        remember = {node: _least_remember_ms(node, intervals[node]) for node in order}
        for output in self.outputs:
            asked = self.remember_ms or 0
            remember[output.parent] = max(remember[output.parent], asked)
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
    """Refuse two streams of one uid."""
    by_uid: dict[str, Node] = {}
    for node, uid in uids.items():
        other = by_uid.setdefault(uid, node)
        if other is not node:
            raise InvalidStreamError(
                f"{other.operation} and {node.operation} have the same uid, {uid!r}; state and "
                "progress are kept under it, so give each its own"
            )


def _kind(operation: str) -> str:
    return operation.split(" ", 1)[0]

"""Graph snapshots: a JSON description for tools, and the pickled graph for a restart.

In the pickled graph, which has the user's functions, the SparkContext, SparkSession and
StreamingContext are references, resolved in the reading process. Broadcast variables are pickled by
value. RDDs are numbered, and written to files of their own.

Unpickling runs code: read only bytes that no other user can have written.
"""

from __future__ import annotations

import io
import logging
import pickle
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyspark
from pyspark import RDD, Broadcast, SparkConf, SparkContext, cloudpickle

from checkpoint import (
    CheckpointError,
    Files,
    GraphSnapshot,
    OwnedStream,
    PrefixedFiles,
    RecordId,
    StatePartition,
    write_graph,
)
from checkpoint.state_store import require_rdds
from dstreams.common.callables import find_culprit
from dstreams.common.redaction import secret_settings
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.graph.node import InputDStream, Node
from dstreams.graph.plan import Plan, StreamGraph
from dstreams.graph.state import StateStoreDStream
from dstreams.graph.windowed import WindowTimes
from dstreams.spark.rdd_files import WrittenRdd, read_rdd, write_rdd
from dstreams.state.transform_groups import TransformGroups

_FORMAT = 1
_RDDS = "rdds"
_OF_ONE_PROCESS = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.driver.port",
    "spark.ui.port",
    "spark.blockManager.port",
    "spark.app.id",
    "spark.app.startTime",
    "spark.app.submitTime",
    "spark.executor.id",
    "spark.python.unix.domain.socket.dir",
    "spark.python.unix.domain.socket.enabled",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.executor.podNamePrefix",
)
_OF_THE_NEW_PROCESS = (
    "spark.master",
    "spark.jars",
    "spark.yarn.app.id",
    "spark.yarn.app.attemptId",
    "spark.yarn.keytab",
    "spark.yarn.principal",
    "spark.kerberos.keytab",
    "spark.kerberos.principal",
    "spark.ui.filters",
    "spark.kubernetes.namespace",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.container.image",
    "spark.kubernetes.executor.container.image",
)

_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_OWN = ("spark.app.name", *_JAVA_OPTIONS)
"""Settings that every process sets for itself."""
_FIRST_OF_SPARK = "-Djava.net.preferIPv6Addresses="
"""The first of the options that each SparkContext puts before the given ones."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GraphPayload:
    """A pickled graph, its RDDs, and the settings given to the context; None for the SparkConf's.

    An RDD without partitions is None.
    """

    graph: bytes
    rdds: tuple[WrittenRdd | None, ...]
    settings: Settings | None


def write_graph_snapshot(
    owned: OwnedStream,
    stream_id: str,
    plan: Plan,
    pickled: PickledGraph,
    spark: SparkContext,
    settings: Settings | None,
    added: Mapping[str, int],
) -> RecordId:
    """Write the graph of a run, and the RDDs that it refers to, before its first batch.

    *settings* were given to the streaming context, None for those of the SparkConf. *added* has the
    batch after which a node was added, by uid.
    """
    files = owned.lease.files
    directory = PrefixedFiles(files, _RDDS) if pickled.rdds else files
    rdds = tuple(
        _write_rdd(rdd, number, directory, stream_id, owned.epoch)
        for number, rdd in enumerate(pickled.rdds)
    )
    last_ms = owned.plan.last_ms
    snapshot = GraphSnapshot(
        stream_id,
        plan.zero_ms if last_ms is None else last_ms,
        owned.epoch,
        {**describe_plan(plan, spark.getConf(), added), "rdds": _described_files(rdds)},
        pickle.dumps(GraphPayload(pickled.data, rdds, settings and settings.without_secrets())),
        with_state=tuple(
            plan.nodes[node].uid for node in (*plan.checkpointed(), *plan.in_state_store())
        ),
    )
    write_graph(owned.lease, snapshot)
    return snapshot.record_id


def _described_files(rdds: Sequence[WrittenRdd | None]) -> dict[str, object]:
    """Return the files of each RDD, so that a restart finds a lost one before it reads any."""
    written = (rdd for rdd in rdds if rdd is not None)
    return {rdd.first.operator_uid: list(rdd.files) for rdd in written}


def decode_payload(files: Files, snapshot: GraphSnapshot) -> GraphPayload:
    """Unpickle the payload of a snapshot, without its graph."""
    try:
        payload: GraphPayload = pickle.loads(snapshot.payload)
        return payload
    except Exception as error:
        raise _not_unpickled(files, error) from error


def read_graph_payload(
    files: Files,
    snapshot: GraphSnapshot,
    payload: GraphPayload,
    spark: SparkContext,
    context: object,
) -> StreamGraph:
    """Unpickle the graph of a snapshot; runs code of the program."""
    try:
        require_rdds(files, snapshot)
    except CheckpointError as error:
        raise RestartError(f"cannot resume from {files.url}: {error}") from error

    def rdd(number: int) -> RDD[Any]:
        written = payload.rdds[number]
        if written is None:
            return spark.emptyRDD()
        directory = PrefixedFiles(files, _RDDS)
        return read_rdd(spark, directory, written, like=spark.parallelize([0], 1))

    try:
        graph = _Unpickler(io.BytesIO(payload.graph), spark, context, rdd).load()
        assert isinstance(graph, StreamGraph), f"expected a graph, got {type(graph).__name__}"
        return graph
    except Exception as error:
        raise _not_unpickled(files, error) from error


def _not_unpickled(files: Files, error: Exception) -> RestartError:
    return RestartError(
        f"the streams in {files.url} cannot be recreated: {type(error).__name__}: {error}; start "
        "with the original modules and versions, or restore the state into new code by "
        "StreamingContext.restore(path, setup)"
    )


def describe_plan(
    plan: Plan, conf: SparkConf, added: Mapping[str, int] | None = None
) -> dict[str, object]:
    """Describe a plan in JSON; the value of a setting that looks secret is None."""
    settings = dict(conf.getAll())
    is_secret = secret_settings(settings)
    return {
        "format": _FORMAT,
        "zero_ms": plan.zero_ms,
        "batch_ms": plan.batch_ms,
        "inputs": [_describe_input(plan, stream) for stream in plan.inputs],
        "operators": [_describe_node(plan, node, added or {}) for node in plan.nodes],
        "outputs": [
            {
                "uid": uid,
                "operation": output.operation,
                "parent": plan.nodes[output.parent].uid,
            }
            for uid, output in zip(plan.output_uids, plan.outputs, strict=True)
        ],
        "conf": [
            [key, None if is_secret(key, value) else _given(key, value)]
            for key, value in sorted(settings.items())
            if key not in _OF_ONE_PROCESS
        ],
        "versions": {"python": platform.python_version(), "pyspark": pyspark.__version__},
    }


def conf_of(description: Mapping[str, Any], conf: SparkConf) -> SparkConf:
    """Return *conf* of a new process with the settings of an earlier one, from its description.

    The new process keeps its own master, addresses, ports, identity and secrets.
    """
    missing, others = [], []
    for key, value in description["conf"]:
        if value is None:
            missing += [] if conf.contains(key) else [key]
            continue
        is_given = key in _OF_THE_NEW_PROCESS and conf.contains(key)
        if key not in _OF_ONE_PROCESS and not is_given:
            if conf.contains(key) and conf.get(key) != value and key not in _OWN:
                others.append(key)
            conf.set(key, _given(key, value))
    if missing:
        logger.warning(
            "the previous run had settings that look secret, which are not in the checkpoint; if "
            "they are needed, set them for this process too: %s",
            ", ".join(missing),
        )
    if others:
        logger.warning(
            "settings of this process are replaced by those of the previous run, from its "
            "checkpoint: %s; StreamingContext.restore keeps those of this process",
            ", ".join(others),
        )
    return conf


def _given(key: str, value: str) -> str:
    return given_once(value) if key in _JAVA_OPTIONS else value


def given_once(options: str) -> str:
    """Return the options of a JVM without repetitions of those that Spark adds at each start.

    >>> of_spark = "-Djava.net.preferIPv6Addresses=false --add-opens=a "
    >>> given_once(f"{of_spark}{of_spark}-Dmine=1") == f"{of_spark}-Dmine=1"
    True
    """
    rest = f"{options.strip()} "
    second = rest.find(_FIRST_OF_SPARK, len(_FIRST_OF_SPARK))
    if not rest.startswith(_FIRST_OF_SPARK) or second < 0:
        return options
    added = rest[:second]
    while rest.startswith(2 * added):
        rest = rest[len(added) :]
    return rest.rstrip()


def _describe_input(plan: Plan, stream: InputDStream) -> dict[str, object]:
    return {
        "uid": plan.input_uids[stream],
        "operation": stream.operation,
        "source": stream.source.name,
        "place": stream.source.place,
        "is_chosen": stream in plan.chosen_inputs,
    }


def _describe_node(plan: Plan, node: Node, added: Mapping[str, int]) -> dict[str, object]:
    planned = plan.nodes[node]
    partitioner = getattr(node, "partitioner", None)
    times = getattr(node, "times", None)
    is_in_store = isinstance(node, StateStoreDStream)
    function = getattr(node, "function", None)
    processor = {} if not isinstance(function, TransformGroups) else function.described
    return {
        "uid": planned.uid,
        "is_chosen": planned.is_chosen,
        "operation": node.operation,
        "kind": type(node).__name__,
        "state": "stored" if is_in_store else "copied" if node.is_stateful else "none",
        "partitions": None if partitioner is None else partitioner.numPartitions,
        "partitioner": None if partitioner is None else partitioner.name,
        "columns": getattr(getattr(node, "update", None), "columns", None),
        "slide_ms": node.slide_ms,
        "window_ms": times.window_ms if isinstance(times, WindowTimes) else None,
        "checkpoint_ms": planned.checkpoint_ms,
        "began_after_ms": added.get(planned.uid),
        "parents": [plan.nodes[parent].uid for parent in node.parents],
        **processor,
    }


def _write_rdd(
    rdd: RDD[Any], number: int, files: Files, stream_id: str, epoch: int
) -> WrittenRdd | None:
    count = rdd.getNumPartitions()
    if count == 0:
        return None
    first = StatePartition(stream_id, f"rdd-{number}", 0, 0, count, "none")
    plain = rdd if not hasattr(rdd, "blocks") else rdd.map(_same)
    return write_rdd(plain, files, first, epoch)


def _same(record: Any) -> Any:
    return record


# The pickled graph ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PickledGraph:
    """A graph as bytes, and the RDDs that it refers to by number."""

    data: bytes
    rdds: tuple[RDD[Any], ...]


def pickle_graph(graph: StreamGraph, context: object) -> PickledGraph:
    """Return *graph* as bytes."""
    rdds: list[RDD[Any]] = []
    try:
        return PickledGraph(_dump(graph, context, rdds), tuple(rdds))
    except Exception as error:
        raise _explained(graph, context, error) from error


class _Pickler(cloudpickle.Pickler):
    def __init__(
        self, file: io.BytesIO, context: object, rdds: list[RDD[Any]], within: object = None
    ) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._context = context
        self._rdds = rdds
        self._within = within

    def persistent_id(self, value: object) -> tuple[str, Any] | None:
        name = self._of_the_program(value)
        if name is not None:
            return name, None
        if isinstance(value, RDD):
            if value not in self._rdds:
                self._rdds.append(value)
            return "rdd", self._rdds.index(value)
        if isinstance(value, Broadcast):
            return "broadcast", value.value
        if self._within is not None and isinstance(value, Node) and value is not self._within:
            return "node", None  # while searching for the part that cannot be pickled
        return None

    def _of_the_program(self, value: object) -> str | None:
        if value is self._context:
            return "context"
        if isinstance(value, SparkContext):
            return "spark"
        kind = type(value)
        if kind.__name__ == "SparkSession" and kind.__module__.startswith("pyspark.sql"):
            return "session"
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Node):
            return _new, (type(value), dict(vars(value)))
        if getattr(type(value), "_dstreams_driver_only", False) is True:
            raise TypeError(
                f"a {type(value).__name__} was captured in a closure; use streams only to define "
                "the graph"
            )
        return super().reducer_override(value)  # type: ignore[no-untyped-call]


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        spark: SparkContext,
        context: object,
        rdd: Callable[[int], RDD[Any]],
    ) -> None:
        super().__init__(file)
        self._spark = spark
        self._context = context
        self._rdd = rdd

    def persistent_load(self, pid: tuple[str, Any]) -> Any:
        kind, value = pid
        if kind == "broadcast":
            return self._spark.broadcast(value)
        if kind == "rdd":
            return self._rdd(value)
        if kind == "session":
            from pyspark.sql import SparkSession  # noqa: PLC0415  # most graphs have none

            return SparkSession(self._spark)
        return {"context": self._context, "spark": self._spark}[kind]


def _new(cls: type[Node], fields: Mapping[str, Any]) -> Node:
    """Create a node from its fields without calling ``__init__``: nodes are frozen."""
    node = object.__new__(cls)
    vars(node).update(fields)
    return node


def _dump(value: object, context: object, rdds: list[RDD[Any]], within: object = None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, context, rdds, within).dump(value)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _explained(graph: StreamGraph, context: object, error: Exception) -> InvalidStreamError:
    """Return an error that names the stream or output that cannot be pickled."""
    parts: Sequence[Any] = (*graph.inputs, *graph.draft().nodes, *graph.outputs)
    for part in parts:
        for value in vars(part).values():
            if isinstance(value, Node):
                continue

            def failure(inner: object, part: Any = part) -> Exception | None:
                try:
                    _dump(inner, context, [], within=part)
                except Exception as reason:
                    return reason
                return None

            if failure(value) is not None:
                return _refusal(part.operation, value, failure)
    return InvalidStreamError(f"the streams cannot be written to the checkpoint: {error}")


def _refusal(
    operation: str, value: object, failure: Callable[[object], Exception | None]
) -> InvalidStreamError:
    path, found = find_culprit(value, failure)
    what = f"it uses {path!r}, of type {type(found).__name__}" if path else "it cannot be pickled"
    return InvalidStreamError(
        f"{operation} cannot be written to the checkpoint, from which a restart recreates it, "
        f"because {what}: {failure(found)}; create it inside the function, or in onStart of a "
        "receiver, or use plain values"
    )

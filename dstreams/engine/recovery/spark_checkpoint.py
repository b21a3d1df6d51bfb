"""Reads checkpoints of pyspark.streaming.

Spark serializes its graph, including the functions, to files ``checkpoint-TIME`` by Java's
serialization. This module reads these files as data: it loads no class, unpickles no function and
changes nothing, so it can read files of any release. State is in the same directory, as pickled
pairs in ``UUID/rdd-NUMBER``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from checkpoint import (
    CheckpointError,
    Files,
    open_existing,
    require_trusted,
    unsigned,
    without_secrets,
)
from dstreams.errors import EnvironmentNotReadyError, RestartError
from dstreams.spark import jvm
from dstreams.spark.failures import summarize

SPARK_GRAPH = re.compile(r"checkpoint-(\d+)(\.bk)?")

INVERSE_SLIDES = 5
"""Slides of a window from which on Spark keeps its result as state."""

_PART = re.compile(r"[^/]+/rdd-\d+/part-00000")
_JAVA = b"\xac\xed"
"""The first bytes of Java's serialization."""

_DSTREAM = "org.apache.spark.streaming.dstream.DStream"
_FILES, _KAFKA = "FileInputDStream", "DirectKafkaInputDStream"
_STATES = {
    "PythonStateDStream": "updateStateByKey",
    "PythonReducedWindowedDStream": "reduceByKeyAndWindow",
}
_JAVA_STATES = ("StateDStream", "ReducedWindowedDStream", "InternalMapWithStateDStream")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SparkState:
    """A stream with state.

    Args:
        operation: the method that makes such a stream.
        slide_ms: the time from one RDD to the next.
        window_ms: the length of a window, None without one.
        directories: the directory of each complete RDD below the checkpoint, by batch time.
        is_python: whether the state is pickled pairs, not objects of Java.
    """

    operation: str
    slide_ms: int
    window_ms: int | None
    directories: Mapping[int, str]
    is_python: bool = True


SparkRange = tuple[str, int, int, int]
"""Topic, partition, and the offsets from which and until which a batch reads."""
SparkRanges = Mapping[int, tuple[SparkRange, ...]]
"""The ranges of each batch, by batch time."""


@dataclass(frozen=True)
class SparkInput:
    """An input.

    Args:
        operation: the method that makes such an input.
        directory: the directory of a file stream, None for other inputs.
        files: the files of each batch, by batch time, as far as Spark remembers them.
        new_since_ms: files that were modified until this time are not new.
        window_ms: the time for which Spark remembers files.
        ranges: of a direct stream of Kafka, as far as Spark remembers them.
    """

    operation: str
    directory: str | None = None
    files: Mapping[int, tuple[str, ...]] | None = None
    new_since_ms: int = 0
    window_ms: int = 0
    ranges: SparkRanges | None = None

    @property
    def batches(self) -> Mapping[int, object] | None:
        """The input of each batch by batch time, or None if it is unknown."""
        return self.files if self.ranges is None else self.ranges


@dataclass(frozen=True)
class SparkCheckpoint:
    """The newest readable checkpoint of a stream of pyspark.streaming.

    Args:
        files: its directory, which no other user can write to.
        url: the same for Spark.
        name: the file with the graph.
        zero_ms: the time from which batches are counted.
        time_ms: the time of the newest batch.
        pending_ms: the batches that were not complete, oldest first.
        states: the streams with state, parents first.
        inputs: the inputs, in the order in which they were defined.
    """

    files: Files
    url: str
    name: str
    batch_ms: int
    zero_ms: int
    time_ms: int
    pending_ms: tuple[int, ...]
    states: tuple[SparkState, ...]
    inputs: tuple[SparkInput, ...]

    def partitions(self, directory: str) -> int:
        """Return the number of partitions of a state; raise RestartError if one is missing."""
        return _partitions(self.files, directory)

    def pairs(self, spark: SparkContext, directory: str) -> RDD[tuple[Any, Any]]:
        """Return the pairs of key and state in a directory; tasks unpickle them."""
        self.partitions(directory)
        return _pairs(spark, self.files, self.url, directory)


def spark_state(spark: SparkContext, directory: str) -> RDD[tuple[Any, Any]]:
    """Return a state that ``pyspark.streaming`` has written, for example as ``initialRDD``.

    For a checkpoint whose graph is lost or damaged. Otherwise ``StreamingContext.restore`` with
    ``adopt=`` takes over the progress of inputs, too.

    Args:
        spark: reads the state.
        directory: path or URL of a directory ``UUID/rdd-NUMBER`` in a checkpoint of Spark;
            ``dstreams adopt --list`` lists them.

    Returns:
        RDD of (key, state). Its tasks unpickle both, which can run any code in the files.

    Raises:
        RestartError: files are missing, or others can write to the directory.
    """
    checkpoint, _, below = directory.rstrip("/").rpartition("/")
    try:
        files, url = _open(checkpoint or "/", f"{below}/")
        _partitions(files, below)
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise RestartError(f"the state in {without_secrets(directory)!r}: {error}") from error
    return _pairs(spark, files, url, below)


def state_directories(url: str) -> dict[str, bool]:
    """Return whether each state directory of a checkpoint of Spark is compressed, newest first.

    Raises RestartError if the directory is not a checkpoint of Spark, or cannot be read.
    """
    try:
        files, _ = _open(url)
        found = {name.rpartition("/")[0] for name in files.list("") if _PART.fullmatch(name)}
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise _not_adoptable(url, error) from error
    if not found and not _graphs(files):
        raise _no_checkpoint(url)
    names = sorted(found, key=lambda name: -int(name.rpartition("-")[2]))
    return {name: is_compressed(files, name) for name in names}


def _open(url: str, prefix: str = "") -> tuple[Files, str]:
    """Return the files of Spark at a URL, and the URL for Spark; only what no other can write."""
    files = require_trusted(unsigned(open_existing(url)), prefix)  # Spark does not sign
    return files, files.url if files.url.startswith("file:") else url.rstrip("/")


def is_compressed(files: Files, directory: str) -> bool:
    """Return whether a state was written with ``spark.checkpoint.compress``."""
    first = next(files.read_chunks(f"{directory}/part-00000", len(_JAVA)), b"")
    return not first.startswith(_JAVA)


def _pairs(spark: SparkContext, files: Files, url: str, directory: str) -> RDD[tuple[Any, Any]]:
    compressed = is_compressed(files, directory)
    if compressed is not jvm.reads_compressed_checkpoints(spark):
        raise RestartError(
            f"the state in {files.url}/{directory} was written "
            f"{'with' if compressed else 'without'} compression, and Spark expects the opposite; "
            f"set spark.checkpoint.compress={str(compressed).lower()}. Its default differs between "
            "releases"
        )
    serializer: Any = spark.serializer
    try:
        pairs = spark._checkpointFile(f"{url}/{directory}", serializer)
        count, known = pairs.getNumPartitions(), jvm.partitions_of_partitioner(pairs)
    except (Py4JJavaError, PySparkException) as error:
        raise RestartError(
            f"the state in {files.url}/{directory} cannot be read by Spark: {summarize(error)}; "
            "Spark needs the connector and the settings of the old program, for s3a:// hadoop-aws"
        ) from error
    if known not in (None, count):
        raise _incomplete(files, directory, f"{known - count} of its {known} files")
    return pairs


@contextmanager
def reading_state(where: str) -> Iterator[None]:
    """Raise RestartError, with a remedy, if a job of the block cannot read a state of Spark."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise RestartError(
            f"the state in {where} cannot be taken over: {summarize(error)}; if a file is damaged, "
            "restore it from a copy"
        ) from error


def _incomplete(files: Files, directory: str, missing: str) -> RestartError:
    return RestartError(
        f"the state in {files.url}/{directory} lacks {missing}; restore it from a copy"
    )


def _partitions(files: Files, directory: str) -> int:
    names = sorted(name for name in files.list(f"{directory}/") if re.search(r"/part-\d+$", name))
    if not names or not names[-1].endswith(f"/part-{len(names) - 1:05d}"):
        raise _incomplete(files, directory, "some of its files" if names else "all files")
    return len(names)


def read_spark_checkpoint(url: str, spark: SparkContext) -> SparkCheckpoint:
    """Read the newest checkpoint in a directory of pyspark.streaming, as Spark does.

    Raises RestartError if the directory has no readable checkpoint or others can write to it, and
    EnvironmentNotReadyError if javaobj is not installed.
    """
    try:
        files, where = _open(url)
        names = _graphs(files)
        for name in names:
            graph = _graph(files, name, spark)
            if graph is not None:
                return _read(graph, files, where, name)
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise _not_adoptable(url, error) from error
    if names:
        raise _not_adoptable(
            url,
            f"none of {', '.join(names)} can be read; restore one from a copy, or name the states "
            "that dstreams adopt --list shows: restore(..., adopt=, states={UID: DIRECTORY}), or "
            "--state UID=DIRECTORY of dstreams run",
        )
    raise _no_checkpoint(url)


def _graphs(files: Files) -> list[str]:
    """Return the files with a graph, the newest first; for one time the one written last."""
    found = [match for match in map(SPARK_GRAPH.fullmatch, files.list("checkpoint-")) if match]
    return [match[0] for match in sorted(found, key=lambda one: (-int(one[1]), one[2] or ""))]


def without_graph(url: str, batch_ms: int, zero_ms: int, time_ms: int) -> SparkCheckpoint:
    """Return a checkpoint of Spark whose graph is not read. Raises RestartError."""
    try:
        files, where = _open(url)
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise _not_adoptable(url, error) from error
    return SparkCheckpoint(files, where, "named states", batch_ms, zero_ms, time_ms, (), (), ())


def _not_adoptable(url: str, why: object) -> RestartError:
    return RestartError(
        f"the checkpoint of Spark {without_secrets(url)!r} cannot be adopted: {why}"
    )


def _no_checkpoint(url: str) -> RestartError:
    return RestartError(
        f"{without_secrets(url)!r} is not a checkpoint of pyspark.streaming: it has no file "
        "checkpoint-TIME; give the directory that the old program passes to "
        "StreamingContext.checkpoint"
    )


def _graph(files: Files, name: str, spark: SparkContext) -> Any:
    """Return the Checkpoint object in a file, None if it is damaged."""
    try:
        from javaobj.v2.api import ObjectTransformer  # noqa: PLC0415 - of the extra adopt
        from javaobj.v2.main import loads  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentNotReadyError(
            "a checkpoint of Spark cannot be read without javaobj; install dstreams[adopt]"
        ) from error

    class Queues(ObjectTransformer):  # type: ignore[misc, unused-ignore]
        def create_instance(self, classdesc: Any) -> None:
            """Expect no fields of a queue: its class has some, but Spark does not write them."""
            if classdesc.name.endswith(".QueueInputDStream"):
                classdesc.fields = []

    try:
        return loads(jvm.decompressed(spark, files.read(name)), Queues())
    except CheckpointError:
        raise
    except Exception as error:  # of any kind, as the content is unknown
        where = f"{files.url}/{name}"
        logger.warning("%s is damaged, an older one is tried: %s", where, summarize(error))
        return None


def _read(checkpoint: Any, files: Files, url: str, name: str) -> SparkCheckpoint:
    graph = _field(checkpoint, "graph")
    batch_ms = _millis(_field(graph, "batchDuration"))
    streams = _parents_first(_elements(_field(graph, "outputStreams")))
    states = [_state(stream, batch_ms) for stream in streams]
    inputs = tuple(map(_input, _elements(_field(graph, "inputStreams"))))
    pending_ms = sorted(map(_millis, _elements(_field(checkpoint, "pendingTimes"))))
    # That of a batch that ends late has its time, and knows the batches that have begun since.
    known_ms = [time_ms for one in inputs for time_ms in one.batches or ()]
    time_ms = max([_millis(_field(checkpoint, "checkpointTime")), *pending_ms, *known_ms])
    return SparkCheckpoint(
        files,
        url,
        name,
        batch_ms,
        _millis(_field(graph, "zeroTime")),
        time_ms,
        tuple(pending_ms),
        tuple(state for state in states if state is not None),
        inputs,
    )


def _state(stream: Any, batch_ms: int) -> SparkState | None:
    kind = _class(stream)
    if kind not in (*_STATES, *_JAVA_STATES):
        return None
    window_ms = _optional_millis(_field(stream, "_windowDuration", None))
    slide_ms = _slide_ms(stream, batch_ms)
    is_python = kind in _STATES
    if is_python and window_ms is not None and window_ms < INVERSE_SLIDES * slide_ms:
        return None  # computed from the batches in it
    data = _entries(_field(_field(stream, "checkpointData"), "data"))
    directories = {time_ms: "/".join(str(path).split("/")[-2:]) for time_ms, path in data}
    operation = _STATES.get(kind, kind)
    return SparkState(operation, slide_ms, window_ms, directories, is_python)


def _slide_ms(stream: Any, batch_ms: int) -> int:
    own_ms = _optional_millis(_field(stream, "_slideDuration", None))
    if own_ms is not None:
        return own_ms
    parents = _parents(stream)
    return _slide_ms(parents[0], batch_ms) if parents else batch_ms


def _input(stream: Any) -> SparkInput:
    site = _field(_field(stream, "creationSite"), "shortForm")
    operation = str(site).partition(" ")[0]
    kind = _class(stream)
    if kind not in (_FILES, _KAFKA):
        return SparkInput(operation if operation.endswith("Stream") else kind)
    data = _entries(_field(_field(stream, "checkpointData"), "data"))
    if kind == _KAFKA:
        read = {time_ms: tuple(map(_range, _elements(ranges))) for time_ms, ranges in sorted(data)}
        return SparkInput("createDirectStream", ranges=read)
    return SparkInput(
        operation,
        str(_field(stream, "directory")),
        {time_ms: tuple(map(str, _elements(paths))) for time_ms, paths in sorted(data)},
        _field(stream, "initialModTimeIgnoreThreshold"),
        _millis(_field(stream, "durationToRemember")),
    )


def _range(value: Any) -> SparkRange:
    """Return topic, partition, first offset and the offset after the last one."""
    topic, *numbers = (_field(value, f"_{number}") for number in range(1, 5))
    partition, start, until = (int(_field(number, "value")) for number in numbers)
    return str(topic), partition, start, until


def _parents_first(streams: list[Any]) -> list[Any]:
    order: dict[int, Any] = {}

    def visit(stream: Any) -> None:
        if id(stream) not in order:
            for parent in _parents(stream):
                visit(parent)
            order[id(stream)] = stream

    for stream in streams:
        visit(stream)
    return list(order.values())


def _parents(stream: Any) -> list[Any]:
    """Return the streams that a stream refers to, each once."""
    found: dict[int, Any] = {}
    for _, value in _fields(stream):
        many = value if isinstance(value, (list, tuple)) else [value]
        if _class(value).endswith(("ArraySeq$ofRef", "SerializationProxy", "ArrayBuffer")):
            many = _elements(value)
        found.update((id(one), one) for one in many if _is_stream(one))
    return list(found.values())


# Objects of Java, as javaobj reads them --------------------------------------------------------


def _is_stream(value: Any) -> bool:
    described = getattr(value, "field_data", None) or {}
    return any(part.name == _DSTREAM for part in described)


def _class(value: Any) -> str:
    """Return the class name of a Java object without its package; empty for any other value."""
    described = getattr(value, "classdesc", None)
    return "" if described is None else str(described.name).rpartition(".")[2]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an object with their names in the source, superclasses first."""
    for part in value.field_data.values():
        for field, content in part.items():
            yield str(field.name).rpartition("$")[2], content


_RAISE = object()


def _field(value: Any, name: str, default: Any = _RAISE) -> Any:
    """Return a field of an object; that of the subclass if several have the name."""
    found = [content for known, content in _fields(value) if known == name]
    if not found and default is _RAISE:
        raise ValueError(f"{_class(value)} in it has no field {name}: its format is not known")
    return found[-1] if found else default


def _millis(value: Any) -> int:
    return int(_field(value, "millis"))


def _optional_millis(value: Any) -> int | None:
    return None if value is None else _millis(value)


def _elements(value: Any) -> list[Any]:
    """Return the elements of an array or of a collection of Scala 2.12 or 2.13."""
    if isinstance(value, (list, tuple)):
        return list(value)
    array = _field(value, "array", None)
    if array is not None:
        return list(array)[: _field(value, "size0", len(array))]
    return _written(value)


def _written(value: Any) -> list[Any]:
    """Return the objects that the class of an object wrote in addition to its fields."""
    parts = [one for written in value.annotations.values() for one in written]
    return [one for one in parts if type(one).__name__ != "BlockData"]


def _entries(value: Any) -> list[tuple[int, Any]]:
    """Return the entries of a map of Scala from times: pairs in 2.13, keys and values in 2.12."""
    written = _written(value)
    if any(_class(one) == "Tuple2" for one in written):
        pairs = [one for one in written if _class(one) == "Tuple2"]
        return [(_millis(_field(one, "_1")), _field(one, "_2")) for one in pairs]
    return [(_millis(key), entry) for key, entry in zip(written[::2], written[1::2], strict=False)]

"""Calls to the JVM that PySpark's public API does not offer.

They are stable from PySpark 3.5 to 4.3: RDDs of raw frames (one ``byte[]`` per element, not
pickled), a shuffle of addressed frames, a union that keeps the partitioner, and the switch that
lets a batch overwrite its output. Other modules do not use ``_jrdd`` or ``_jvm``.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from py4j.clientserver import ClientServer
from py4j.java_collections import ListConverter, MapConverter
from py4j.java_gateway import JavaClass, JavaObject
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer, Serializer, UTF8Deserializer

from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark.failures import summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_python import require_workers

_LONG = Struct("!q")

_MOST_SENT = 64
_SMALL_FUNCTION = 1 << 14
_FEW_FRAMES = 16
_TASKS_PER_CORE = 4
_LOCAL_MASTER = re.compile(r"local(\[(?P<cores>\d+|\*)(,\d+)?\])?")
_MOST_RUNNING = 64

# For more partitions, Spark sorts serialized frames, which requires Kryo. For fewer, Kryo has no
# benefit, and each task would spend several milliseconds to create one.
_FEW_PARTITIONS = 200

TASK_TIMEOUT = "spark.dstreams.task.timeout"
"""The setting that limits the time of a task."""

_SETTINGS_OF_LINES = (
    "fs.file.impl",
    "mapreduce.input.linerecordreader.line.maxlength",
    "mapreduce.input.pathFilter.class",
    "textinputformat.record.delimiter",
)

_CODECS = {
    b"LZ4Block": "lz4",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x82SNAPPY\x00": "snappy",
    b"ZV": "lzf",
}
"""Codecs by the first bytes of what they write."""

_log = logging.getLogger(__name__)
_making_rdds_of_files = Lock()
_is_rewriting: ContextVar[bool] = ContextVar("outputs are written again", default=False)

# Classes that PySpark looks up for each RDD, at up to half a millisecond each, as attributes of the
# JVM view. An attribute that is set in the view is not looked up.
_USED_BY_PYSPARK = (
    "PythonRDD",
    "PairwiseRDD",
    "PythonPartitioner",
    "org.apache.spark.api.java.JavaRDD",  # and those below for each union
    "org.apache.spark.api.java.JavaPairRDD",
    "org.apache.spark.api.java.JavaDoubleRDD",
)
_UTILITIES, _FUNCTION = "PythonUtils", "SimplePythonFunction"


def addressed(partition: int, frame: bytes) -> tuple[bytes, bytes]:
    """Return the two frames that send *frame* to a partition in :func:`shuffle_frames`."""
    return _LONG.pack(partition), frame


def as_frames(frames: RDD[bytes], partitioner: StablePartitioner | None) -> RDD[bytes]:
    """Return an RDD of bytes as an RDD of raw frames, with *partitioner* if given.

    Functions on top of it run in another Python worker; the frames are the data to persist.
    """
    frames._bypass_serializer = True  # type: ignore[attr-defined]
    return _of_frames(frames.context, frames._jrdd, partitioner)


def frames_of(rdd: RDD[Any]) -> RDD[bytes]:
    """Return the serialized form of any RDD, which :func:`deserialized` reverses."""
    return _of_frames(rdd.context, rdd._jrdd, partitioner_of(rdd))


def deserialized(frames: RDD[bytes], serializer: Serializer) -> RDD[Any]:
    """Return the RDD of *frames* read by *serializer*, with the same partitioner."""
    rdd: RDD[Any] = RDD(frames._jrdd, frames.context, serializer)
    rdd.partitioner = frames.partitioner
    return rdd


def shuffle_frames(routed: RDD[bytes], partitioner: StablePartitioner) -> RDD[bytes]:
    """Move frames, each preceded by its address (:func:`addressed`), to their partitions."""
    spark = routed.context
    routed._bypass_serializer = True  # type: ignore[attr-defined]
    classes = _classes_of(spark)
    pairs = classes.pairwise_rdd(routed._jrdd.rdd()).asJavaPairRDD()
    shuffled = pairs.partitionBy(classes.partitioner(partitioner))
    if partitioner.numPartitions <= _FEW_PARTITIONS:
        shuffled.rdd().setSerializer(classes.serializer)
    return _of_frames(spark, classes.value_of_pair(shuffled), partitioner)


def collect_frames(computed: RDD[bytes]) -> list[bytes]:
    """Return the frames of an RDD of bytes with few frames per partition, in one job, unordered."""
    jrdd: Any = in_few_tasks(as_frames(computed, None))._jrdd
    # PySpark's collect starts a thread and a socket, and takes about three times as long.
    return _listed(computed.context, jrdd.collect())


def in_few_tasks(frames: RDD[bytes]) -> RDD[bytes]:
    """Return the frames in fewer partitions if they have many, each computed by one task.

    A task costs the JVM more than a partition: it reads the whole lineage up to the last snapshot.
    With a local master, all partitions are on one host, so tasks compute several of them, in
    turn: Python still sees one partition at a time. The order of partitions is lost.
    """
    most = _classes_of(frames.context).most_tasks
    if most is None or frames.getNumPartitions() <= most:
        return frames
    jrdd: Any = frames._jrdd
    return _of_frames(frames.context, jrdd.coalesce(most), None)


class LabelledFrames:
    """Frames that are computed together and distinguished by a label.

    Each frame of *labelled* is preceded by its label, a number (:func:`addressed`).
    """

    def __init__(self, labelled: RDD[bytes]) -> None:
        labelled._bypass_serializer = True  # type: ignore[attr-defined]
        self.context = labelled.context
        self._classes = _classes_of(self.context)
        self._pairs = self._classes.pairwise_rdd(labelled._jrdd.rdd()).asJavaPairRDD()

    def persist(self, level: StorageLevel) -> None:
        self._pairs.persist(self._classes.storage_level(self.context, level))

    def unpersist(self) -> None:
        self._pairs.unpersist(False)

    def collect(self, label: int) -> list[bytes]:
        """Return the frames with a label, in one job that computes all frames."""
        # The JVM filters them: another Python stage would cost as much as a small job.
        most, pairs = self._classes.most_tasks, self._pairs
        if most is not None and pairs.getNumPartitions() > most:
            pairs = pairs.coalesce(most)  # as in in_few_tasks
        return _listed(self.context, pairs.lookup(label))

    def frames(self) -> RDD[bytes]:
        return _of_frames(self.context, self._classes.value_of_pair(self._pairs), None)


def _listed(spark: SparkContext, found: Any) -> list[bytes]:
    """Return a Java list of byte arrays, many of them in one call."""
    count = found.size()
    if count <= _FEW_FRAMES:
        return [found.get(at) for at in range(count)]  # its iterator ends with an exception
    jvm: Any = spark._jvm
    return list(map(bytes, pickle.loads(jvm.net.razorvine.pickle.Pickler().dumps(found))))


def partitioner_of(frames: RDD[Any]) -> StablePartitioner | None:
    """Return the StablePartitioner of *frames*, None if it has none."""
    partitioner = frames.partitioner
    return partitioner if isinstance(partitioner, StablePartitioner) else None


def unite_frames(first: RDD[bytes], *others: RDD[bytes]) -> RDD[bytes]:
    """Unite equally partitioned RDDs of frames, partition by partition, without a shuffle.

    A partition of the result has the frames of *first*, then those of *others* in order.

    Raises:
        ValueError: the partitioners differ, in Python or in the JVM.
    """
    if not others:
        return first
    partitioners = [frames.partitioner for frames in (first, *others)]
    partitioner = partitioner_of(first)
    if partitioner is None or any(other != partitioner for other in partitioners):
        raise ValueError(
            f"a narrow union needs equal partitioners, got {' and '.join(map(repr, partitioners))}"
        )
    spark = first.context
    # A union of two is one call; a union of a list is more than one call per member.
    jrdd = (
        first._jrdd.union(others[0]._jrdd)
        if len(others) == 1
        else spark.union([first, *others])._jrdd
    )
    united = _of_frames(spark, jrdd, partitioner)
    if united.getNumPartitions() != partitioner.numPartitions:
        raise ValueError(
            f"the union: has {united.getNumPartitions()} partitions, so an RDD with "
            f"{partitioner!r} has another partitioner in the JVM"
        )
    return united


def lines_later(spark: SparkContext, make: Callable[[], RDD[str]]) -> RDD[str]:
    """Return an RDD of lines that calls *make*, a ``SparkContext.textFile``, on first use."""
    return _LinesLater(spark, make)


def file_splits(lines: RDD[str]) -> list[str]:
    """Return the split of each partition of a text file RDD, as ``path:first byte+bytes``."""
    jrdd: Any = lines._jrdd
    return [partition.inputSplit().toString() for partition in jrdd.rdd().partitions()]


def compressed_endings(spark: SparkContext) -> tuple[str, ...] | None:
    """Return the endings of the files that ``SparkContext.textFile`` decompresses.

    None if Hadoop's settings change how it reads lines or opens local files.
    """
    context: Any = spark._jsc
    settings = context.hadoopConfiguration()
    if any(settings.get(name) is not None for name in _SETTINGS_OF_LINES):
        return None
    jvm: Any = spark._jvm
    codecs = jvm.org.apache.hadoop.io.compress.CompressionCodecFactory
    factory = codecs(settings)
    found = (factory.getCodecByClassName(one.getName()) for one in codecs.getCodecClasses(settings))
    return tuple(codec.getDefaultExtension() for codec in found if codec is not None)


@contextmanager
def passing_over_missing_files(spark: SparkContext, *, is_wanted: bool) -> Iterator[None]:
    """Let RDDs of files that are created in the block skip missing files, or fail.

    Spark has one setting per context, which an RDD reads when it is created, so streams and queries
    of a process take turns. Spark skips the rest of the partition: use one file per partition.
    """
    jvm_context: Any = spark._jsc.sc()
    conf, key = jvm_context.conf(), "spark.files.ignoreMissingFiles"
    with _making_rdds_of_files:
        before = conf.get(key) if conf.contains(key) else None
        conf.set(key, str(is_wanted).lower())
        try:
            yield
        finally:
            if before is None:
                conf.remove(key)
            else:
                conf.set(key, before)


def set_checkpoint_directory(spark: SparkContext, url: str) -> None:
    """Set the directory of Spark's own ``RDD.checkpoint`` to *url*.

    Only programs that call ``RDD.checkpoint`` need it, so an unknown scheme is ignored. Spark
    creates a directory with a random name now and again at the first write, and never deletes it;
    this function deletes the first one.

    Raises:
        EnvironmentNotReadyError: Spark knows the scheme, but its file system fails.
    """
    scheme = url.partition(":")[0]
    jvm: Any = spark._jvm
    hadoop: Any = jvm.org.apache.hadoop.fs
    conf = spark._jsc.hadoopConfiguration()
    try:
        hadoop.FileSystem.getFileSystemClass(scheme, conf)
    except (Py4JJavaError, PySparkException) as error:
        _log.info(
            "skipped sc.setCheckpointDir, which only RDD.checkpoint needs: Spark has no file "
            "system for %s: %s",
            scheme,
            summarize(error),
        )
        return
    try:
        spark.setCheckpointDir(url)
    except (Py4JJavaError, PySparkException) as error:
        raise EnvironmentNotReadyError(
            f"Spark's file system for {scheme}: {summarize(error)}; configure it for this URL, "
            "or remove it from the JVM: only RDD.checkpoint needs it"
        ) from error
    made = spark.getCheckpointDir()
    if made is None:
        return
    path = hadoop.Path(made)
    with suppress(Py4JJavaError):
        # Not recursive: the directory is kept unless it is empty.
        path.getFileSystem(conf).delete(path, False)


def decompressed(spark: SparkContext, data: bytes) -> bytes:
    """Return the content of a file that Spark compressed with one of its codecs, or with none."""
    codec = next((name for magic, name in _CODECS.items() if data.startswith(magic)), None)
    if codec is None:
        return data
    jvm: Any = spark._jvm
    conf = spark._jsc.sc().conf()
    stream = jvm.org.apache.spark.io.CompressionCodec.createCodec(conf, codec)
    source = jvm.java.io.ByteArrayInputStream(data)
    return bytes(stream.compressedInputStream(source).readAllBytes())


def reads_compressed_checkpoints(spark: SparkContext) -> bool:
    """Return whether Spark expects its checkpoints of RDDs to be compressed."""
    jvm: Any = spark._jvm
    config = getattr(getattr(jvm.org.apache.spark.internal.config, "package$"), "MODULE$")
    return bool(spark._jsc.sc().conf().get(config.CHECKPOINT_COMPRESS()))


def partitions_of_partitioner(rdd: RDD[Any]) -> int | None:
    """Return the number of partitions that the partitioner of a checkpoint file has, if any."""
    java: Any = rdd
    found = java._jrdd.rdd().partitioner()
    return int(found.get().numPartitions()) if found.isDefined() else None


@contextmanager
def rewriting_outputs(spark: SparkContext) -> Iterator[None]:
    """Let this thread save RDDs to existing directories, as Spark does in a batch.

    A batch that runs again overwrites its output. Other threads are not affected. There is no
    effect if the program sets ``spark.hadoop.validateOutputSpecs``, if Python threads are not
    pinned to JVM threads, or in a nested block.
    """
    switch = _classes_of(spark).output_check_switch
    if switch is None or _is_rewriting.get():
        yield
        return
    before = switch.value()
    switch_to = getattr(switch, "value_$eq")
    switch_to(True)
    token = _is_rewriting.set(True)
    try:
        yield
    finally:
        _is_rewriting.reset(token)
        # The JVM may have stopped.
        with suppress(Py4JError, OSError):
            switch_to(before)


def has_own_properties(spark: SparkContext) -> bool:
    """Return whether each Python thread has its own local properties in the JVM.

    It has, unless ``PYSPARK_PIN_THREAD`` disables pinned threads.
    """
    return isinstance(getattr(spark, "_gateway", None), ClientServer)


def is_running(spark: SparkContext) -> bool:
    """Return whether the SparkContext is running and its JVM answers."""
    try:
        known = _classes.get(spark)
        jvm_context: Any = spark._jsc.sc() if known is None else known.jvm_context
        return spark._jsc is not None and not jvm_context.isStopped()
    except Exception:  # py4j has many errors for a lost connection
        return False


class RunningTask(NamedTuple):
    """A running task; *id* is that of the attempt."""

    id: int
    partition: int
    attempt: int
    host: str


class RunningStage(NamedTuple):
    """An active stage, with its oldest running tasks."""

    job_id: int
    id: int
    tasks: int
    completed: int
    running: tuple[RunningTask, ...]


def running_stages(spark: SparkContext, tag: str) -> list[RunningStage]:
    """Return the active stages of jobs with a tag, as in the Spark UI."""
    jvm_context: Any = spark._jsc.sc()
    tracker, store = jvm_context.statusTracker(), jvm_context.statusStore()
    active = set(tracker.getActiveStageIds())
    if not active:
        return []
    found = {}
    for job_id in {*tracker.getJobIdsForTag(tag)} & {*tracker.getActiveJobIds()}:
        job = tracker.getJobInfo(job_id)
        for stage_id in active.intersection(job.get().stageIds() if job.isDefined() else ()):
            stage = tracker.getStageInfo(stage_id)
            if stage.isDefined():
                found[stage_id] = _running_stage(spark, store, job_id, stage.get())
    return [stage for _, stage in sorted(found.items())]


def _running_stage(spark: SparkContext, store: Any, job_id: int, stage: Any) -> RunningStage:
    api: Any = spark._jvm.org.apache.spark.status.api.v1  # type: ignore[union-attr]
    gateway: Any = spark._gateway
    statuses = ListConverter().convert([api.TaskStatus.RUNNING], gateway._gateway_client)
    # Not the number of running tasks of the stage, which Spark updates seconds later.
    of_stage = (stage.stageId(), stage.currentAttemptId())
    found = store.taskList(*of_stage, 0, _MOST_RUNNING, api.TaskSorting.ID, statuses)
    tasks = [found.apply(at) for at in range(found.size())]
    running = tuple(
        RunningTask(task.taskId(), task.partitionId(), task.attempt(), task.host())
        for task in tasks
    )
    return RunningStage(
        job_id, stage.stageId(), stage.numTasks(), stage.numCompletedTasks(), running
    )


def executors(spark: SparkContext) -> tuple[int, int, int]:
    """Return the numbers of executors, of their cores, and of busy cores."""
    found: Any = spark._jsc.sc().statusStore().executorList(True)
    alive = [found.apply(at) for at in range(found.size())]
    usable = [one for one in alive if one.totalCores()]  # on a cluster, the driver has 0
    return (
        len(usable),
        sum(one.totalCores() for one in usable),
        sum(one.activeTasks() for one in usable),
    )


def most_task_failures(spark: SparkContext) -> int:
    """Return the number of failures of a task at which its job fails."""
    return int(spark._jsc.sc().taskScheduler().maxTaskFailures())


def kill_task(spark: SparkContext, task_id: int, reason: str) -> None:
    """Kill a task attempt and its Python worker; Spark retries the task."""
    spark._jsc.sc().killTaskAttempt(task_id, True, reason)


def cancel_job(spark: SparkContext, job_id: int, reason: str) -> None:
    """Cancel a job; its error contains *reason*."""
    spark._jsc.sc().cancelJob(job_id, reason)


def next_job_id(spark: SparkContext) -> int | None:
    """Return the id of the next job of any thread."""
    scheduler = _classes_of(spark).job_scheduler
    return None if scheduler is None else int(scheduler.numTotalJobs())


class _KeptClass(JavaClass):  # type: ignore[misc]
    """A class of the JVM that looks up each method once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        setattr(self, name, found)
        return found


class _Utilities(_KeptClass):
    """PySpark's utilities, with a cached broadcast threshold, which PySpark reads for each RDD."""

    def __init__(self, fqn: str, client: Any) -> None:
        super().__init__(fqn, client)
        self._threshold: tuple[str, int] = "", 0

    def getBroadcastThreshold(self, context: Any) -> int:  # noqa: N802
        # A setting of the context that does not change.
        name, known = context._get_object_id(), self._threshold
        if known[0] != name:
            ask = JavaClass.__getattr__(self, "getBroadcastThreshold")
            known = self._threshold = name, int(ask(context))
        return known[1]


class _FunctionClass(_KeptClass):
    """The JVM class of the functions of RDDs, which caches objects that were sent to the JVM.

    It caches small functions without broadcast variables, and the lists and dicts that most
    functions share, such as the environment of workers. The JVM sends copies to tasks, so they do
    not change. A list costs one call to create, one per entry, and one to free.
    """

    def __init__(self, fqn: str, client: Any) -> None:
        super().__init__(fqn, client)
        self._sent: dict[Any, Any] = {}
        self._functions: dict[Any, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        sent = list(map(self._kept, arguments))
        name = tuple(map(_name_of, sent))
        if None in name:
            return super().__call__(*sent)
        function = self._functions.get(name)
        if function is None:
            if len(self._functions) >= _MOST_SENT:
                self._functions.clear()
            function = self._functions[name] = super().__call__(*sent)
        return function

    def _kept(self, argument: Any) -> Any:
        """Return the cached JVM object of an argument, or else the argument."""
        key = _content_of(argument)
        if key is None:
            return argument
        sent = self._sent.get(key)
        if sent is None:
            if len(self._sent) >= _MOST_SENT:
                self._sent.clear()
            convert = MapConverter() if isinstance(argument, dict) else ListConverter()
            sent = self._sent[key] = convert.convert(argument, self._gateway_client)
        return sent


def _name_of(argument: Any) -> Any:
    """Return the cache key of an argument, None if it cannot be cached."""
    if isinstance(argument, bytearray):
        return bytes(argument) if len(argument) <= _SMALL_FUNCTION else None
    if isinstance(argument, JavaObject):
        return JavaObject, argument._get_object_id()
    return argument if isinstance(argument, str) else None


def _content_of(argument: Any) -> Any:
    """Return the cache key of a dict or list of strings, None for other arguments."""
    if isinstance(argument, dict):
        pairs = tuple(argument.items())
        return pairs if all(isinstance(text, str) for pair in pairs for text in pair) else None
    if isinstance(argument, list) and all(isinstance(text, str) for text in argument):
        return list, *argument
    return None


def keep_classes(jvm: Any) -> None:
    """Cache the classes that PySpark looks up for each RDD in a JVM view."""
    for name in (*_USED_BY_PYSPARK, _UTILITIES, _FUNCTION):
        kind = {_UTILITIES: _Utilities, _FUNCTION: _FunctionClass}.get(name, _KeptClass)
        _keep(jvm, name, kind)
    if "py4j" not in vars(jvm):
        package = jvm.py4j
        package.reflection = package.reflection
        _keep(package.reflection, "TypeUtil", _KeptClass)
        jvm.py4j = package


def _keep(place: Any, name: str, kind: type[_KeptClass]) -> None:
    if name not in vars(place):
        known = getattr(place, name)
        setattr(place, name, kind(known._fqn, known._gateway_client))


class _Classes:
    """Cached JVM objects that every batch needs, because each look-up is a round trip."""

    def __init__(self, spark: SparkContext) -> None:
        jvm: Any = spark._jvm
        jvm_context: Any = spark._jsc.sc()
        keep_classes(jvm)
        self.jvm_context = jvm_context
        self.pairwise_rdd = jvm.PairwiseRDD
        self.value_of_pair = jvm.PythonRDD.valueOfPair
        self._python_partitioner = jvm.PythonPartitioner
        self.serializer = _serializer_of_frames(spark)
        self.output_check_switch = _output_check_switch(spark)
        self.job_scheduler = _job_scheduler(spark)
        self.most_tasks = _most_tasks(spark)
        self._partitioners: dict[StablePartitioner, Any] = {}
        self._storage_levels: dict[str, Any] = {}

    def partitioner(self, partitioner: StablePartitioner) -> Any:
        known = self._partitioners
        if partitioner not in known:
            known[partitioner] = self._python_partitioner(
                partitioner.numPartitions, partitioner.jvm_id
            )
        return known[partitioner]

    def storage_level(self, spark: SparkContext, level: StorageLevel) -> Any:
        known, name = self._storage_levels, repr(level)
        if name not in known:
            known[name] = spark._getJavaStorageLevel(level)
        return known[name]


def _serializer_of_frames(spark: SparkContext) -> Any:
    """Return a serializer that frees each frame after it is written or read.

    By default, it holds a hundred frames per partition that a task writes.
    """
    jvm: Any = spark._jvm
    conf = spark._jsc.sc().conf().clone()
    conf.set("spark.serializer.objectStreamReset", "2")  # an address and its frame
    return jvm.org.apache.spark.serializer.JavaSerializer(conf)


def _job_scheduler(spark: SparkContext) -> Any:
    """Return the scheduler, which numbers jobs, None if this Spark does not expose it."""
    with suppress(Py4JError, OSError, AttributeError):  # the last one if the context has stopped
        jvm_context: Any = spark._jsc.sc()
        scheduler = jvm_context.dagScheduler()
        scheduler.numTotalJobs()
        return scheduler
    return None


def _most_tasks(spark: SparkContext) -> int | None:
    """Return the number of tasks from which on partitions share tasks, None if they never do."""
    local = _LOCAL_MASTER.fullmatch(spark.master or "")
    if local is None or spark._conf.get(TASK_TIMEOUT) is not None:
        return None
    cores = local["cores"] or "1"
    return _TASKS_PER_CORE * (os.cpu_count() or 1 if cores == "*" else int(cores))


def _output_check_switch(spark: SparkContext) -> Any:
    """Return Spark's thread-local switch of output checks, None if it has no effect."""
    is_chosen = spark.getConf().contains("spark.hadoop.validateOutputSpecs")
    if is_chosen or not has_own_properties(spark):
        return None
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.internal.io.SparkHadoopWriterUtils.disableOutputSpecValidation()


_classes: WeakKeyDictionary[SparkContext, _Classes] = WeakKeyDictionary()


def _classes_of(spark: SparkContext) -> _Classes:
    if spark not in _classes:
        require_workers(spark)
        _classes[spark] = _Classes(spark)
    return _classes[spark]


def _of_frames(spark: SparkContext, jrdd: Any, partitioner: StablePartitioner | None) -> RDD[bytes]:
    frames = _FramesRDD(jrdd, spark)
    frames.partitioner = partitioner
    return frames


class _FramesRDD(RDD[bytes]):
    """An RDD of frames that makes fewer calls to the JVM than PySpark's."""

    def __init__(self, jrdd: Any, spark: SparkContext) -> None:
        super().__init__(_Unnumbered(), spark, NoOpSerializer())
        self._jrdd = jrdd
        self._partitions: int | None = None

    def id(self) -> int:
        jrdd: Any = self._jrdd
        return int(jrdd.id())

    def getNumPartitions(self) -> int:  # noqa: N802
        if self._partitions is None:
            jrdd: Any = self._jrdd
            self._partitions = int(jrdd.getNumPartitions())
        return self._partitions

    def persist(self, storageLevel: StorageLevel = StorageLevel.MEMORY_ONLY) -> _FramesRDD:  # noqa: N803
        jrdd: Any = self._jrdd
        jrdd.persist(_classes_of(self.context).storage_level(self.context, storageLevel))
        self.is_cached = True
        return self

    def _is_barrier(self) -> bool:
        # PySpark calls this for each child RDD; the JVM knows barriers by itself.
        return False


class _LinesLater(RDD[str]):
    """An RDD of lines that is created in the JVM on first use."""

    def __init__(self, spark: SparkContext, make: Callable[[], RDD[str]]) -> None:
        super().__init__(_Unnumbered(), spark, UTF8Deserializer())
        self._jrdd = _Later(lambda: make()._jrdd)

    def id(self) -> int:
        jrdd: Any = self._jrdd
        return int(jrdd.id())

    def _is_barrier(self) -> bool:
        return False


class _Later:
    """A proxy of a JVM object that is created on first use."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own look-ups
            raise AttributeError(name)
        if self._made is None:
            self._made = self._make()
        return getattr(self._made, name)


class _Unnumbered:
    """A placeholder that avoids the call for the id of a JVM RDD, which is rarely used."""

    def id(self) -> None:
        return None

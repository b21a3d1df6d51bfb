"""What PySpark's public API cannot say, said to the JVM in one place.

It has been stable from PySpark 3.5 to 4.3: RDDs of raw frames (one ``byte[]`` an element, no
pickling), a shuffle of frames with addresses, a union that keeps the partitioner, and the switch
that lets a batch write its output again. No other module touches ``_jrdd`` or ``_jvm``.
"""

from __future__ import annotations

import logging
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
_MOST_RUNNING = 64

# Spark sorts frames for more partitions than that while they are serialized, which only Kryo can.
# For fewer it serves nothing, and each task would make a Kryo of its own: several milliseconds.
_FEW_PARTITIONS = 200

_SETTINGS_OF_LINES = (
    "fs.file.impl",
    "mapreduce.input.linerecordreader.line.maxlength",
    "mapreduce.input.pathFilter.class",
    "textinputformat.record.delimiter",
)

_log = logging.getLogger(__name__)
_making_rdds_of_files = Lock()
_is_rewriting: ContextVar[bool] = ContextVar("outputs are written again", default=False)

# Classes that PySpark looks up anew for each RDD, at up to half a millisecond each, by asking the
# view of the JVM for an attribute. What the view has as one it is not asked for again.
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
    """Return an RDD of bytes as an RDD of raw frames, partitioned by *partitioner* or by nothing.

    What is built on it runs in another Python worker; the bytes between the two are what to
    persist.
    """
    frames._bypass_serializer = True  # type: ignore[attr-defined]
    return _of_frames(frames.context, frames._jrdd, partitioner)


def frames_of(rdd: RDD[Any]) -> RDD[bytes]:
    """Return the serialized form of any RDD: what :func:`from_frames` makes an RDD of again."""
    return _of_frames(rdd.context, rdd._jrdd, partitioner_of(rdd))


def from_frames(frames: RDD[bytes], like: RDD[Any]) -> RDD[Any]:
    """Return *frames* as the RDD they were taken from, with the serializer of *like*."""
    rdd: RDD[Any] = RDD(frames._jrdd, frames.context, like._jrdd_deserializer)
    rdd.partitioner = like.partitioner
    return rdd


def deserialized(frames: RDD[bytes], serializer: Serializer) -> RDD[Any]:
    """Return the RDD of what *serializer* makes of each frame, partitioned as the frames are."""
    rdd: RDD[Any] = RDD(frames._jrdd, frames.context, serializer)
    rdd.partitioner = frames.partitioner
    return rdd


def shuffle_frames(routed: RDD[bytes], partitioner: StablePartitioner) -> RDD[bytes]:
    """Move frames, each after its address (:func:`addressed`), to their partitions."""
    spark = routed.context
    routed._bypass_serializer = True  # type: ignore[attr-defined]
    classes = _classes_of(spark)
    pairs = classes.pairwise_rdd(routed._jrdd.rdd()).asJavaPairRDD()
    shuffled = pairs.partitionBy(classes.partitioner(partitioner))
    if partitioner.numPartitions <= _FEW_PARTITIONS:
        shuffled.rdd().setSerializer(classes.serializer)
    return _of_frames(spark, classes.value_of_pair(shuffled), partitioner)


def collect_frames(computed: RDD[bytes]) -> list[bytes]:
    """Return the frames of an RDD of bytes with one frame a partition, in one job."""
    frames = as_frames(computed, None)
    if frames.getNumPartitions() > _FEW_FRAMES:
        return frames.collect()
    # PySpark's way, by a socket and a thread for it, takes about three times as long.
    jrdd: Any = frames._jrdd
    return _listed(jrdd.collect())


class LabelledFrames:
    """Frames of two kinds that are computed together; their labels tell them apart.

    Each frame of *labelled* follows its label, a number (:func:`addressed`).
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
        """Return the frames of one label, in one job, which computes all frames."""
        # The JVM looks them up itself: another stage of Python would cost as much as a small job.
        return _listed(self._pairs.lookup(label))

    def frames(self) -> RDD[bytes]:
        return _of_frames(self.context, self._classes.value_of_pair(self._pairs), None)


def _listed(found: Any) -> list[bytes]:
    return [found.get(at) for at in range(found.size())]  # its iterator ends by an exception


def partitioner_of(frames: RDD[Any]) -> StablePartitioner | None:
    """Return what *frames* claim to be partitioned by."""
    partitioner = frames.partitioner
    return partitioner if isinstance(partitioner, StablePartitioner) else None


def unite_frames(first: RDD[bytes], *others: RDD[bytes]) -> RDD[bytes]:
    """Unite equally partitioned RDDs of frames, partition by partition, without a shuffle.

    A partition of the result has the frames of *first*, then those of *others* in order.

    Raises:
        ValueError: the partitioners differ, here or on the JVM.
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
    # The union of two is one round trip, that of a list one for each of its members and some more.
    jrdd = (
        first._jrdd.union(others[0]._jrdd)
        if len(others) == 1
        else spark.union([first, *others])._jrdd
    )
    united = _of_frames(spark, jrdd, partitioner)
    if united.getNumPartitions() != partitioner.numPartitions:
        raise ValueError(f"an RDD that claims {partitioner!r} is not partitioned by it")
    return united


def lines_later(spark: SparkContext, make: Callable[[], RDD[str]]) -> RDD[str]:
    """Return what ``SparkContext.textFile`` makes in *make*, which is called when it is used."""
    return _LinesLater(spark, make)


def file_splits(lines: RDD[str]) -> list[str]:
    """Return what each partition of ``SparkContext.textFile`` reads: ``path:first byte+bytes``."""
    jrdd: Any = lines._jrdd
    return [partition.inputSplit().toString() for partition in jrdd.rdd().partitions()]


def compressed_endings(spark: SparkContext) -> tuple[str, ...] | None:
    """Return how names of files end that ``SparkContext.textFile`` decompresses.

    None where a setting of Hadoop's lets it read lines, or open files of this machine, in another
    way than it does by default.
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
    """Let RDDs of files that are made in the block pass over files that vanish, or refuse to.

    Spark has one setting for the whole context, which an RDD reads when it is made, so streams and
    queries of one process take turns. It skips the rest of a partition: use it where a partition
    has one file.
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
    """Let Spark's own ``RDD.checkpoint`` write below *url*, without leaving anything there.

    Only programs that call ``RDD.checkpoint`` need it, so a scheme that Spark does not know is
    skipped. Spark makes a directory of a random name at once, and again at the first write; nobody
    removes it.

    Raises:
        EnvironmentNotReadyError: Spark knows the scheme, and its file system fails.
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
            f"the file system of Spark for {scheme}: {summarize(error)}; set it up for this URL, "
            "or remove it from the JVM: only RDD.checkpoint needs it"
        ) from error
    made = spark.getCheckpointDir()
    if made is None:
        return
    path = hadoop.Path(made)
    with suppress(Py4JJavaError):
        # Not recursive: where something is in it, it stays.
        path.getFileSystem(conf).delete(path, False)


@contextmanager
def rewriting_outputs(spark: SparkContext) -> Iterator[None]:
    """Let what this thread saves be written where a directory exists, as Spark does in a batch.

    A batch that runs again writes its output again. The switch has no effect on other threads,
    where the program has set ``spark.hadoop.validateOutputSpecs`` itself, or where it has unpinned
    the threads of Python from those of the JVM. In a block inside of a block there is nothing to
    do.
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
        # Where the JVM has gone meanwhile there is nothing to switch.
        with suppress(Py4JError, OSError):
            switch_to(before)


def has_own_properties(spark: SparkContext) -> bool:
    """Whether local properties that this thread sets are its own: threads are pinned to the JVM's.

    They are unless the program says otherwise by ``PYSPARK_PIN_THREAD``.
    """
    return isinstance(getattr(spark, "_gateway", None), ClientServer)


def is_running(spark: SparkContext) -> bool:
    """Return whether the SparkContext has not been stopped and its JVM answers."""
    try:
        known = _classes.get(spark)
        jvm_context: Any = spark._jsc.sc() if known is None else known.jvm_context
        return spark._jsc is not None and not jvm_context.isStopped()
    except Exception:  # py4j has many for a connection that is gone
        return False


class RunningTask(NamedTuple):
    """A task that runs; *id* is that of the attempt."""

    id: int
    partition: int
    attempt: int
    host: str


class RunningStage(NamedTuple):
    """A stage that was submitted and has not ended, with the oldest of its tasks that run."""

    job_id: int
    id: int
    tasks: int
    completed: int
    running: tuple[RunningTask, ...]


def running_stages(spark: SparkContext, tag: str) -> list[RunningStage]:
    """Return the stages of jobs with a tag that run, as Spark's own page shows them."""
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
    # Not the number of tasks that the stage says to run, which Spark updates some seconds late.
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
    """Return how many executors there are, their cores, and how many of these run a task."""
    found: Any = spark._jsc.sc().statusStore().executorList(True)
    alive = [found.apply(at) for at in range(found.size())]
    usable = [one for one in alive if one.totalCores()]  # the driver of a cluster has none
    return (
        len(usable),
        sum(one.totalCores() for one in usable),
        sum(one.activeTasks() for one in usable),
    )


def most_task_failures(spark: SparkContext) -> int:
    """Return how often a task may fail before its job does."""
    return int(spark._jsc.sc().taskScheduler().maxTaskFailures())


def kill_task(spark: SparkContext, task_id: int, reason: str) -> None:
    """End an attempt with its Python worker, by SIGKILL if need be; Spark makes another one."""
    spark._jsc.sc().killTaskAttempt(task_id, True, reason)


def cancel_job(spark: SparkContext, job_id: int, reason: str) -> None:
    """Let a job fail; its error says *reason*, behind "Job N cancelled"."""
    spark._jsc.sc().cancelJob(job_id, reason)


def next_job_id(spark: SparkContext) -> int | None:
    """Return the id that the next job of any thread gets."""
    scheduler = _classes_of(spark).job_scheduler
    return None if scheduler is None else int(scheduler.numTotalJobs())


class _KeptClass(JavaClass):  # type: ignore[misc]
    """A class of the JVM that is asked once for each of its methods."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        setattr(self, name, found)
        return found


class _Utilities(_KeptClass):
    """PySpark's utilities, which say for each RDD how large a function may be in its task."""

    def __init__(self, fqn: str, client: Any) -> None:
        super().__init__(fqn, client)
        self._threshold: tuple[str, int] = "", 0

    def getBroadcastThreshold(self, context: Any) -> int:  # noqa: N802
        # A setting of the context, which nobody changes once it is there.
        name, known = context._get_object_id(), self._threshold
        if known[0] != name:
            ask = JavaClass.__getattr__(self, "getBroadcastThreshold")
            known = self._threshold = name, int(ask(context))
        return known[1]


class _FunctionClass(_KeptClass):
    """The class of the functions of RDDs: what was sent to the JVM is not sent again.

    These are small functions without broadcast variables, and what nearly all functions have in
    common: the environment of the workers and lists. Nobody changes them in the driver: the JVM
    sends copies to tasks. A list is made by a call, filled by one an entry, and let go by one more.
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
        """Return an argument as an object of the JVM that was sent before, where it can be."""
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
    """Return what tells arguments of functions from each other; None for those not to be kept."""
    if isinstance(argument, bytearray):
        return bytes(argument) if len(argument) <= _SMALL_FUNCTION else None
    if isinstance(argument, JavaObject):
        return JavaObject, argument._get_object_id()
    return argument if isinstance(argument, str) else None


def _content_of(argument: Any) -> Any:
    """Return what tells collections of texts from each other; None for all other things."""
    if isinstance(argument, dict):
        pairs = tuple(argument.items())
        return pairs if all(isinstance(text, str) for pair in pairs for text in pair) else None
    if isinstance(argument, list) and all(isinstance(text, str) for text in argument):
        return list, *argument
    return None


def keep_classes(jvm: Any) -> None:
    """Let the view of a JVM keep the classes that PySpark asks it for with each RDD, once."""
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
    """The JVM's classes and partitioners that every batch needs: each look-up is a round trip."""

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
    """Return a serializer that forgets a frame as soon as it is written or read.

    By default it holds a hundred, for each partition that a task writes.
    """
    jvm: Any = spark._jvm
    conf = spark._jsc.sc().conf().clone()
    conf.set("spark.serializer.objectStreamReset", "2")  # an address and its frame
    return jvm.org.apache.spark.serializer.JavaSerializer(conf)


def _job_scheduler(spark: SparkContext) -> Any:
    """Return what numbers the jobs; None where this Spark does not let us have it."""
    with suppress(Py4JError, OSError, AttributeError):  # the last one of a context that has stopped
        jvm_context: Any = spark._jsc.sc()
        scheduler = jvm_context.dagScheduler()
        scheduler.numTotalJobs()
        return scheduler
    return None


def _output_check_switch(spark: SparkContext) -> Any:
    """Return Spark's own switch, which belongs to a thread of the JVM; None where it is no use."""
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
    """An RDD of frames, with fewer calls of the JVM than one of PySpark."""

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
        # Asked for each RDD that is made of this one, to tell the JVM, which knows it by itself.
        return False


class _LinesLater(RDD[str]):
    """Lines of text, of which the JVM has no RDD until it is asked for something of it."""

    def __init__(self, spark: SparkContext, make: Callable[[], RDD[str]]) -> None:
        super().__init__(_Unnumbered(), spark, UTF8Deserializer())
        self._jrdd = _Later(lambda: make()._jrdd)

    def id(self) -> int:
        jrdd: Any = self._jrdd
        return int(jrdd.id())

    def _is_barrier(self) -> bool:
        return False


class _Later:
    """An object of the JVM that is made when it is used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of objects
            raise AttributeError(name)
        if self._made is None:
            self._made = self._make()
        return getattr(self._made, name)


class _Unnumbered:
    """Stands for an RDD of the JVM that is not asked for its number: hardly anybody wants it."""

    def id(self) -> None:
        return None

"""The answers of ``dstreams check`` for the names of ``pyspark.streaming``.

Keys are ``Class.member`` or names of functions. A test compares the tables with the installed
PySpark, with dstreams and with the documented differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PACKAGE = "pyspark.streaming"

Kind = Literal["change", "set", "differs"]
"""Does not run; needs a setting; runs, but behaves differently in some case."""


@dataclass(frozen=True)
class Consequence:
    """The consequence of a use of a name."""

    kind: Kind
    what: str  # the difference, or the missing feature
    fix: str = ""  # what to do; empty if nothing
    rows: tuple[str, ...] = ()
    """Prefixes of the rows in the table of differences that describe it in full."""


def _differs(what: str, *rows: str, fix: str = "") -> Consequence:
    return Consequence("differs", what, fix, rows)


def _change(what: str, fix: str, *rows: str) -> Consequence:
    return Consequence("change", what, fix, rows)


MODULES: Mapping[str, tuple[str, ...]] = {
    PACKAGE: ("StreamingContext", "DStream", "StreamingListener"),
    f"{PACKAGE}.context": ("StreamingContext",),
    f"{PACKAGE}.dstream": ("DStream", "TransformedDStream"),
    f"{PACKAGE}.listener": ("StreamingListener",),
    f"{PACKAGE}.util": ("rddToFileName", "TransformFunction", "TransformFunctionSerializer"),
    f"{PACKAGE}.kafka": (
        *("Broker", "KafkaMessageAndMetadata", "KafkaUtils", "OffsetRange", "TopicAndPartition"),
        *("utf8_decoder", "KafkaDStream", "KafkaRDD", "KafkaTransformedDStream"),
    ),
    f"{PACKAGE}.kinesis": (
        *("KinesisUtils", "InitialPositionInStream", "MetricsLevel", "utf8_decoder"),
    ),
    f"{PACKAGE}.flume": ("FlumeUtils", "utf8_decoder"),
    f"{PACKAGE}.mqtt": ("MQTTUtils",),
}
"""The names of each module in Spark 1.6 to 4.3."""

_PAIRS = _differs(
    "A record with three parts fails the batch; Spark drops the third part.",
    "A record of three in `mapValues`, `flatMapValues` or a join",
)
_WINDOW = _differs(
    "A checkpoint directory is required only if an inverse function is used.",
    "Checkpoint directory for windows",
    "`persist` on a window",
)
_OFFSETS = (
    "A current Kafka consumer reads ranges of offsets; parameters of Kafka 0.8 are translated."
)
_NO_EFFECT_OF_24 = (
    "Under dstreams run this is the class of 2.4; dstreams.kafka has Scala's under this name."
)
_KAFKA = "`pyspark.streaming.kafka`"
_FLUME = _change(
    "Spark removed it in 3.0, and dstreams does not have it.",
    "Let Flume's Kafka sink write to a topic and read it with KafkaUtils, or read Flume with your "
    "own dstreams.Receiver in ssc.receiverStream.",
)
_MQTT = _change(
    "Spark removed it in 2.0, and dstreams does not have it.",
    "Read the broker with your own dstreams.Receiver in ssc.receiverStream.",
)
_OF_THE_JVM = _change(
    "It is how the JVM calls Python in pyspark.streaming; dstreams has no streams in the JVM.",
    "Use DStream.transform or foreachRDD.",
)
_RECEIVERS = _differs("Receivers run in the driver, as their location shows.", "Receivers")
_OUTPUT_NAMES = _differs(
    "The name of an output is its operation and the line of the program.",
    "Names of outputs in events",
)

ANSWERS: Mapping[str, Consequence] = {
    "StreamingContext.awaitTermination": _differs(
        "SIGTERM and Ctrl-C stop the stream cleanly, and the program continues after this call. "
        "After several failures the first one is raised.",
        "SIGTERM, Ctrl-C",
        "`awaitTermination` after several failures",
        "A scheduler that fails",
    ),
    "StreamingContext.binaryRecordsStream": _differs(
        "A file whose length is not a multiple of recordLength fails its batch; the error names "
        "the file.",
        "`binaryRecordsStream` with a file of another length",
    ),
    "StreamingContext.checkpoint": _differs(
        "The format differs: state, windows and progress are durable when a batch is committed. A "
        "directory written by Spark is refused.",
        "Storage of durable state",
        "Copies of the state",
        "State that cannot be persisted",
        fix="Use a separate directory.",
    ),
    "StreamingContext.getOrCreate": _differs(
        "A checkpoint of Spark is not resumed: StreamingContext.restore(directory, setup, "
        "adopt=SPARK_CHECKPOINT) takes it over into another directory. Restarts run exactly what "
        "was not committed.",
        "A restart",
        "A failed output, then a restart",
        "A damaged newest checkpoint file",
        "Code that has changed",
        fix="After a code change use StreamingContext.restore.",
    ),
    "StreamingContext.queueStream": _differs(
        "An empty queue is accepted, a string as a batch is refused. With a checkpoint directory "
        "the items of a queue are lost on a restart, unless replayable=True.",
        "`queueStream`",
        "`queueStream` with a checkpoint directory",
        "A batch that no output asks for",
    ),
    "StreamingContext.socketTextStream": _differs(
        "The driver reads the socket, without a core of an executor, and reconnects. Lines end "
        "with a line feed, and lines over 1 MiB are skipped. storageLevel has no effect.",
        "`socketTextStream`",
        "End of a line in `socketTextStream`",
        "Receivers",
    ),
    "StreamingContext.start": _differs(
        "Functions are checked when the stream is defined or started, not in the first batch: "
        "their number of arguments, and whether they can be sent to workers.",
        "Functions for the workers",
        "An output that captures the SparkContext, with a checkpoint directory",
    ),
    "StreamingContext.stop": _differs(
        "A graceful stop immediately runs what was received in one more batch. If its time limit "
        "expires, it raises an IncompleteStopError.",
        "Graceful stop",
        "A graceful stop whose time is up, or in which Spark ends",
        "`stop()` in a listener",
    ),
    "StreamingContext.textFileStream": _differs(
        "A failed listing fails the batch. Names that start with _, or end in .tmp or ._COPYING_, "
        "are ignored; a file is read once, and small files share tasks.",
        "`textFileStream`",
        "Many small files",
        "Record counts of files and RDD queues",
        "`spark.files.ignoreMissingFiles`",
    ),
    **dict.fromkeys(
        ("StreamingContext.transform", "StreamingContext.union"),
        _differs(
            "A stream without an RDD in a batch counts as empty and does not fail the batch.",
            "`ssc.union` and `ssc.transform` of streams of which one has no RDD",
        ),
    ),
    "StreamingContext._jssc": _differs(
        "It has start, stop, close, awaitTermination, awaitTerminationOrTimeout, getState and "
        "sparkContext; calls of streams raise an error.",
        "`ssc._jssc`",
    ),
    "StreamingContext._jvm": _change(
        "dstreams uses no streaming class of the JVM, and the context has no _jvm.",
        "For anything but streaming use ssc.sparkContext._jvm.",
    ),
    **dict.fromkeys(("DStream.flatMapValues", "DStream.mapValues", "DStream.join"), _PAIRS),
    **dict.fromkeys(("DStream.leftOuterJoin", "DStream.rightOuterJoin"), _PAIRS),
    "DStream.fullOuterJoin": _PAIRS,
    **dict.fromkeys(("DStream.window", "DStream.countByWindow"), _WINDOW),
    **dict.fromkeys(("DStream.countByValueAndWindow", "DStream.reduceByWindow"), _WINDOW),
    "DStream.count": _differs(
        "An RDD without partitions counts as 0, like every empty RDD; Spark returns no element.",
        "`count` of an RDD without partitions",
    ),
    "DStream.foreachRDD": _differs(
        "A function may take the batch id as a third argument. Errors name the failed output, and "
        "after a crash the outputs of an uncommitted batch run again.",
        "`foreachRDD`",
        "One or two arguments in `foreachRDD`, `transform`, `transformWith`",
        "Batches without jobs, and failed ones",
    ),
    "DStream.groupByKeyAndWindow": _differs(
        "A key whose values have all left the window is no longer in the result.",
        "`groupByKeyAndWindow` from five slides on",
        "Checkpoint directory for windows",
    ),
    "DStream.persist": _differs(
        "A later checkpoint(interval) keeps the level, and the level of a stream takes precedence "
        "over that of a window on it.",
        "Storage level of a state, or of a window with an inverse function",
        "`checkpoint(interval)` after `persist(level)`",
        "`persist` on a window",
    ),
    "DStream.reduceByKeyAndWindow": _differs(
        "filterFunc without an inverse function is ignored with a warning, not silently.",
        "`filterFunc` without an inverse function",
        "Checkpoint directory for windows",
    ),
    "DStream.saveAsTextFiles": _differs(
        "A directory appears only when complete, and a batch that runs again does not change it. "
        "A directory written by another program is an error.",
        "`saveAsTextFiles`",
        "`spark.hadoop.validateOutputSpecs`",
    ),
    "DStream.slice": _differs("It returns RDDs of batches that ran; it computes none.", "`slice`"),
    "DStream.transform": _differs(
        "After a function that returned None, no further operation is called in that batch.",
        "An operation behind a `transform` that returned None",
        "One or two arguments in `foreachRDD`, `transform`, `transformWith`",
    ),
    "DStream.updateStateByKey": _differs(
        "The function is called for every key in every batch, even if the stream has no RDD. Keys "
        "are partitioned by stable_hash, which refuses NaN and objects hashed by address. A "
        "duplicate key in initialRDD is an error.",
        "State in a batch where the parent has no RDD",
        "Placement of keys",
        "A key that is twice in `initialRDD`",
        "`updateStateByKey`",
        "Partition functions in `reduceByKey`, joins and windows",
    ),
    "DStream._jdstream": _change(
        "A DStream of dstreams has no counterpart in the JVM.",
        "Do it in Python, with transform or foreachRDD.",
    ),
    "StreamingListener.Java": _differs(
        "The JVM never calls back, so the class Java has no effect.", fix="Remove it, or keep it."
    ),
    "StreamingListener.onBatchCompleted": _differs(
        "It is called for every batch, including batches without jobs and failed or cancelled "
        "batches.",
        "Batches without jobs, and failed ones",
    ),
    **{
        f"StreamingListener.onOutputOperation{event}": _OUTPUT_NAMES
        for event in ("Started", "Completed")
    },
    **{
        f"StreamingListener.onReceiver{event}": _RECEIVERS
        for event in ("Started", "Error", "Stopped")
    },
    "KafkaUtils.createStream": _differs(
        f"{_OFFSETS} It starts at the offsets of the group. zkQuorum, numbers of threads and "
        "storageLevel have no effect; of several streams of a group, the first one reads all.",
        _KAFKA,
    ),
    "KafkaUtils.createDirectStream": _differs(
        f"{_OFFSETS} New partitions are read too, unless fromOffsets selects the partitions.",
        _KAFKA,
    ),
    "KafkaUtils.createRDD": _differs(f"{_OFFSETS} leaders has no effect.", _KAFKA),
    **{
        name: _differs(
            _NO_EFFECT_OF_24, fix=f"With new imports use dstreams.compat.kafka24.{name}24."
        )
        for name in ("KafkaDStream", "KafkaRDD")
    },
    "KafkaTransformedDStream": _change("A transformed stream is a DStream.", "Use DStream."),
    "KinesisUtils.createStream": _differs(
        "The driver reads the shards with boto3. kinesisAppName, checkpointInterval and "
        "storageLevel have no effect, DynamoDB is not used, and credentials are not stored in a "
        "checkpoint: a restart takes them from the environment.",
        "`pyspark.streaming.kinesis`",
    ),
    **dict.fromkeys(("FlumeUtils", "FlumeUtils.createStream"), _FLUME),
    "FlumeUtils.createPollingStream": _FLUME,
    **dict.fromkeys(("MQTTUtils", "MQTTUtils.createStream"), _MQTT),
    "TransformedDStream": _change("A transformed stream is a DStream.", "Use DStream."),
    **dict.fromkeys(("TransformFunction", "TransformFunctionSerializer"), _OF_THE_JVM),
}

OLD_LEVELS = frozenset(
    f"{name}_SER{copies}" for name in ("MEMORY_ONLY", "MEMORY_AND_DISK") for copies in ("", "_2")
)
"""Storage levels of PySpark up to 2.4."""

OLD_LEVEL = _differs(
    "PySpark removed it in 3.0. dstreams run provides it as the level without _SER.",
    fix="With new imports remove _SER.",
)
NO_BROKERS = Consequence(
    "set",
    "The call may name only ZooKeeper, which Kafka no longer has.",
    "Name the brokers, in kafkaParams={'metadata.broker.list': 'HOST:PORT'} or with dstreams run "
    "--conf spark.dstreams.kafka.bootstrapServers=HOST:PORT app.py.",
    (_KAFKA,),
)
NO_JVM_CLASS = _change(
    "It names a streaming class of the JVM; dstreams uses none.",
    "Use the methods of StreamingContext.",
)
NO_JAR = _change(
    "It adds a jar of Spark's streaming, which is not needed and only loads in its own Spark "
    "version.",
    "Remove it from --packages, --jars and the settings.",
)
STRUCTURED = _differs(
    "Structured Streaming remains Spark's own, even under dstreams run.",
    fix="dstreams.structured offers its API on RDDs.",
)
NO_EFFECT = _differs("The setting has no effect.", fix="You may remove it.")
UNKNOWN = _change(
    "Neither pyspark.streaming 4.3 nor dstreams has it.", "Check where the name comes from."
)
NOT_REPLACED = _differs(
    "The sed command below does not change this import.",
    fix="Write import dstreams as streaming.",
)

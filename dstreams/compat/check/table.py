"""The table: an answer for every public name of ``pyspark.streaming``.

Keys are ``Class.name`` and names of functions, wherever they are imported from; :data:`MODULES`
says which module has which. A test compares it with the installed PySpark, with the product, and
with the table of differences in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from dstreams.compat.check.answers import SAME, Answer, change, differs

PACKAGE = "pyspark.streaming"

MODULES: Mapping[str, tuple[str, ...]] = {
    PACKAGE: ("StreamingContext", "DStream", "StreamingListener"),
    f"{PACKAGE}.context": ("StreamingContext",),
    f"{PACKAGE}.dstream": ("DStream", "TransformedDStream"),
    f"{PACKAGE}.listener": ("StreamingListener",),
    f"{PACKAGE}.util": ("rddToFileName", "TransformFunction", "TransformFunctionSerializer"),
    f"{PACKAGE}.kafka": (
        "Broker",
        "KafkaMessageAndMetadata",
        "KafkaUtils",
        "OffsetRange",
        "TopicAndPartition",
        "utf8_decoder",
        "KafkaDStream",
        "KafkaRDD",
        "KafkaTransformedDStream",
    ),
    f"{PACKAGE}.kinesis": (
        "KinesisUtils",
        "InitialPositionInStream",
        "MetricsLevel",
        "utf8_decoder",
    ),
    f"{PACKAGE}.flume": ("FlumeUtils", "utf8_decoder"),
    f"{PACKAGE}.mqtt": ("MQTTUtils",),
}
"""The names of each module, of Spark 1.6 to 4.3; the first ones are those that a star imports."""

UNLISTED = frozenset(
    [
        *("TransformedDStream", "TransformFunction", "TransformFunctionSerializer"),
        *("KafkaDStream", "KafkaRDD", "KafkaTransformedDStream"),
    ]
)
"""Names that a star does not import."""

_CONTEXT: Mapping[str, Answer] = {
    "": SAME,
    "addStreamingListener": SAME,
    "awaitTermination": differs(
        "SIGTERM and Ctrl-C stop the stream cleanly, and the program goes on behind this call. "
        "After several failures the first one is raised.",
        "SIGTERM, Ctrl-C",
        "`awaitTermination` after several failures",
        "A scheduler that fails",
    ),
    "awaitTerminationOrTimeout": SAME,
    "binaryRecordsStream": differs(
        "A file whose length is no multiple of recordLength fails the batch, which names it.",
        "`binaryRecordsStream` with a file of another length",
    ),
    "checkpoint": differs(
        "What is written there is of another format: state, windows and progress are durable "
        "as batches are committed. A directory that Spark has written to is refused.",
        "Storage of durable state",
        "Copies of the state",
        "State that cannot be persisted",
        instead="Give it a directory of its own.",
    ),
    "getActive": SAME,
    "getActiveOrCreate": SAME,
    "getOrCreate": differs(
        "A checkpoint of Spark cannot be taken up: the first run begins anew, in a directory of "
        "its own. From then on a restart runs again what was not committed, and nothing else.",
        "A restart",
        "A failed output, then a restart",
        "A damaged newest checkpoint file",
        "Code that has changed",
        instead="For code that has changed since there is StreamingContext.restore.",
    ),
    "queueStream": differs(
        "An empty queue is taken; a text as a batch is refused. With a checkpoint directory the "
        "items of a queue are lost in a restart, unless replayable=True.",
        "`queueStream`",
        "`queueStream` with a checkpoint directory",
        "A batch that no output asks for",
    ),
    "remember": SAME,
    "socketTextStream": differs(
        "The driver reads the socket, without a core of an executor, and connects again. Lines "
        "end by a line feed, and one of more than 1 MiB is skipped. storageLevel has no effect.",
        "`socketTextStream`",
        "End of a line in `socketTextStream`",
        "Receivers",
    ),
    "sparkContext": SAME,
    "start": differs(
        "Functions are checked where the stream is defined and at the start, and not in the first "
        "batch: their number of arguments, and whether they can be sent to workers.",
        "Functions for the workers",
        "An output that captures the SparkContext, with a checkpoint directory",
    ),
    "stop": differs(
        "A graceful stop runs what was received in one more batch, at once. What it leaves out "
        "when its time is up is an IncompleteStopError.",
        "Graceful stop",
        "A graceful stop whose time is up, or in which Spark ends",
        "`stop()` in a listener",
    ),
    "textFileStream": differs(
        "A listing that fails fails the batch. A name with _ in front, or one that ends in .tmp or "
        "._COPYING_, is left out; a file is read once, and small ones are combined into tasks.",
        "`textFileStream`",
        "Many small files",
        "Record counts of files and RDD queues",
        "`spark.files.ignoreMissingFiles`",
    ),
    "transform": differs(
        "A stream that has no RDD in a batch counts as an empty one, and fails nothing.",
        "`ssc.union` and `ssc.transform` of streams of which one has no RDD",
    ),
    "union": differs(
        "A stream that has no RDD in a batch is left out, and fails nothing.",
        "`ssc.union` and `ssc.transform` of streams of which one has no RDD",
    ),
}

_PAIRS = differs(
    "A record of three parts fails the batch, where Spark loses its end.",
    "A record of three in `mapValues`, `flatMapValues` or a join",
)
_WINDOW = differs(
    "A checkpoint directory is needed only where an inverse function is used.",
    "Checkpoint directory for windows",
    "`persist` on a window",
)
_BY_KEY = differs(
    "Keys are placed by stable_hash, the same in every process; NaN and objects that are hashed "
    "by their address are refused as keys.",
    "Placement of keys",
    "Partition functions in `reduceByKey`, joins and windows",
)

_STREAM: Mapping[str, Answer] = {
    "": SAME,
    **dict.fromkeys(("cache", "context", "countByValue", "filter", "glom", "repartition"), SAME),
    **dict.fromkeys(("is_cached", "is_checkpointed", "reduce", "union"), SAME),
    **dict.fromkeys(("map", "flatMap", "mapPartitions", "mapPartitionsWithIndex"), SAME),
    **dict.fromkeys(("cogroup", "combineByKey", "groupByKey", "partitionBy", "reduceByKey"), SAME),
    **dict.fromkeys(("flatMapValues", "mapValues"), _PAIRS),
    **dict.fromkeys(("fullOuterJoin", "join", "leftOuterJoin", "rightOuterJoin"), _PAIRS),
    **dict.fromkeys(
        ("window", "countByWindow", "countByValueAndWindow", "reduceByWindow"), _WINDOW
    ),
    "checkpoint": SAME,
    "count": differs(
        "An RDD without partitions counts as 0, as every empty RDD does; Spark gives no element.",
        "`count` of an RDD without partitions",
    ),
    "foreachRDD": differs(
        "A function may take the batch id as a third argument. An output that failed is named, "
        "and after a crash those of a batch that was not committed run again.",
        "`foreachRDD`",
        "One or two arguments in `foreachRDD`, `transform`, `transformWith`",
        "Batches without jobs, and failed ones",
    ),
    "groupByKeyAndWindow": differs(
        "A key of which all values have left the window is not in the result any more.",
        "`groupByKeyAndWindow` from five slides on",
        "Checkpoint directory for windows",
    ),
    "persist": differs(
        "checkpoint(interval) behind it keeps the level, and a level of a stream wins over that of "
        "a window on it.",
        "Storage level of a state, or of a window with an inverse function",
        "`checkpoint(interval)` after `persist(level)`",
        "`persist` on a window",
    ),
    "pprint": SAME,
    "reduceByKeyAndWindow": differs(
        "filterFunc without an inverse function is ignored with a warning, not silently.",
        "`filterFunc` without an inverse function",
        "Checkpoint directory for windows",
    ),
    "saveAsTextFiles": differs(
        "A directory appears complete or not at all, and a batch that runs again changes nothing. "
        "One that another program wrote is an error.",
        "`saveAsTextFiles`",
        "`spark.hadoop.validateOutputSpecs`",
    ),
    "slice": differs("It returns the RDDs of batches that ran, and computes no others.", "`slice`"),
    "transform": differs(
        "Behind a function that returned None no operation is called in that batch.",
        "An operation behind a `transform` that returned None",
        "One or two arguments in `foreachRDD`, `transform`, `transformWith`",
    ),
    "transformWith": SAME,
    "updateStateByKey": differs(
        "The function is called for every key in every batch, also where the stream has no RDD. "
        "Keys are placed by stable_hash, which refuses NaN and objects hashed by their address. A "
        "key that is twice in initialRDD is an error.",
        "State in a batch where the parent has no RDD",
        "Placement of keys",
        "A key that is twice in `initialRDD`",
        "`updateStateByKey`",
    ),
}

_NEVER_CALLED = "Nothing calls back from the JVM: the name is not needed."

_LISTENER: Mapping[str, Answer] = {
    "": SAME,
    "Java": differs(
        _NEVER_CALLED, instead="Leave the class Java out, or keep it: it has no effect."
    ),
    **dict.fromkeys(("onBatchStarted", "onBatchSubmitted", "onStreamingStarted"), SAME),
    "onBatchCompleted": differs(
        "It is called for every batch: also for one without jobs, and for one that failed or was "
        "cut off.",
        "Batches without jobs, and failed ones",
    ),
    **dict.fromkeys(
        ("onOutputOperationStarted", "onOutputOperationCompleted"),
        differs(
            "The name of an output is the operation and line of the program.",
            "Names of outputs in events",
        ),
    ),
    **dict.fromkeys(
        ("onReceiverStarted", "onReceiverError", "onReceiverStopped"),
        differs("Receivers run in the driver; their location says so.", "Receivers"),
    ),
}

_KAFKA = "`pyspark.streaming.kafka`"
_READ_BY_OFFSETS = (
    "A consumer of today reads ranges of offsets; parameters of Kafka 0.8 have their newer names."
)

_OF_KAFKA: Mapping[str, Answer] = {
    "KafkaUtils": SAME,
    "KafkaUtils.createStream": differs(
        f"{_READ_BY_OFFSETS} It begins where the group stands at the brokers. zkQuorum, numbers "
        "of threads and storageLevel have no effect; of several streams of a group the first one "
        "reads all.",
        _KAFKA,
    ),
    "KafkaUtils.createDirectStream": differs(
        f"{_READ_BY_OFFSETS} Partitions that are added are read too, unless fromOffsets says "
        "which are read.",
        _KAFKA,
    ),
    "KafkaUtils.createRDD": differs(f"{_READ_BY_OFFSETS} leaders has no effect.", _KAFKA),
    "Broker": SAME,
    "OffsetRange": SAME,
    "TopicAndPartition": SAME,
    "KafkaMessageAndMetadata": SAME,
    "utf8_decoder": SAME,
    "KafkaDStream": differs(
        "Under dstreams run it is that of 2.4; dstreams.kafka has Scala's under this name.",
        instead="With imports replaced, import KafkaDStream24 from dstreams.compat.kafka24.",
    ),
    "KafkaRDD": differs(
        "Under dstreams run it is that of 2.4; dstreams.kafka has Scala's under this name.",
        instead="With imports replaced, import KafkaRDD24 from dstreams.compat.kafka24.",
    ),
    "KafkaRDD.offsetRanges": SAME,
    "KafkaTransformedDStream": change(
        "It is not there: a stream that transform makes is a DStream.", "Use DStream."
    ),
}

_KINESIS = differs(
    "The driver reads the shards, by boto3. kinesisAppName, checkpointInterval and storageLevel "
    "have no effect, nothing is kept in DynamoDB, and keys are in no checkpoint: after a restart "
    "they are those of the environment.",
    "`pyspark.streaming.kinesis`",
)
_OF_KINESIS: Mapping[str, Answer] = {
    "KinesisUtils": SAME,
    "KinesisUtils.createStream": _KINESIS,
    "InitialPositionInStream": SAME,
    "MetricsLevel": SAME,
}

_FLUME = change(
    "Spark removed it in 3.0, and it is not here.",
    "Let Flume's Kafka sink write to a topic and read that by KafkaUtils, or read Flume by a "
    "dstreams.Receiver of your own in ssc.receiverStream.",
)
_MQTT = change(
    "Spark removed it in 2.0, and it is not here.",
    "Read the broker by a dstreams.Receiver of your own in ssc.receiverStream.",
)
_OF_THE_JVM = change(
    "It is how the JVM calls Python in pyspark.streaming; no stream of the JVM is used here.",
    "Use DStream.transform or foreachRDD.",
)


def _of(name: str, answers: Mapping[str, Answer]) -> dict[str, Answer]:
    return {f"{name}.{member}" if member else name: one for member, one in answers.items()}


ANSWERS: Mapping[str, Answer] = {
    **_of("StreamingContext", _CONTEXT),
    **_of("DStream", _STREAM),
    **_of("StreamingListener", _LISTENER),
    **_OF_KAFKA,
    **_OF_KINESIS,
    "rddToFileName": SAME,
    **dict.fromkeys(("FlumeUtils", "FlumeUtils.createStream"), _FLUME),
    "FlumeUtils.createPollingStream": _FLUME,
    **dict.fromkeys(("MQTTUtils", "MQTTUtils.createStream"), _MQTT),
    "TransformedDStream": change("It is not there: what map returns is a DStream.", "Use DStream."),
    **dict.fromkeys(("TransformFunction", "TransformFunctionSerializer"), _OF_THE_JVM),
}

PRIVATE: Mapping[str, Answer] = {
    "StreamingContext._jssc": differs(
        "It has start, stop, close, awaitTermination, awaitTerminationOrTimeout, getState and "
        "sparkContext; a call of a stream is an error that says so.",
        "`ssc._jssc`",
    ),
    "StreamingContext._jvm": change(
        "No class of the JVM's streaming is used here, and the context has no _jvm.",
        "For what is not of streaming use ssc.sparkContext._jvm.",
    ),
    "DStream._jdstream": change(
        "No stream of the JVM is used here, so there is none behind a DStream.",
        "Do it in Python, by transform or foreachRDD.",
    ),
}
"""Private names that programs are known to use."""

JAVA_CALLS = frozenset(
    [
        *("start", "stop", "close", "awaitTermination", "awaitTerminationOrTimeout"),
        *("getState", "sparkContext"),
    ]
)
"""What ``ssc._jssc`` has here."""

NO_JAVA_CALL = change(
    "ssc._jssc has no such call here: no stream of the JVM is used.",
    "Call what the StreamingContext itself has.",
    "`ssc._jssc`",
)
NO_CLASS_OF_THE_JVM = change(
    "Spark's own streaming is called through the JVM; here no class of it is used.",
    "Call what the StreamingContext has, in Python.",
)
OLD_LEVELS = tuple(
    f"{name}_SER{copies}" for name in ("MEMORY_ONLY", "MEMORY_AND_DISK") for copies in ("", "_2")
)
"""Names of storage levels that PySpark had up to 2.4: those without _SER, by another name."""
OLD_LEVEL_UNDER_RUN = differs(
    "PySpark has it no more; dstreams run gives it, as the level without _SER, as it was in 2.4.",
    instead="With imports replaced leave _SER out.",
)
OLD_LEVEL = change("PySpark has it no more since 3.0.", "Leave _SER out: it is the same level.")
NO_JAR = change(
    "A jar of Spark's streaming is asked for, which is not needed, and which no other version of "
    "Spark can load.",
    "Leave it out of --packages, --jars and the settings.",
)
STRUCTURED = differs(
    "Structured Streaming stays Spark's own, also under dstreams run.",
    instead="dstreams.structured has its names on RDDs.",
)
ROUNDED = differs(
    "Milliseconds of a duration are rounded, where Spark cuts them off.", "A duration of 2.01 s"
)
NO_HDFS = change(
    "A checkpoint on hdfs: is refused: the storage must create a file only if it is absent.",
    "Give a local or mounted path, or one of S3, Google Cloud Storage or Azure.",
)
PRIVATE_NAME = change(
    "It is a private name of pyspark.streaming, and not here.",
    "Use what is public, or ask for what is missing.",
)
NO_SUCH_NAME = change(
    "Neither pyspark.streaming 4.3 nor dstreams has it.", "Look where it came from."
)
NO_SUCH_MODULE = change(
    "It is not here, and pyspark.streaming 4.3 has no such module.",
    "Read what it read by a dstreams.Receiver of your own in ssc.receiverStream.",
)

WITHOUT_A_NAME = frozenset(
    [
        "`fileStream`, `receiverStream`, `socketStream`, `rateStream`",
        "`saveToKafka`",
        "`step()`, `getState()`",
        "`latest()`, `show()`, `stateStore()`, `explain()`",
        "`mapWithState` timeouts",
        "A clock that is set back",
        "A `StopIteration` in a function",
        "`pprint`",
        "`spark.streaming.concurrentJobs`",
        "`spark.io.encryption.enabled` with `mapWithState`",
        "`ssc.checkpoint(directory)`",
        "`start()` of a stream that cannot run as it is defined",
        "Backpressure after a start",
    ]
)
"""Rows of differences that no name in a program shows, or that every program has."""

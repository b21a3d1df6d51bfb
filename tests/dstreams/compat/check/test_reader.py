"""What a program is found to use: names are followed through its file."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from dstreams.compat.check.findings import Finding
from dstreams.compat.check.program import read_program
from dstreams.compat.check.reader import findings_of


def found(directory: Path, source: str) -> list[Finding]:
    path = directory / "app.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return findings_of(read_program(path))


def told(directory: Path, source: str) -> list[tuple[int, str, str]]:
    return [(one.place.line, one.name, one.answer.kind.value) for one in found(directory, source)]


IMPORT = "from pyspark.streaming import StreamingContext\n"

WAYS_TO_A_STREAM = {
    "a name": "ssc = StreamingContext(sc, 1)\nssc.queueStream([]).count()",
    "an alias": (
        "from pyspark.streaming import StreamingContext as S\nS(sc, 1).queueStream([]).count()"
    ),
    "the package": "import pyspark.streaming\n"
    "pyspark.streaming.StreamingContext(sc, 1).queueStream([]).count()",
    "the package under a name": "import pyspark.streaming as s\n"
    "s.context.StreamingContext(sc, 1).queueStream([]).count()",
    "from pyspark": "from pyspark import streaming\n"
    "streaming.StreamingContext(sc, 1).queueStream([]).count()",
    "a star": "from pyspark.streaming import *\nStreamingContext(sc, 1).queueStream([]).count()",
    "a module": "from pyspark.streaming.context import StreamingContext\n"
    "StreamingContext(sc, 1).queueStream([]).count()",
    "a parameter": "def f(s):\n    return s.queueStream([]).count()\nf(StreamingContext(sc, 1))",
    "a parameter by name": (
        "def f(*, s=None):\n    return s.queueStream([]).count()\nf(s=StreamingContext(sc, 1))"
    ),
    "an annotation": "def f(s: 'StreamingContext'):\n    s.queueStream([]).count()",
    "a result": "def f():\n    return StreamingContext(sc, 1)\nf().queueStream([]).count()",
    "a factory": "StreamingContext.getOrCreate('d', f).queueStream([]).count()",
    "an attribute": """
class App:
    def __init__(self):
        self.ssc = StreamingContext(sc, 1)
    def run(self):
        self.stream().count()
    def stream(self):
        return self.ssc.queueStream([])
""",
    "an attribute from outside": """
class App:
    def __init__(self, ssc):
        self.ssc = ssc
App(StreamingContext(sc, 1)).ssc.queueStream([]).count()
""",
    "a subclass": """
class Mine(StreamingContext):
    def made(self):
        return self.queueStream([])
Mine(sc, 1).made().count()
""",
    "a global": """
ssc = None
def main():
    global ssc
    ssc = StreamingContext(sc, 1)
def run():
    ssc.queueStream([]).count()
""",
    "a choice": "ssc = a or StreamingContext(sc, 1)\n(b if c else ssc.queueStream([])).count()",
    "several at once": "a, ssc = 1, StreamingContext(sc, 1)\nssc.queueStream([]).count()",
    "many steps": "ssc = StreamingContext(sc, 1)\nssc.queueStream([]).map(f).window(2).count()",
    "the context of a stream": (
        "ssc = StreamingContext(sc, 1)\nssc.queueStream([]).context().queueStream([]).count()"
    ),
}


@pytest.mark.parametrize("source", WAYS_TO_A_STREAM.values(), ids=WAYS_TO_A_STREAM.keys())
def test_ways_to_a_stream(source: str, tmp_path: Path) -> None:
    """Whichever way a program goes to it, the stream and what is called of it are known."""
    names = {one.name for one in found(tmp_path, IMPORT + source)}
    assert {"StreamingContext", "StreamingContext.queueStream", "DStream.count"} <= names


def test_names_of_others(tmp_path: Path) -> None:
    """What is called like a name of streams, and is of something else, is not taken for one."""
    source = """
        import pandas
        from dstreams import StreamingContext
        from mine import StreamingContext as Own
        pandas.read_csv("x").count()
        frame.window(3).count()
        Own(1).start()
        StreamingContext(sc, 1).socketTextStream("h", 1).foreachRDD(f)
        def foreachRDD(): "spark.streaming.concurrentJobs is documentation"
    """
    assert told(tmp_path, source) == []


def test_names_that_only_streams_have(tmp_path: Path) -> None:
    """A helper that is given a stream from another file is read as well."""
    source = "def counted(lines):\n    lines.map(f).updateStateByKey(g).foreachRDD(h)\n"
    assert told(tmp_path, source) == [
        (2, "DStream.foreachRDD", "differs"),
        (2, "DStream.updateStateByKey", "differs"),
    ]


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("from pyspark.streaming.flume import FlumeUtils", (2, "FlumeUtils", "change")),
        ("import pyspark.streaming.mqtt", (2, "MQTTUtils", "change")),
        ("import pyspark.streaming.zeromq", (2, "pyspark.streaming.zeromq", "change")),
        (
            "from pyspark.streaming.util import TransformFunction",
            (2, "TransformFunction", "change"),
        ),
        (
            "from pyspark.streaming import Nothing",
            (2, "pyspark.streaming.Nothing", "change"),
        ),
        ("import pyspark.sql.streaming", (2, "pyspark.sql.streaming", "differs")),
        ("spark.readStream.format('kafka')", (2, "pyspark.sql: readStream", "differs")),
        ("StreamingContext(sc, 1)._jvm", (2, "StreamingContext._jvm", "change")),
        (
            "StreamingContext(sc, 1)._jssc.receiverStream(r)",
            (2, "StreamingContext._jssc.receiverStream", "change"),
        ),
        ("s._jdstream.dstream()", (2, "DStream._jdstream", "change")),
        ("StreamingContext(sc, 1)._jduration(1)", (2, "StreamingContext._jduration", "change")),
        (
            "StreamingContext(sc, 1).twitterStream()",
            (2, "StreamingContext.twitterStream", "change"),
        ),
        (
            "sc._jvm.org.apache.spark.streaming.Seconds(1)",
            (2, "org.apache.spark.streaming", "change"),
        ),
        (
            "java_import(gw.jvm, 'org.apache.spark.streaming.*')",
            (2, "org.apache.spark.streaming.", "change"),
        ),
        (
            "a = '--packages org.apache.spark:spark-streaming-kafka-0-8_2.11:2.4.8 pyspark-shell'",
            (2, "spark-streaming-kafka-0-8_2.11:2.4.8", "change"),
        ),
        (
            "conf.set('spark.streaming.concurrentJobs', '2')",
            (2, "spark.streaming.concurrentJobs", "change"),
        ),
        (
            "conf.set('spark.streaming.concurrentJobs', 1)",
            (2, "spark.streaming.concurrentJobs", "same"),
        ),
        ("a = '--conf spark.streaming.unpersist=true'", (2, "spark.streaming.unpersist", "same")),
        (
            "a = ('spark.streaming.driver.writeAheadLog.enable', 1)",
            (2, "spark.streaming.driver.writeAheadLog.enable", "differs"),
        ),
        (
            "StreamingContext.getOrCreate('hdfs://n/c', f)",
            (2, "StreamingContext.getOrCreate", "change"),
        ),
        ("StreamingContext(sc, 2.01)", (2, "StreamingContext", "differs")),
        ("StreamingContext(sc, 0.5)", (2, "StreamingContext", "same")),
    ],
)
def test_findings(source: str, finding: tuple[int, str, str], tmp_path: Path) -> None:
    """What is missing, what differs and what has no effect, each in its line."""
    assert finding in told(tmp_path, IMPORT + source)


KAFKA = "from pyspark.streaming.kafka import KafkaUtils\n"


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        ("KafkaUtils.createStream(ssc, 'z', 'g', {'t': 1})", {"set", "differs"}),
        ("KafkaUtils.createStream(ssc, 'z', 'g', {}, {'group.id': 'x'})", {"set", "differs"}),
        ("KafkaUtils.createStream(ssc, 'z', 'g', {}, {'bootstrap.servers': b})", {"differs"}),
        (
            "p = {'metadata.broker.list': b}\nKafkaUtils.createStream(s, 'z', 'g', {}, p)",
            {"differs"},
        ),
        ("p = {}\np['a'] = 1\nKafkaUtils.createStream(s, 'z', 'g', {}, p)", {"set", "differs"}),
        ("KafkaUtils.createStream(s, 'z', 'g', {}, kafkaParams=f())", {"set", "differs"}),
        ("KafkaUtils.createDirectStream(ssc, ['t'], {'metadata.broker.list': b})", {"differs"}),
    ],
)
def test_brokers(call: str, kinds: set[str], tmp_path: Path) -> None:
    """Where only ZooKeeper is named the brokers are asked for."""
    found_kinds = {kind for _, name, kind in told(tmp_path, KAFKA + call) if "." in name}
    assert found_kinds == kinds


def test_listeners(tmp_path: Path) -> None:
    """Callbacks of listeners are known, over classes between; their class Java is not needed."""
    source = """
        from pyspark.streaming.listener import StreamingListener
        class Base(StreamingListener):
            class Java:
                implements = ["org.apache.spark.streaming.api.java.PythonStreamingListener"]
        class Mine(Base):
            def onBatchCompleted(self, batch): pass
            def other(self): pass
        class Loop(Loop): pass
        class Self:
            def f(self):
                class Self2(self.made): pass
                self.made = Self2()
                return self.made
    """
    assert told(tmp_path, source) == [
        (2, "StreamingListener", "same"),
        (4, "StreamingListener.Java", "differs"),
        (7, "StreamingListener.onBatchCompleted", "differs"),
    ]


def test_a_listener_whose_imports_were_replaced(tmp_path: Path) -> None:
    """Its class Java has no more to be changed than before."""
    source = """
        from dstreams import StreamingListener
        class Mine(StreamingListener):
            class Java:
                implements = ["org.apache.spark.streaming.api.java.PythonStreamingListener"]
    """
    assert told(tmp_path, source) == [(4, "StreamingListener.Java", "differs")]


@pytest.mark.parametrize(
    ("imports", "kind"),
    [
        ("from pyspark.streaming import StreamingContext", "differs"),
        ("from dstreams import StreamingContext", "change"),
        ("from . import dstreams", "differs"),
    ],
)
def test_storage_levels_that_are_gone(imports: str, kind: str, tmp_path: Path) -> None:
    """PySpark 3.0 removed them; dstreams run gives them to programs that are as they were."""
    source = "stream.persist(StorageLevel.MEMORY_AND_DISK_SER)"
    name = "StorageLevel.MEMORY_AND_DISK_SER"
    found = told(tmp_path, f"{imports}\nfrom pyspark import StorageLevel\n{source}\n")
    assert (3, name, kind) in found
    assert told(tmp_path, source.replace("_SER", "").replace("stream.", "pyspark.")) == []


def test_the_line_of_a_chain(tmp_path: Path) -> None:
    """In a chain over several lines each name is in its own."""
    source = "(StreamingContext(sc, 1)\n    .queueStream([])\n    .map(f)\n    .pprint())"
    assert told(tmp_path, IMPORT + source)[1:] == [
        (2, "StreamingContext", "same"),
        (3, "StreamingContext.queueStream", "differs"),
        (4, "DStream.map", "same"),
        (5, "DStream.pprint", "same"),
    ]

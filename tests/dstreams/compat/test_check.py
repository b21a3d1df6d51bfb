"""``dstreams check``: its findings, its text, its JSON and its exit status."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dstreams.cli.main import main
from dstreams.compat.check import check

ROOT = Path(__file__).parents[3]
LEGACY = sorted((ROOT / "examples" / "legacy").glob("*.py"))
IMPORT = "from pyspark.streaming import StreamingContext\n"
KAFKA = "from pyspark.streaming.kafka import KafkaUtils\n"

PROGRAM = """\
from pyspark import SparkContext
from pyspark.streaming import StreamingContext
from pyspark.streaming.flume import FlumeUtils
from pyspark.streaming.kafka import KafkaUtils

ssc = StreamingContext(SparkContext(), 1)
lines = FlumeUtils.createStream(ssc, "localhost", 4141)
more = KafkaUtils.createStream(ssc, "localhost:2181", "group", {"topic": 1})
more.union(lines).count().pprint()
ssc.start()
"""

TEXT = """\
Does not run as it is: 1 to change, 1 to set, 3 notes.

To change: does not run on dstreams (1)
  FlumeUtils, FlumeUtils.createStream
    Spark removed it in 3.0, and dstreams does not have it. Let Flume's Kafka
    sink write to a topic and read it with KafkaUtils, or read Flume with your
    own dstreams.Receiver in ssc.receiverStream.
    app.py:3: from pyspark.streaming.flume import FlumeUtils
    app.py:7: lines = FlumeUtils.createStream(ssc, "localhost", 4141)

To set: runs once it is configured (1)
  KafkaUtils.createStream
    The call may name only ZooKeeper, which Kafka no longer has. Name the
    brokers, in kafkaParams={'metadata.broker.list': 'HOST:PORT'} or with
    dstreams run --conf spark.dstreams.kafka.bootstrapServers=HOST:PORT app.py.
    app.py:8: more = KafkaUtils.createStream(ssc, "localhost:2181", "group", {"t

Differs: runs, check whether the difference affects you (3)
  KafkaUtils.createStream
    A current Kafka consumer reads ranges of offsets; parameters of Kafka 0.8
    are translated. It starts at the offsets of the group. zkQuorum, numbers of
    threads and storageLevel have no effect; of several streams of a group, the
    first one reads all.
    app.py:8: more = KafkaUtils.createStream(ssc, "localhost:2181", "group", {"t
  DStream.count
    An RDD without partitions counts as 0, like every empty RDD; Spark returns
    no element.
    app.py:9: more.union(lines).count().pprint()
  StreamingContext.start
    Functions are checked when the stream is defined or started, not in the
    first batch: their number of arguments, and whether they can be sent to
    workers.
    app.py:10: ssc.start()

Next
  Change the lines above and check again.
  Install dstreams with kafka: dstreams[kafka]
  dstreams run app.py
  or change the imports once and for all:
  sed -i.bak 's/pyspark\\.streaming/dstreams/g' app.py
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["check", *words])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, captured.out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status, text = checked(capsys, "--json", *words)
    result = json.loads(text)
    assert result["status"] == status
    return status, result


def found(directory: Path, source: str) -> set[tuple[int, str, str]]:
    """Return line, name and kind of the findings in a program."""
    path = directory / "app.py"
    path.write_text(source, encoding="utf-8")
    result = check([path])
    assert result.unreadable == ()
    return {(one.line, one.name, one.answer.kind) for one in result.findings}


def test_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Findings are grouped by what to do; the last lines are the next commands."""
    (here / "app.py").write_text(PROGRAM)
    assert checked(capsys, "app.py") == (1, TEXT)


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the same findings."""
    (here / "app.py").write_text(PROGRAM)
    status, result = as_json(capsys, "app.py")
    assert (status, result["files"], result["unreadable"]) == (1, 1, [])
    (flume, *_) = [one for one in result["findings"] if one["line"] == 7]
    assert flume["kind"] == "change"
    assert (flume["name"], flume["path"]) == ("FlumeUtils.createStream", "app.py")
    assert flume["code"] == 'lines = FlumeUtils.createStream(ssc, "localhost", 4141)'
    assert flume["fix"].startswith("Let Flume's Kafka sink write to a topic")


@pytest.mark.parametrize("path", LEGACY, ids=lambda path: path.stem)
def test_examples(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that run unchanged have nothing to change."""
    status, result = as_json(capsys, str(path))
    assert "change" not in {one["kind"] for one in result["findings"]}
    assert status == (1 if path.stem == "kafka_wordcount" else 0)


@pytest.mark.parametrize(
    "source",
    [
        "ssc = StreamingContext(sc, 1)\nssc.queueStream([]).count()",
        "from pyspark.streaming import StreamingContext as S\nS(sc, 1).queueStream([]).count()",
        "import pyspark.streaming\n"
        "pyspark.streaming.StreamingContext(sc, 1).queueStream([]).count()",
        "import pyspark.streaming as s\ns.StreamingContext(sc, 1).queueStream([]).count()",
        "from pyspark.streaming import *\nStreamingContext(sc, 1).queueStream([]).count()",
        "def f(s: 'StreamingContext'):\n    s.queueStream([]).count()",
        "def f(ssc):\n    ssc.queueStream([]).count()",
        "ssc = StreamingContext.getOrCreate('d', f)\nlines = ssc.queueStream([])\nlines.count()",
        "class A:\n  def __init__(self):\n    self.ssc = StreamingContext(sc, 1)\n"
        "  def run(self):\n    self.ssc.queueStream([]).map(f).window(2).count()",
    ],
)
def test_ways_to_a_stream(source: str, tmp_path: Path) -> None:
    """A stream is recognized in the usual ways to get one."""
    names = {name for _, name, _ in found(tmp_path, IMPORT + source)}
    assert {"StreamingContext.queueStream", "DStream.count"} <= names


def test_names_of_other_packages(tmp_path: Path) -> None:
    """Equal names of other packages are not reported, nor is a program that imports dstreams."""
    others = "import pandas\npandas.read_csv('x').count()\nframe.window(3).count()\n"
    assert found(tmp_path, others) == set()
    assert found(tmp_path, "from dstreams import StreamingContext\nx.foreachRDD(f)\n") == set()
    documented = "def f():\n    'spark.streaming.concurrentJobs is documentation'\n"
    assert found(tmp_path, documented) == set()


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("lines.map(f).updateStateByKey(g)", (2, "DStream.updateStateByKey", "differs")),
        ("from pyspark.streaming.flume import FlumeUtils", (2, "FlumeUtils", "change")),
        ("import pyspark.streaming.mqtt", (2, "MQTTUtils", "change")),
        ("import pyspark.streaming.zeromq", (2, "pyspark.streaming.zeromq", "change")),
        (
            "from pyspark.streaming.util import TransformFunction",
            (2, "TransformFunction", "change"),
        ),
        ("from pyspark.streaming import Nothing", (2, "pyspark.streaming.Nothing", "change")),
        ("from pyspark import streaming", (2, "from pyspark import streaming", "differs")),
        ("spark.readStream.format('kafka')", (2, "pyspark.sql: readStream", "differs")),
        ("StreamingContext(sc, 1)._jvm", (2, "StreamingContext._jvm", "change")),
        ("s._jdstream.dstream()", (2, "DStream._jdstream", "change")),
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
            "a = ('spark.streaming.driver.writeAheadLog.enable', 1)",
            (2, "spark.streaming.driver.writeAheadLog.enable", "differs"),
        ),
        ("StorageLevel.MEMORY_ONLY_SER", (2, "StorageLevel.MEMORY_ONLY_SER", "differs")),
        (
            f"{KAFKA}KafkaUtils.createStream(s, 'z', 'g', {{}})",
            (3, "KafkaUtils.createStream", "set"),
        ),
    ],
)
def test_findings(source: str, finding: tuple[int, str, str], tmp_path: Path) -> None:
    """Findings have the line of each name that is missing, differs or has no effect."""
    assert finding in found(tmp_path, IMPORT + source)


def test_brokers(tmp_path: Path) -> None:
    """A call that names its brokers needs no setting."""
    call = "KafkaUtils.createStream(ssc, 'z', 'g', {}, {'bootstrap.servers': b})"
    kinds = {kind for _, _, kind in found(tmp_path, f"{KAFKA}{call}")}
    assert kinds == {"differs"}


def test_directories(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Environments, hidden directories and pipes are skipped; a file is read once."""
    for name in ("src/app.py", "src/lib/more.py", "src/.git/x.py", "src/env/lib/y.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("from pyspark.streaming import StreamingContext\nx.slice_()\n")
    (here / "src/env/pyvenv.cfg").write_text("")
    os.mkfifo(here / "src/pipe.py")
    status, result = as_json(capsys, "src", "src/app.py")
    assert (status, result["files"]) == (0, 2)
    assert result["next"][-1].startswith("  grep -rl --include='*.py' 'pyspark\\.streaming' src ")


def test_nothing_is_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program without pyspark.streaming is reported as such."""
    (here / "app.py").write_text("import json\n")
    assert checked(capsys, "app.py") == (0, "Nothing of pyspark.streaming is used.\n")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("app.py", b"print 'a', b\n", "line 1 is not Python 3: .*futurize -w FILE, or 2to3"),
        ("app.py", b"a = (\n", r"line 1 is not Python 3: '\(' was never closed: a = \("),
        ("app.py", b"a\0b", "null bytes"),
        ("app.py", b"# coding: nope\n", "unknown encoding"),
        ("app.py", b"a = '\xe4'\n", "save the file as UTF-8|invalid or missing encoding"),
        ("app.py", b"q = 'a'" + b" + 1" * 20_000, "too many terms|too complex|recursion"),
        ("app.ipynb", b"{}", "it is a notebook; run jupyter nbconvert"),
    ],
)
def test_unreadable_files(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    """The reason is given, the status is 2, and other files are still checked."""
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.py").write_text("import pyspark.streaming.flume\n")
    result = check([tmp_path / name, tmp_path / "good.py", tmp_path / "nowhere.py"])
    assert result.status == 2
    ((path, why), (missing, _)) = result.unreadable
    assert (path, missing) == (str(tmp_path / name), str(tmp_path / "nowhere.py"))

    assert re.search(reason, why, re.DOTALL)
    assert [one.name for one in result.findings] == ["FlumeUtils"]


def test_the_terminal_is_not_controlled(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of lines and file names are escaped."""
    lines = b"from pyspark.streaming.flume import FlumeUtils # \x1b[2J \xe2\x80\xae\n"
    (here / "a\x1b[2J.py").write_bytes(lines)
    _, text = checked(capsys, ".")
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert r"\x1b[2J" in text


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help lists each exit status."""
    with pytest.raises(SystemExit) as end:
        main(["check", "--help"])
    assert end.value.code == 0
    statuses = capsys.readouterr().out.partition("exit status:\n")[2].splitlines()
    assert [line.split()[0] for line in statuses] == ["0", "1", "2", "130"]

"""``dstreams check`` as it is called: its text, its JSON and its status."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dstreams.cli.main import main

ROOT = Path(__file__).parents[4]
LEGACY = sorted((ROOT / "examples" / "legacy").glob("*.py"))

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
Does not run as it is: 2 to change, 1 to set. 3 notes.

To change: this does not run on dstreams (2)
  FlumeUtils, FlumeUtils.createStream
    Spark removed it in 3.0, and it is not here. Let Flume's Kafka sink write to
    a topic and read that by KafkaUtils, or read Flume by a dstreams.Receiver of
    your own in ssc.receiverStream.
    app.py:3: from pyspark.streaming.flume import FlumeUtils
    app.py:7: lines = FlumeUtils.createStream(ssc, "localhost", 4141)

To set: this runs when it is told (1)
  KafkaUtils.createStream
    The call names ZooKeeper alone, which Kafka has no more. Name the brokers:
    dstreams run --conf spark.dstreams.kafka.bootstrapServers=HOST:PORT app.py,
    or kafkaParams={'metadata.broker.list': 'HOST:PORT'} in the call.
    app.py:8
        more = KafkaUtils.createStream(ssc, "localhost:2181", "group", {"topi...

Differs: this runs, look whether the case is yours (3)
  KafkaUtils.createStream
    A consumer of today reads ranges of offsets; parameters of Kafka 0.8 have
    their newer names. It begins where the group stands at the brokers.
    zkQuorum, numbers of threads and storageLevel have no effect; of several
    streams of a group the first one reads all.
    app.py:8
        more = KafkaUtils.createStream(ssc, "localhost:2181", "group", {"topi...
  DStream.count
    An RDD without partitions counts as 0, as every empty RDD does; Spark gives
    no element.
    app.py:9: more.union(lines).count().pprint()
  StreamingContext.start
    Functions are checked where the stream is defined and at the start, and not
    in the first batch: their number of arguments, and whether they can be sent
    to workers.
    app.py:10: ssc.start()

Same: this runs as it did (4)
  DStream.pprint (1), DStream.union (1), KafkaUtils (1), StreamingContext (2)

Next
  Change the lines above, and check again.
  pip install 'dstreams[kafka]'
  dstreams run app.py
  or replace the name in imports, once and for all:
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
    said = json.loads(text)
    assert said["status"] == status
    return status, said


def test_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By what there is to do, with lines, and what to type at the end."""
    (here / "app.py").write_text(PROGRAM)
    assert checked(capsys, "app.py") == (1, TEXT)


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs."""
    (here / "app.py").write_text(PROGRAM)
    status, said = as_json(capsys, "app.py")
    assert (status, said["files"], said["unreadable"], said["extras"]) == (1, 1, [], ["kafka"])
    (flume, *_) = [one for one in said["findings"] if one["line"] == 7]
    assert flume["kind"] == "change"
    assert (flume["name"], flume["path"]) == ("FlumeUtils.createStream", "app.py")
    assert flume["code"] == 'lines = FlumeUtils.createStream(ssc, "localhost", 4141)'
    assert flume["instead"].startswith("Let Flume's Kafka sink write to a topic")
    assert said["next"]["run"] == ["dstreams run app.py"]


@pytest.mark.parametrize("path", LEGACY, ids=lambda path: path.stem)
def test_examples(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that run as they are have nothing to change; Kafka by ZooKeeper is told where it is.

    Lines fit 80 columns, other than commands and paths.
    """
    status, said = as_json(capsys, str(path))
    kinds = {one["kind"] for one in said["findings"]}
    assert "change" not in kinds
    assert status == (1 if path.stem == "kafka_wordcount" else 0)
    _, text = checked(capsys, str(path))
    body = text.replace(str(path), "app.py").partition("\nNext\n")[0]
    assert max(map(len, body.splitlines())) <= 80


def test_directories(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files below are read once; environments and hidden directories are none of the program."""
    for name in ("src/app.py", "src/lib/more.py", "src/.git/x.py", "src/env/lib/y.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("from pyspark.streaming import StreamingContext\n")
    (here / "src/env/pyvenv.cfg").write_text("")
    status, said = as_json(capsys, "src", "src/app.py")
    assert (status, said["files"]) == (0, 2)
    assert {one["path"] for one in said["findings"]} == {"src/app.py", "src/lib/more.py"}
    (replace,) = said["next"]["replace"]
    assert replace.startswith("grep -rl --include='*.py' 'pyspark\\.streaming' src src/app.py | x")


def test_nothing_is_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program of something else is said to be one."""
    (here / "app.py").write_text("import json\n")
    assert checked(capsys, "app.py") == (0, "1 file: nothing of pyspark.streaming is used.\n")


def test_what_cannot_be_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named with its reason; what can be read is told nevertheless, and the status is 2."""
    (here / "bad.py").write_text("def f(:\n")
    (here / "good.py").write_text("import pyspark.streaming.flume\n")
    (here / "empty").mkdir()
    status, text = checked(capsys, "bad.py", "good.py", "empty", "nowhere.py")
    assert status == 2
    assert text.startswith("Cannot tell: 3 of 4 files cannot be read.\n\n")
    assert "bad.py: cannot be read: line 1 is not Python 3: " in text
    assert "empty: cannot be read: there is no file *.py below it\n" in text
    assert "nowhere.py: cannot be read: No such file or directory\n" in text
    assert "good.py:1: import pyspark.streaming.flume\n" in text
    assert text.endswith("Next: correct what cannot be read, and check again.\n")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("from pyspark import streaming as st\n", "app.py:1 write 'import dstreams as st'"),
        (
            "import pyspark.streaming\npyspark.SparkContext()\n",
            "app.py:1 add 'import pyspark', which this import did as well",
        ),
        ("import pyspark\nimport pyspark.streaming\npyspark.SparkContext()\n", None),
    ],
)
def test_imports_that_are_not_replaced_alone(
    source: str, hint: str | None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the name of the package is not all that is to be changed, the rest is said."""
    (here / "app.py").write_text(f"{source}import pyspark.streaming.context\n")
    _, text = checked(capsys, "app.py")
    assert (hint is not None) == ("\n  and in app.py:1 " in text)
    assert hint is None or hint in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("ssc.start()\n", "Runs as it is. 1 note, none needs a change."),
        ("ssc.start()\nssc.checkpoint('a')\n", "Runs as it is. 2 notes, none needs a change."),
        ("ssc.sparkContext\n", "Runs as it is. No notes."),
        ("ssc._jvm\nssc.start()\n", "Does not run as it is: 1 to change. 1 note."),
        (
            "from pyspark.streaming.kafka import KafkaUtils\n"
            "KafkaUtils.createStream(ssc, 'localhost:2181', 'group', {'topic': 1})\n",
            "Runs once it is configured: 1 to set. 1 note.",
        ),
    ],
)
def test_verdict(source: str, verdict: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line says whether the program runs, and how much there is to do."""
    begin = "from pyspark.streaming import StreamingContext\nssc = StreamingContext(None, 1)\n"
    (here / "app.py").write_text(begin + source)
    assert checked(capsys, "app.py")[1].splitlines()[0] == verdict


def test_a_long_expression(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of 1,000 terms is read; a file beyond that is named, and the others are reported."""
    (here / "good.py").write_text(f"import pyspark.streaming.flume\nq = 'a'{' + 1' * 1000}\n")
    (here / "bad.py").write_text(f"import pyspark.streaming\nq = 'a'{' + 1' * 2800}\n")
    limit = sys.getrecursionlimit()
    status, text = checked(capsys, "bad.py", "good.py")
    assert status == 2
    assert sys.getrecursionlimit() == limit
    assert "bad.py: cannot be read: " in text
    assert "good.py:1: import pyspark.streaming.flume\n" in text


def test_nothing_commands_the_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither lines nor names of files."""
    lines = b"from pyspark.streaming.flume import FlumeUtils # \x1b[2J \xc2\x9b \xe2\x80\xae\n"
    (here / "a\x1b[2J\n.py").write_bytes(lines)
    (here / "b\x1b[2J.py").write_bytes(b"x = '\x1b[2J\n")
    _, text = checked(capsys, ".")
    assert "a\\x1b[2J\\n.py:1" in text
    assert r"import FlumeUtils # \x1b[2J \x9b \u202e" in text
    assert "b\\x1b[2J.py: cannot be read" in text
    assert all(sign.isprintable() or sign == "\n" for sign in text)


def test_a_pipe_below_a_directory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not a program: reading it would not end."""
    os.mkfifo(here / "pipe.py")
    (here / "app.py").write_text("import pyspark.streaming.flume\n")
    status, said = as_json(capsys, ".")
    assert (status, said["files"]) == (1, 1)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It has each exit status."""
    with pytest.raises(SystemExit) as end:
        main(["check", "--help"])
    assert end.value.code == 0
    statuses = capsys.readouterr().out.partition("exit status:\n")[2].splitlines()
    assert [line.split()[0] for line in statuses] == ["0", "1", "2", "130"]

"""Programs of pyspark.streaming that are killed anywhere, adopted, and continued by dstreams."""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyspark
import pytest
from pyspark import SparkContext

from checkpoint import open_existing, open_output
from dstreams import DStream, StreamingContext, spark_state
from dstreams.engine.recovery.adoption import contents_of
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.kafka import ConsumerStrategies, KafkaUtils, LocationStrategies
from dstreams.testing import ManualClock
from tests.recovery.spark_streams import (
    FILES,
    LAST,
    QUEUE,
    Outputs,
    SparkStreams,
    define,
    write_input,
)
from tests.support.hdfs import Hdfs
from tests.support.maven_jars import KAFKA, S3, class_path
from tests.support.s3_server import S3Server
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.kafka_cluster import KafkaCluster

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.deep, pytest.mark.spark]


@pytest.fixture(scope="module")
def spark_streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkStreams]:
    """One process of Spark for all groups."""
    process = SparkStreams(tmp_path_factory.mktemp("spark"))
    yield process
    process.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the JVM of a process, so that its files are as after a SIGKILL at this moment."""
    [java] = psutil.Process(pid).children()
    java.suspend()
    try:
        wait_for(lambda: has_stopped(java.pid))
        yield
    finally:
        java.resume()


def has_stopped(pid: int) -> bool:
    """Return whether all threads of a process that was sent SIGSTOP have stopped."""
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
        threads = Path(f"/proc/{pid}/task").glob("*/status")
        return all("\nState:\tT" in thread.read_text() for thread in threads)
    return False


def kill_at(moment: str, streams: SparkStreams, directory: Path, number: int, copy: Path) -> None:
    """Copy the checkpoint as a kill at a moment of a batch would leave it."""
    checkpoint = directory / "checkpoint"
    states = len(list(checkpoint.glob("*/rdd-*")))
    reached = {
        "before the batch": lambda: True,
        "submitted": (checkpoint / f"checkpoint-{number * 1000}").exists,
        "a state is written": lambda: (
            len(list(checkpoint.glob("*/rdd-*"))) > states
            or (checkpoint / f"checkpoint-{number * 1000}.bk").exists()
        ),
        "complete": (checkpoint / f"checkpoint-{number * 1000}.bk").exists,
    }
    wait_for(reached[moment])
    with stopped(streams.pid):
        shutil.copytree(checkpoint, copy)


def first_batch(spark: Path, number: int) -> int:
    """Return the time of the first batch that Spark has not completed: a batch, or the next one."""
    graphs = [spark / f"checkpoint-{number * 1000}{end}" for end in ("", ".bk")]
    return (number + all(graph.exists() for graph in graphs)) * 1000  # the second is the older one


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def continued(
    sc: SparkContext, group: str, directory: Path, spark: Path, new: Path
) -> dict[int, Outputs]:
    """Return what dstreams makes of the batches that Spark has not completed."""
    outputs: dict[int, Outputs] = {}

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(LAST * 1000))
        queue = ssc.queueStream(QUEUE, replayable=True) if group == "chains" else None
        queue = topic_of(ssc, directory) if group == "kafka" else queue
        define(group, ssc, directory, queue, outputs)
        return ssc

    ssc = StreamingContext.restore(str(new), setup, adopt=str(spark))
    while LAST * 1000 not in outputs:
        ssc.step()
    ssc.stop(stopSparkContext=False)
    return outputs


def topic_of(ssc: StreamingContext, directory: Path) -> DStream[str]:
    bootstrap, topic = (directory / "topic").read_text().split()
    parameters = {"bootstrap.servers": bootstrap, "auto.offset.reset": "latest"}
    strategy = ConsumerStrategies.Subscribe([topic], parameters)
    stream = KafkaUtils.createDirectStream(ssc, LocationStrategies.PreferConsistent, strategy)
    return stream.map(lambda record: record.value.decode())


@pytest.mark.parametrize("group", FILES)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_no_record_is_lost_or_counted_twice(
    sc: SparkContext, spark_streams: SparkStreams, tmp_path: Path, group: str, every: int
) -> None:
    """After each kill all outputs, and so all states, are those of an uninterrupted run."""
    moments = ["before the batch", "submitted", "a state is written", "complete"]
    chosen = random.Random(group)
    for name in ("in", "more"):
        (tmp_path / name).mkdir()
    expected: dict[int, Outputs] = {}
    spark_streams.start(group, tmp_path)
    for number in range(1, LAST):
        write_input(tmp_path, number)
        spark_streams.run_batch()
        if number % every == 0:
            # Before the end of the first batch there may be no checkpoint.
            moment = "complete" if number == 1 else chosen.choice(moments)
            kill_at(moment, spark_streams, tmp_path, number, tmp_path / f"killed-{number}")
        expected[number * 1000] = spark_streams.answer()
    write_input(tmp_path, LAST)
    spark_streams.run_batch()
    expected[LAST * 1000] = spark_streams.answer()
    for number in range(every, LAST, every):
        spark = tmp_path / f"killed-{number}"
        before = contents(spark)
        found = continued(sc, group, tmp_path, spark, tmp_path / f"new-{number}")
        first_ms = first_batch(spark, number)
        assert found == {ms: made for ms, made in expected.items() if ms >= first_ms}, number
        assert contents(spark) == before


@pytest.mark.skipif(
    pyspark.__version__ < "4.1", reason="the stream of tests/kafka/pom.xml is made for Spark 4.1"
)
def test_a_topic_of_kafka(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Pending batches read Spark's offsets, and the next one begins where the newest one ends."""
    topic, last = kafka.create_topic(2), 8
    (tmp_path / "topic").write_text(f"{kafka.bootstrap} {topic}")
    spark_streams = SparkStreams(tmp_path, class_path(KAFKA, "peers"))
    moments = {2: "submitted", 4: "complete", 5: "a state is written", 7: "submitted"}
    expected: dict[int, Outputs] = {}
    try:
        spark_streams.start("kafka", tmp_path)
        for number in range(1, last):
            for partition in range(number % 3):
                kafka.produce(topic, [f"a b{number}", "c"], partition)
            spark_streams.run_batch()
            if number in moments:
                copy = tmp_path / f"killed-{number}"
                kill_at(moments[number], spark_streams, tmp_path, number, copy)
            expected[number * 1000] = spark_streams.answer()
    finally:
        spark_streams.close()
    kafka.produce(topic, ["a d"])
    totals = dict(ast.literal_eval(expected[7000]["totals"]))
    final = {**totals, "a": totals["a"] + 1, "d": 1}
    for number in sorted(moments):
        spark = tmp_path / f"killed-{number}"
        found = continued(sc, "kafka", tmp_path, spark, tmp_path / f"new-{number}")
        assert min(found) == first_batch(spark, number)
        pending = [time_ms for time_ms in found if time_ms <= number * 1000]
        assert [found[time_ms] for time_ms in pending] == [expected[one] for one in pending]
        assert dict(ast.literal_eval(found[LAST * 1000]["totals"])) == final
    kafka.delete_records(topic, before=1)
    with pytest.raises(RestartError, match=r"-0 begins at 1, and offset 0 is needed; .* accepts"):
        continued(sc, "kafka", tmp_path, tmp_path / "killed-2", tmp_path / "lost")
    assert not list((tmp_path / "lost").iterdir())


@pytest.fixture(scope="module")
def killed(spark_streams: SparkStreams, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with input, and with the checkpoint of Spark after a SIGKILL in batch 4."""
    directory = tmp_path_factory.mktemp("killed")
    (directory / "in").mkdir()
    spark_streams.start("states", directory)
    for number in range(1, 5):
        write_input(directory, number)
        if number == 4:
            (directory / "hold").touch()
        spark_streams.run_batch()
        if number < 4:
            spark_streams.answer()
    wait_for((directory / "checkpoint" / "checkpoint-4000").exists)
    [java] = psutil.Process(spark_streams.pid).children()
    java.kill()
    os.kill(spark_streams.pid, signal.SIGKILL)
    psutil.wait_procs([java], timeout=300)
    (directory / "hold").unlink()
    for number in range(5, LAST + 1):
        write_input(directory, number)
    return directory


def test_a_kill_by_sigkill(sc: SparkContext, killed: Path, tmp_path: Path) -> None:
    """Adopting twice what Spark leaves when it is killed gives the same outputs."""
    spark = killed / "checkpoint"
    once = continued(sc, "states", killed, spark, tmp_path / "once")
    again = continued(sc, "states", killed, spark, tmp_path / "again")
    assert once == again
    assert set(once) >= set(range(5000, LAST * 1000 + 1, 1000))


def dry_run(
    sc: SparkContext,
    killed: Path,
    spark: Path | str | None = None,
    *,
    uids: Sequence[str | None] = (None,) * 4,
    batch_s: float = 1,
    name: str = "in",
    removed: Sequence[str] = (),
) -> str:
    """Return the report of adopting four states, of which some have uids; no state if empty."""

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, batch_s, clock=ManualClock(LAST * 1000))
        lines = ssc.textFileStream(f"file://{killed}/{name}")
        words = lines.flatMap(str.split).map(lambda word: (word, 1))
        for uid in uids:
            total = words.updateStateByKey(lambda new, old: sum(new) + (old or 0), uid=uid)
            total.foreachRDD(lambda rdd: rdd.count())
        return ssc

    report = StreamingContext.restore(
        str(killed / "new"),
        setup,
        adopt=str(spark or killed / "checkpoint"),
        dryRun=True,
        allowRemoved=removed,
    )
    assert not (killed / "new").exists()
    return str(report)


def test_dry_run(sc: SparkContext, killed: Path) -> None:
    """It says what goes where: keys, batch times, files; by place, or by uid."""
    report = dry_run(sc, killed, uids=("mine", None, None, None))
    assert "of pyspark.streaming in" in report
    assert re.search(
        r"adopted: mine: 7 keys after the batch at 3000 ms .* from \S+/rdd-\d+", report
    )
    assert "updateStateByKey-0: no state in files; computed from the first batch" in report
    assert re.search("textFileStream-0: 3 files .* read 3 of them again", report)
    assert "runs 1 batches in flight again" in report


def test_programs_that_do_not_match(sc: SparkContext, killed: Path) -> None:
    """Fewer or more states, another interval, another directory: each is refused, and why."""
    fewer = dry_run(sc, killed, uids=(None,))
    assert "refused: nothing has the uid 'updateStateByKey-3'" in fewer
    removed = [f"updateStateByKey-{number}" for number in (1, 2, 3)]
    assert "refused" not in dry_run(sc, killed, uids=(None,), removed=removed)
    assert "cannot be matched by position" in dry_run(sc, killed, uids=(None,) * 5)
    assert "batches were 1000 ms apart, and are 2000 ms" in dry_run(sc, killed, batch_s=2)
    assert "would read" in dry_run(sc, killed, name="more")


def test_damaged_checkpoints(
    sc: SparkContext, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older graph counts if the newest is damaged; else the error says what is missing."""
    shutil.copytree(killed / "checkpoint", tmp_path / "spark")
    spark = tmp_path / "spark"
    (spark / "checkpoint-4000").write_bytes((spark / "checkpoint-4000").read_bytes()[:500])
    assert "resumes after the batch at 3000 ms" in dry_run(sc, killed, spark)
    assert "checkpoint-4000 is damaged, an older one is tried" in caplog.text
    for part in [*spark.glob("*/rdd-*/part-00001"), *spark.glob("*/rdd-*/.part-00001.crc")]:
        part.unlink()
    with pytest.raises(RestartError, match=r"lacks some of its files; restore it from a copy"):
        dry_run(sc, killed, spark)
    for graph in spark.glob("checkpoint-*"):
        graph.write_bytes(b"LZ4Block")
    with pytest.raises(RestartError, match=r"none of checkpoint-4000, .* can be read"):
        dry_run(sc, killed, spark)
    with pytest.raises(RestartError, match="is not a checkpoint of pyspark"):
        dry_run(sc, killed, killed / "in")
    with pytest.raises(RestartError, match="nowhere is not a directory"):
        dry_run(sc, killed, killed / "nowhere")


def test_damaged_states(sc: SparkContext, killed: Path, tmp_path: Path) -> None:
    """A state with a lost or changed file is refused; the list says so, and has the rest."""
    spark = tmp_path / "lost"
    shutil.copytree(killed / "checkpoint", spark)
    states = list(spark.glob("*/rdd-*"))
    for state in states:
        last = max(state.glob("part-*"))
        last.unlink()
        (state / f".{last.name}.crc").unlink()
    with pytest.raises(RestartError, match=r"/rdd-\d+ lacks 1 of its \d+ files; restore it"):
        dry_run(sc, killed, spark)
    lines = list(contents_of(str(spark), sc, samples=1))
    assert len([line for line in lines if "lacks 1 of its" in line]) == len(states)
    assert lines[-1].startswith("textFileStream-0: 3 files")
    spark = tmp_path / "changed"
    shutil.copytree(killed / "checkpoint", spark)
    for part in spark.glob("*/rdd-*/part-00000"):
        content = part.read_bytes()
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    with pytest.raises(RestartError, match=r"/rdd-\d+ cannot be taken over: .*[Cc]hecksum"):
        dry_run(sc, killed, spark)
    with pytest.raises(RestartError, match=r"cannot be taken over: .*restore it from a copy"):
        continued(sc, "states", killed, spark, tmp_path / "new")
    assert not [path for path in tmp_path.glob("new/**/*") if path.is_file()]


def copy_to(url: str, checkpoint: Path) -> None:
    files = open_output(url)
    for path, content in contents(checkpoint).items():
        if not path.name.startswith("."):  # a checksum
            files.create(path.relative_to(checkpoint).as_posix(), [content])


@pytest.mark.slow
def test_a_checkpoint_on_hdfs(sc: SparkContext, killed: Path, hdfs: Hdfs) -> None:
    """Its graph is read without the JVM, and its states by the JVM."""
    url = hdfs.new_url()
    copy_to(url, killed / "checkpoint")
    report = dry_run(sc, killed, url)
    assert re.search(r"adopted: updateStateByKey-0: 7 keys after .* from \S+/rdd-\d+", report)
    assert url in report


def test_a_missing_input_file(sc: SparkContext, killed: Path, tmp_path: Path) -> None:
    """A file that a batch reads again must exist; Spark's recovery would fail, too."""
    first = killed / "in" / "file-01"
    moved = first.rename(tmp_path / "file-01")
    report = dry_run(sc, killed)
    moved.rename(first)
    assert re.search("refused: .* batch at 1000 ms has to read .*file-01 again", report)


def test_directories_that_others_can_write(sc: SparkContext, killed: Path, tmp_path: Path) -> None:
    """Nothing is unpickled from them."""
    shutil.copytree(killed / "checkpoint", tmp_path / "spark")
    state = next((tmp_path / "spark").glob("*/rdd-*"))
    state.chmod(0o777)
    with pytest.raises(RestartError, match=r"cannot be adopted: .*writ"):
        dry_run(sc, killed, tmp_path / "spark")


def test_a_checkpoint_that_was_adopted(sc: SparkContext, killed: Path, tmp_path: Path) -> None:
    """The argument can stay in the program: later starts resume what is there."""
    outputs: dict[int, Outputs] = {}

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(LAST * 1000))
        define("states", ssc, killed, None, outputs)
        return ssc

    for first_ms in (4000, 5000):
        outputs.clear()
        spark = str(killed / "checkpoint")
        ssc = StreamingContext.restore(str(tmp_path), setup, adopt=spark)
        ssc.step()
        ssc.stop(stopSparkContext=False)
        assert list(outputs) == [first_ms]
    with pytest.raises(RestartError, match="dstreams writes nothing there"):
        StreamingContext.restore(spark, setup, adopt=spark)


def test_contents(sc: SparkContext, killed: Path) -> None:
    """The list has each state with its keys and samples, and the files of each input."""
    lines = list(contents_of(str(killed / "checkpoint"), sc, samples=1))
    assert "checkpoint-4000, of the batch at 4000 ms" in lines[0]
    assert "1 batches not complete" in lines[0]
    names = [f"updateStateByKey-{number}: an RDD every 1000 ms" for number in range(4)]
    assert [line for line in lines if line in names] == names
    assert len([line for line in lines if "after the batch at 3000 ms" in line]) == 3
    assert len([line for line in lines if line.startswith("    (")]) == 3
    assert lines[-1] == f"textFileStream-0: 3 files of 4 batches, in file://{killed}/in"


def test_states_of_a_release_with_another_default(
    sc: SparkContext, killed: Path, tmp_path: Path
) -> None:
    """The error names the setting that decides whether Spark expects compressed states."""
    shutil.copytree(killed / "checkpoint", tmp_path / "spark")
    for part in (tmp_path / "spark").glob("*/rdd-*/part-00000"):
        is_java = part.read_bytes().startswith(b"\xac\xed")
        part.write_bytes(b"LZ4Block" if is_java else b"\xac\xed\x00\x05")
    with pytest.raises(
        RestartError, match=r"expects the opposite; set spark\.checkpoint\.compress"
    ):
        dry_run(sc, killed, tmp_path / "spark")


def test_states_without_a_graph(sc: SparkContext, killed: Path, tmp_path: Path) -> None:
    """The list has the directories with state; each can be an initial RDD, or be named by uid."""
    shutil.copytree(killed / "checkpoint", tmp_path / "spark")
    for graph in (tmp_path / "spark").glob("checkpoint-*"):
        graph.write_bytes(b"")
    lines = list(contents_of(str(tmp_path / "spark"), sc, samples=1))
    assert "none of checkpoint-4000, " in lines[0]
    states = [line.rpartition(" ")[2] for line in lines[1:] if " keys in " in line]
    assert len(states) == 3
    read = [dict(spark_state(sc, f"{tmp_path}/spark/{one}").collect()) for one in states]
    assert {state["a"] for state in read} == {3, 103}
    with pytest.raises(RestartError, match=r"the state in .* lacks all files"):
        spark_state(sc, str(killed / "in"))
    outputs: list[list[tuple[str, int]]] = []

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock(LAST * 1000 + 500))
        words = ssc.queueStream([[("a", 1)]] * 2 * LAST, replayable=True)
        for uid in ("mine", "new"):
            total = words.updateStateByKey(lambda new, old: sum(new) + (old or 0), uid=uid)
            total.foreachRDD(lambda rdd: outputs.append(sorted(rdd.collect())))
        return ssc

    def restore(states: dict[str, str], **options: Any) -> Any:
        new, spark = str(tmp_path / "new"), str(tmp_path / "spark")
        return StreamingContext.restore(new, setup, adopt=spark, states=states, **options)

    with pytest.raises(InvalidStreamError, match=r"no updateStateByKey has the uid 'x'; .* mine"):
        restore({"x": states[0]})
    with pytest.raises(RestartError, match=r"the state in .*/gone/rdd-1 lacks all files"):
        restore({"mine": "gone/rdd-1"})
    report = str(restore({"mine": states[0]}, dryRun=True))
    assert f"adopted: mine: {len(read[0])} keys after the batch at {LAST * 1000} ms" in report
    assert "note: which input is in the named states is not known" in report
    ssc = restore({"mine": states[0]})
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    assert [dict(made)["a"] for made in outputs[::2]] == [read[0]["a"] + 1, read[0]["a"] + 2]
    assert outputs[1::2] == [[("a", 1)], [("a", 2)]]
    outputs.clear()
    ssc = restore({"mine": states[0]})
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert dict(outputs[0])["a"] == read[0]["a"] + 3


PROGRAM = """
import sys
from pyspark import SparkContext
from pyspark.streaming import StreamingContext
from tests.recovery.spark_streams import define

def setup():
    ssc = StreamingContext(SparkContext(), 1)
    define("states", ssc, DIRECTORY, None, outputs)
    return ssc

from pathlib import Path
DIRECTORY, outputs = Path(sys.argv[1]), {}
if sys.argv[2:]:
    ssc = StreamingContext.getOrCreate(sys.argv[2], setup)
else:
    ssc = setup()
ssc.start()
while len(outputs) < 2:
    ssc.awaitTerminationOrTimeout(0.1)
ssc.stop()
print(outputs[4000]["begun"])
"""


def dstreams(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(
        [sys.executable, "-m", "dstreams", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )


def test_run_adopt(killed: Path, tmp_path: Path) -> None:
    """A program with getOrCreate need not change; one without begins from scratch: refused."""
    (tmp_path / "app.py").write_text(PROGRAM)
    conf = ("--conf", "spark.dstreams.recovery.catchUp=skip", "--adopt", killed / "checkpoint")
    run = ("run", "--quiet", *conf, tmp_path / "app.py", killed)
    done = dstreams(*run, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("[('a', 103), ('b1', 1)")
    refused = dstreams(*run)
    assert refused.returncode == 1
    assert "this program begins from scratch; create the context with" in refused.stderr


def test_adopt_app(killed: Path, tmp_path: Path) -> None:
    """It reports what the program would take over, or why it cannot, and changes nothing."""
    (tmp_path / "app.py").write_text(PROGRAM)
    adopt = ("adopt", "--app", tmp_path / "app.py", killed / "checkpoint", "--")
    done = dstreams(*adopt, killed, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert re.search(r"adopted: updateStateByKey-0: 7 keys after the batch at 3000 ms", done.stdout)
    assert re.search("adopted: textFileStream-0: 3 files .* read 3 of them again", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    refused = dstreams(*adopt, tmp_path)
    assert refused.returncode == 1
    assert re.search("refused: .* would read", refused.stdout)
    (tmp_path / "app.py").write_text("")
    nothing = dstreams(*adopt)
    assert nothing.returncode == 1
    assert "starts no stream; call ssc.start()" in nothing.stderr


@pytest.mark.skipif(
    pyspark.__version__ < "4.3", reason="the connector of tests/s3/pom.xml is made for Spark 4.3"
)
def test_checkpoints_on_s3(
    killed: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's is read with Spark's own connector, and the new one is written there as well."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    spark, new = s3.new_url().replace("s3:", "s3a:"), s3.new_url()
    copy_to(spark, killed / "checkpoint")
    (tmp_path / "app.py").write_text(PROGRAM)
    settings = {
        "spark.dstreams.recovery.catchUp": "skip",
        "spark.driver.extraClassPath": class_path(S3, "s3a"),
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    done = dstreams("run", "--quiet", *conf, "--adopt", spark, tmp_path / "app.py", killed, new)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("[('a', 103), ('b1', 1)")
    [stream_id] = open_existing(new).directories()
    assert open_existing(new).list(f"{stream_id}/graph/")

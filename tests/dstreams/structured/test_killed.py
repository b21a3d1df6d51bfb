"""Processes that are killed at a step of a batch, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest
from pyarrow import parquet

from dstreams.cli.drill.steps import STEPS
from dstreams.common.faults import VARIABLE
from dstreams.structured.sources.committed_files import committed_lines
from tests.support.hdfs import Hdfs
from tests.support.programs import ROOT, running

if TYPE_CHECKING:
    from tests.support.kafka_broker import KafkaBroker

pytestmark = pytest.mark.spark

FILES = ([10, 11, -1, 16], [25, 26], [31, -2, 1], [60, 2])
EXPECTED = ["10:2", "15:1", "25:2", "30:1"]
REJECTED = [-2, -1, 1, 2]  # two failed, two were late
VALUES = ["a", "b", "a", "c", "b", "a", "c"]  # two a batch
COUNTS = ["a:1", "a:2", "a:3", "b:1", "b:2", "c:1", "c:2"]
LIMIT_S = 600
NAMED = [step.name for step in STEPS if not step.function]
STEPS_OF_A_RESTART = [name for name in NAMED if name.startswith("rec.")]
STEPS_OF_A_BATCH = [name for name in NAMED if name not in STEPS_OF_A_RESTART]


def start(directory: Path, url: str, step: str = "") -> int:
    """Run the program to its end, or until it is killed at a step; return its status."""
    return run_program("killed_program", str(directory), url, step=step)


def run_program(name: str, *arguments: str, step: str) -> int:
    module = f"tests.dstreams.structured.{name}"
    faults = {VARIABLE: f"{step}:kill9"} if step else {}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **faults},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


def run_killed(directory: Path, *steps: str, url: str = "") -> list[str]:
    """Run the query, killed at one step after another; return the lines that count.

    Each rejected record must be once in the other output.

    Its checkpoint and its output are in *directory*, or below *url*.
    """
    url = url or str(directory)
    inputs = directory / "inputs"
    inputs.mkdir()
    for number, seconds in enumerate(FILES):
        path = inputs / f"{number}.parquet"
        parquet.write_table(pyarrow.table({"second": seconds}), path)
        os.utime(path, (number, number))
    for step in steps:
        assert start(directory, url, step) == -signal.SIGKILL, step
    assert start(directory, url) == 0
    archived = Path(f"{directory}/archive{inputs}")
    left, moved = (sorted(path.name for path in place.iterdir()) for place in (inputs, archived))
    assert sorted(left + moved) == [f"{number}.parquet" for number in range(len(FILES))]
    assert len(left) <= len(steps), "only a kill between commit and cleaning leaves a file"
    rejected = [json.loads(line)["record"]["second"] for line in lines_of(f"{url}/rejected")]
    assert sorted(rejected) == REJECTED
    return sorted(lines_of(f"{url}/output"))


def lines_of(url: str) -> list[str]:
    return [line for lines in committed_lines(url).values() for line in lines]


@pytest.mark.deep
def test_killed(tmp_path: Path) -> None:
    """Killed after its outputs were written and before that was committed, it writes nothing twice.

    Killed again during recovery, and while it creates the state, it loses nothing. Batch 2 is the
    first one with rows for both outputs.
    """
    assert run_killed(tmp_path, "out.done@2", "rec.replay", "state.done@3") == EXPECTED


@pytest.mark.deep
def test_killed_on_hdfs(hdfs: Hdfs, tmp_path: Path) -> None:
    """A checkpoint and files on HDFS keep the same promise."""
    assert run_killed(tmp_path, "out.done@1", url=hdfs.new_url()) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("step", STEPS_OF_A_BATCH)
def test_killed_at_each_step(tmp_path: Path, step: str, batch: int) -> None:
    """Wherever the process is killed, the files are those of a run that was not disturbed."""
    assert run_killed(tmp_path, f"{step}@{batch}") == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS_OF_A_RESTART)
def test_killed_as_it_goes_on(tmp_path: Path, step: str) -> None:
    """A restart that is killed has changed nothing that the next one needs."""
    assert run_killed(tmp_path, "out.done@1", step) == EXPECTED


def run_killed_on_kafka(broker: KafkaBroker, directory: Path, *steps: str) -> list[str]:
    """Run the query on a topic, killed at one step after another; return what it has written."""
    source, target = broker.create_topic(), broker.create_topic(2)
    broker.produce(source, VALUES)
    arguments = (broker.bootstrap, source, target, str(directory))
    for step in steps:
        killed = run_program("killed_kafka_program", *arguments, step=step)
        assert killed == -signal.SIGKILL, step
        broker.restart()
    assert run_program("killed_kafka_program", *arguments, step="") == 0
    found = broker.read(target)
    return sorted(f"{(one.key or b'').decode()}:{(one.value or b'').decode()}" for one in found)


@pytest.mark.deep
def test_killed_on_kafka(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """From topic to topic nothing is lost and nothing there twice, though its broker restarts too.

    The query is killed after its output was written and before that was committed, then while it
    makes the state.
    """
    steps = ("out.done@1", "state.done@2")
    assert run_killed_on_kafka(kafka_broker, tmp_path, *steps) == COUNTS


@pytest.mark.slow
@pytest.mark.parametrize("step", NAMED)
def test_killed_on_kafka_at_each_step(kafka_broker: KafkaBroker, tmp_path: Path, step: str) -> None:
    """Wherever the process is killed, the topic is that of a run that was not disturbed."""
    steps = (f"{step}@2",) if step in STEPS_OF_A_BATCH else ("out.done@1", step)
    assert run_killed_on_kafka(kafka_broker, tmp_path, *steps) == COUNTS


WITHOUT_SPARK = """
import os, signal, sys
from dstreams import tuned_context
from dstreams.structured import StreamSession

def output(rdd, batch_id):
    process = rdd.context._gateway.proc
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        rdd.collect()
    except Exception:
        print("the job failed", flush=True)

spark = tuned_context("ends", "local[1]", {"spark.ui.enabled": "false"})
query = (
    StreamSession(spark).readStream.text(sys.argv[1] + "/inputs")
    .writeStream.foreachBatch(output).trigger(availableNow=True)
    .start(checkpointLocation=sys.argv[1] + "/checkpoint")
)
try:
    query.awaitTermination()
except Exception as error:
    print(f"raised {error}", flush=True)
os._exit(0)
"""


@pytest.mark.deep
def test_a_batch_that_outlives_spark_is_not_committed(tmp_path: Path) -> None:
    """Even if its output hides that its job failed; the next start runs it again."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "lines.txt").write_text("a\n")
    with running("-c", WITHOUT_SPARK, str(tmp_path)) as program:
        assert program.wait() == 0, program.lines
    assert "the job failed" in program.lines
    (raised,) = [line for line in program.lines if line.startswith("raised")]
    assert "the SparkContext was stopped, or its JVM ended, while the batch ran" in raised
    assert list(tmp_path.glob("checkpoint/**/*.commit")) == []

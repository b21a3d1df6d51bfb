"""Batches whose Spark ends while they run: they are not committed, and the next start runs them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from checkpoint import CommitLog, LocalFiles
from tests.support.programs import Program, running

pytestmark = pytest.mark.spark

# Batch 1 loses its JVM in its first output, unless the program runs "again".
PROGRAM = """
import logging, os, signal, socketserver, sys
from pathlib import Path
from dstreams import StreamingContext, tuned_context
from dstreams.testing import ManualClock

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
socketserver.BaseServer.handle_error = lambda *_: None  # of PySpark, whose JVM is gone
how, base = sys.argv[1], Path(sys.argv[2])
clock = ManualClock(1000)

def say(text):
    print(text, flush=True)

def first(time, rdd, batchId):
    if sys.argv[1] != "again" and batchId == 1:
        process = rdd.context._gateway.proc
        process.send_signal(signal.SIGKILL)
        process.wait()
    try:
        say(f"first of {batchId}: {sorted(rdd.collect())}")
    except Exception:
        if sys.argv[1] != "hidden":
            raise

def second(time, rdd, batchId):
    say(f"second of {batchId}")

def make():
    spark = tuned_context("ends", "local[1]", {"spark.ui.enabled": "false"})
    ssc = StreamingContext(spark, 1, clock=clock)
    lines = ssc.fileStream(str(base / "in"), newFilesOnly=False, maxFileAge=float("inf"))
    lines.foreachRDD(first)
    lines.foreachRDD(second)
    return ssc

def put(number):
    hidden = base / "in" / f".{number}"
    hidden.write_text(f"{number}\\n")
    os.utime(hidden, (number, number))
    hidden.rename(base / "in" / str(number))

(base / "in").mkdir(exist_ok=True)
ssc = StreamingContext.getOrCreate(str(base / "checkpoint"), make)
ssc._clock = clock
try:
    if how == "again":
        ssc.step()
        ssc.stop()
    elif how == "started":
        put(0)
        ssc.start()
        clock.advance(1000)
        while ssc.status().totals.batches.get("succeeded") != 1:
            ssc.awaitTerminationOrTimeout(0.05)
        put(1)
        clock.advance(1000)
        ssc.awaitTermination()
    else:
        for number in range(2):
            put(number)
            ssc.step()
except Exception as error:
    say(f"raised {type(error).__name__}: {error}")
say("finished")
os._exit(0)
"""

MODES = ("stepped", "started", "hidden")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runner")


@pytest.fixture(scope="module")
def ended(base: Path) -> dict[str, Program]:
    """All programs, started together, after they have ended."""
    with ExitStack() as stack:
        programs = {}
        for mode in MODES:
            (base / mode).mkdir()
            program = running("-c", PROGRAM, mode, str(base / mode))
            programs[mode] = stack.enter_context(program)
        for program in programs.values():
            program.wait()
    return programs


@pytest.mark.deep
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_outlives_spark_is_not_committed(
    ended: dict[str, Program], base: Path, mode: str
) -> None:
    """Even if the output hides that its job failed; no batch starts after a failed one."""
    lines = ended[mode].lines
    assert "finished" in lines, lines
    outputs = [line for line in lines if line.startswith(("first", "second"))]
    hidden = ["second of 1"] if mode == "hidden" else []
    assert outputs == ["first of 0: ['0']", "second of 0", *hidden]
    (raised,) = [line for line in lines if line.startswith("raised")]
    assert raised.startswith(
        "raised BatchFailedError: the SparkContext was stopped, or its JVM ended, while batch 1 at "
        "3000 ms (1970-01-01 00:00:03 UTC) ran; it is not committed, and the next start runs it "
        "again; "
    )
    assert not any("committed without" in line for line in lines)
    (stream,) = (base / mode / "checkpoint").glob("stream-*")
    commits = CommitLog(LocalFiles(str(stream))).records()
    assert [record.batch_id for record in commits] == [0]


@pytest.mark.deep
def test_the_next_start_runs_it_again(ended: dict[str, Program], base: Path) -> None:
    """All of its outputs run."""
    with running("-c", PROGRAM, "again", str(base / "started")) as program:
        program.wait()
    assert "finished" in ended["started"].lines
    assert program.lines[-3:] == ["first of 1: ['1']", "second of 1", "finished"]

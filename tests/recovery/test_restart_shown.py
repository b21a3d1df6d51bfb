"""A program that is killed and started again on a terminal shows how far its restart is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.dstreams.cli.test_main import LIMIT_S, environment
from tests.support.terminal import HIDDEN_CURSOR, TerminalProgram

pytestmark = pytest.mark.spark

# Its first run dies in its third batch, its second one ends when it has caught up.
PROGRAM = """
import os
import sys
from pyspark import SparkContext
from pyspark.streaming import StreamingContext

directory = sys.argv[1]

def setup():
    ssc = StreamingContext(SparkContext("local[2]", "counts"), 0.5)
    ssc.checkpoint(directory)
    ticks = ssc.queueStream([[("a", 1)]] * 500, replayable=True)
    ticks.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2).foreachRDD(show)
    return ssc

def show(rdd):
    (found,) = rdd.collect()
    print(found)
    if "again" not in sys.argv and found[1] == 3:
        os._exit(9)
    if found[1] == 6:
        StreamingContext.getActive().stop(False)

ssc = StreamingContext.getOrCreate(directory, setup)
ssc.start()
ssc.awaitTermination()
print("the end")
"""


@pytest.mark.deep
def test_a_restart_on_a_terminal(tmp_path: Path) -> None:
    """The bar follows it to the batches that run again; the lines of the program stay whole."""
    app = tmp_path / "app.py"
    app.write_text(PROGRAM)
    command = [sys.executable, "-m", "dstreams", "run", str(app), str(tmp_path / "checkpoint")]
    first = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment()
    )
    assert first.returncode == 9, first.stderr
    assert "\x1b" not in first.stdout + first.stderr
    with TerminalProgram(*command, "again", columns=60, **environment()) as program:
        # The bar may have come and gone in what is read at once.
        program.wait_until(lambda: any("batches to catch up" in line for line in program.drawn))
        assert program.end() == 0
    page = "dstreams: live page: http:"
    (at,) = [at for at, line in enumerate(program.shown) if line.startswith(page)]
    assert program.shown[at + 1 :] == [f"('a', {number})" for number in (3, 4, 5, 6)] + ["the end"]
    assert max(map(len, program.drawn)) < 60
    assert HIDDEN_CURSOR not in program.text

"""The end of a process: by one signal or two, alone or with its JVM, or after a failure."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.support.programs import LIMIT_S, Program, running
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.deep]

PROGRAM = """
import logging, sys, threading, time
from dstreams import Settings, StreamingContext, tuned_context

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
logging.getLogger("dstreams").setLevel(logging.INFO)
how = sys.argv[1]
spark = tuned_context("ends", "local[1]", {"spark.ui.enabled": "false"})
ssc = StreamingContext(
    spark,
    1,
    settings=Settings(
        stop_gracefully_on_shutdown=True,
        stop_batch_timeout_ms=100 if how == "too long" else 3_600_000,
    ),
)
if how == "unseen":
    ssc._life.failure._attention_s = 1.0

begun = []

def say(text):
    print(text, flush=True)

def slowly(records):
    time.sleep(1.5 if how == "slow" else 3000)  # runs when the signal comes; else without end
    return records

def output(time, rdd, batchId):
    say(f"batch {batchId}")
    begun.append(batchId)
    if how in ("slow", "stuck", "group", "too long"):
        rdd.mapPartitions(slowly).count()
        say(f"end of {batchId}")
    elif how == "failing" and batchId == 0:
        raise ValueError("only the first")
    elif how in ("unseen", "leaving") and batchId == 1:
        raise SystemExit("enough")

ssc.queueStream([], default=[1]).foreachRDD(output)
if how == "starting":
    job = spark.parallelize([1], 1).map(lambda one: time.sleep(3000))
    ssc._life._check = lambda: (say("starts"), job.count())
ssc.start()
if how == "unseen":
    threading.Event().wait(3000)
elif how == "too long":
    while not begun:
        threading.Event().wait(0.01)
elif how == "leaving":
    while ssc._life.scheduler._runner.is_alive():
        threading.Event().wait(0.01)
else:
    try:
        ssc.awaitTermination()
    except Exception as error:
        say(f"raised {type(error).__name__}")
        say(f"because {error}")
        if how != "failing":
            raise
        threading.Event().wait(3000)
say("finished")
"""


@dataclass
class Story:
    """What a test does to a program.

    Args:
        how: the case that the program runs.
        until: what it prints before it is signalled.
        signals: what it is sent, a second apart.
        to_group: send to its JVM as well.
    """

    how: str
    until: str
    signals: tuple[int, ...] = ()
    to_group: bool = False


STORIES = {
    "slow": Story("slow", "batch 0", (signal.SIGTERM,)),
    "twice": Story("stuck", "batch 0", (signal.SIGTERM, signal.SIGTERM)),
    "too long": Story("too long", "batch 0"),
    "group": Story("group", "batch 0", (signal.SIGTERM,), to_group=True),
    "failing": Story("failing", "raised BatchFailedError", (signal.SIGTERM,)),
    "starting": Story("starting", "starts", (signal.SIGTERM,)),
    "unseen": Story("unseen", "batch 1"),
    "leaving": Story("leaving", "batch 1"),
}


@dataclass
class Ended:
    """The end of a program."""

    status: int
    lines: list[str] = field(default_factory=list)

    def batches(self) -> list[str]:
        return [line for line in self.lines if line.startswith(("batch", "end of"))]


def run(story: Story, program: Program) -> Ended:
    wait_for(lambda: story.until in program.lines, LIMIT_S)
    for count, number in enumerate(story.signals):
        if count > 0:
            wait_for(lambda: "because of a signal" in "".join(program.lines), LIMIT_S)
        if story.to_group:
            os.killpg(program.process.pid, number)
        else:
            program.process.send_signal(number)
    status = program.wait()  # sooner than what runs without end
    return Ended(status, program.lines)


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, Ended]]:
    """All programs, started together."""
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(running("-c", PROGRAM, story.how))
            for name, story in STORIES.items()
        }
        yield {name: run(STORIES[name], program) for name, program in programs.items()}


def test_the_running_batch_is_finished_and_no_other_begun(ended: dict[str, Ended]) -> None:
    """SIGTERM during a long batch: it completes, and so do the batches due before."""
    end = ended["slow"]
    assert end.status == 0, end.lines
    assert end.lines[-1] == "finished"
    begun = [line for line in end.batches() if line.startswith("batch")]
    assert end.batches() == [
        line for number in range(len(begun)) for line in (f"batch {number}", f"end of {number}")
    ]


def test_each_end_leaves_a_line_in_the_log(ended: dict[str, Ended]) -> None:
    """A signal or the end of the program is logged; a signal is logged as a warning."""
    asked = "WARNING stopping the streams because of a signal; a second signal stops them"
    for name in ("slow", "twice", "group", "failing"):
        assert any(line.startswith(asked) for line in ended[name].lines), name
    assert "INFO stopping the streams because the program has ended" in ended["too long"].lines
    for name in ("slow", "twice", "too long", "group", "failing", "leaving"):
        assert any("INFO the streams have stopped, with" in line for line in ended[name].lines), (
            name
        )


def test_a_signal_while_the_streams_are_starting_ends_with_a_line(ended: dict[str, Ended]) -> None:
    """A restart may take long; it is interrupted in a call to the JVM, and that is logged."""
    end = ended["starting"]
    assert end.status == -signal.SIGTERM, end.lines
    assert any("because of a signal while the streams were starting" in line for line in end.lines)


def test_a_second_signal_ends_sooner(ended: dict[str, Ended]) -> None:
    """A second signal does not wait for a batch without end; the log names what was skipped."""
    end = ended["twice"]
    assert end.status == 1, end.lines
    assert "end of 0" not in end.lines
    assert "raised IncompleteStopError" in end.lines
    (because,) = (line for line in end.lines if line.startswith("because"))
    assert re.search(
        r"a second signal stopped .* did not run to (its|their) end.*; "
        r"lost: \d+ records? of queueStream",
        because,
    )


def test_the_end_of_a_program_says_that_something_was_left_out(ended: dict[str, Ended]) -> None:
    """The exit status shows it, because no thread is left to raise an error."""
    end = ended["too long"]
    assert end.status == 1, end.lines
    assert any("a graceful stop did not run all" in line for line in end.lines)


def test_a_signal_to_the_jvm_as_well_ends_with_what_was_left_out(ended: dict[str, Ended]) -> None:
    """Spark has ended, and the batch with it: the stop is not graceful; it is logged and raised."""
    end = ended["group"]
    assert end.status == 1, end.lines
    assert "raised IncompleteStopError" in end.lines
    assert "end of 0" not in end.lines
    assert any("Spark ended before batch " in line for line in end.lines)
    assert not any(line.startswith("CRITICAL") for line in end.lines)


def test_a_failed_batch_holds_up_no_stop(ended: dict[str, Ended]) -> None:
    """awaitTermination raises; the program continues, and later ends by SIGTERM."""
    end = ended["failing"]
    assert end.status == -signal.SIGTERM, end.lines


@pytest.mark.parametrize(("name", "status"), [("unseen", -signal.SIGTERM), ("leaving", 1)])
def test_a_stream_that_failed_unseen_ends_its_process(
    ended: dict[str, Ended], name: str, status: int
) -> None:
    """The process ends with a failure, whether the program runs forever or returns."""
    end = ended[name]
    assert end.status == status, end.lines
    assert any("the scheduler failed, the stream stops: enough" in line for line in end.lines)

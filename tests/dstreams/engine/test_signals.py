"""SIGTERM and SIGINT, sent to real programs; and the handlers around ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.engine.signals import SignalStop
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.deep]

ROOT = Path(__file__).parents[3]

# Says "ready" after its first batch, and when the streams were stopped; "finished" only if its main
# thread runs to the end.
PROGRAM = """
import sys, threading
from dstreams import Settings, StreamingContext, tuned_context
from dstreams.sources.queue import QueueReader

def say(text):
    print(text, flush=True)

closed = QueueReader.close
QueueReader.close = lambda reader: (say("streams stopped"), closed(reader))

how, graceful = sys.argv[1], sys.argv[2] == "graceful"
spark = tuned_context("signals", "local[1]", {"spark.ui.enabled": "false"})
ssc = StreamingContext(
    spark, 1, settings=Settings(stop_gracefully_on_shutdown=graceful)
)
begun = []

def output(rdd):
    assert rdd.count() == 1
    if not begun:
        say("ready")
        begun.append(True)

ssc.queueStream([], default=[1]).foreachRDD(output)
ssc.start()
if how == "waiting":
    ssc.awaitTermination()
elif how == "elsewhere":
    threading.Event().wait(3000)
else:
    while not begun:
        threading.Event().wait(0.01)
say("finished " + ssc.getState().value)
"""


@dataclass
class Child:
    """A program that got a signal as soon as it was ready."""

    process: subprocess.Popen[str]
    lines: list[str]
    errors: str = ""

    def end(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.lines += self.process.stdout.read().splitlines()
        self.errors = self.process.stderr.read()
        return self.process.wait(300)


CASES: list[tuple[int, str, str]] = [
    (number, how, graceful)
    for number in (signal.SIGTERM, signal.SIGINT)
    for how in ("waiting", "elsewhere")
    for graceful in ("graceful", "at once")
    # Two kinds of stop times two ways to wait; not each with each signal.
    if (graceful == "graceful") == (number == signal.SIGTERM)
]
NO_SIGNAL = 0
CASES.append((NO_SIGNAL, "leaving", "graceful"))


def read_lines_until(text: str, out: IO[str]) -> list[str]:
    lines = []
    for line in out:
        lines.append(line.rstrip("\n"))
        if lines[-1] == text:
            break
    return lines


@pytest.fixture(scope="module")
def children() -> Iterator[dict[tuple[int, str, str], Child]]:
    """Programs for all cases, started together, each signalled when it was ready."""
    processes = {
        case: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *case[1:]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for case in CASES
    }
    children = {}
    try:
        for case, process in processes.items():
            assert process.stdout is not None
            lines = read_lines_until("ready", process.stdout)
            process.send_signal(case[0])
            children[case] = Child(process, lines)
        yield children
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def of(children: dict[tuple[int, str, str], Child], number: int, how: str) -> Child:
    (case,) = [case for case in CASES if case[:2] == (number, how)]
    return children[case]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_waits_for_its_streams_ends_by_itself(
    children: dict[tuple[int, str, str], Child], number: int
) -> None:
    """The streams stop, awaitTermination returns, and the program runs to its end: status 0."""
    child = of(children, number, "waiting")
    assert child.end() == 0, child.errors
    assert child.lines == ["ready", "streams stopped", "finished STOPPED"]
    assert "Traceback" not in child.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_does_something_else_dies_by_the_signal(
    children: dict[tuple[int, str, str], Child], number: int
) -> None:
    """Only after its streams have stopped."""
    child = of(children, number, "elsewhere")
    assert child.end() == -number, child.errors
    assert child.lines == ["ready", "streams stopped"]


def test_a_program_that_just_ends_stops_its_streams(
    children: dict[tuple[int, str, str], Child],
) -> None:
    """A started context at the end of the interpreter is not an error; nothing keeps running."""
    child = of(children, NO_SIGNAL, "leaving")
    assert child.end() == 0, child.errors
    assert child.lines == ["ready", "finished ACTIVE", "streams stopped"]
    assert "Traceback" not in child.errors


# The handlers themselves ---------------------------------------------------------------------


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """Handlers that record signals, instead of those of this process."""
    numbers: list[int] = []
    before = {
        number: signal.signal(number, lambda received, frame: numbers.append(received))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_and_is_passed_on(caught: list[int], number: int) -> None:
    """It is passed to the previous handler if the program does not wait for the streams."""
    stopped: list[str] = []
    signals = SignalStop(lambda: stopped.append(threading.current_thread().name) is not None)
    signals.install()
    os.kill(os.getpid(), number)
    wait_for(lambda: caught == [number])
    # Not on the main thread, which may be inside a call to the JVM.
    assert stopped == ["dstreams-stop"]
    signals.remove()


def test_a_signal_after_the_streams_have_ended_is_for_the_program(
    sc: SparkContext, caught: list[int]
) -> None:
    """After awaitTermination returned because the streams ended, a signal is for the program."""
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.queueStream([], default=[1]).foreachRDD(lambda rdd: ssc.stop(stopSparkContext=False))
    ssc.start()
    clock.advance(1000)
    assert ssc.awaitTerminationOrTimeout(300)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: caught == [signal.SIGTERM])


def test_a_signal_that_the_program_waited_for_ends_there(caught: list[int]) -> None:
    """It is not passed on; a second one is passed to the previous handler and stops nothing."""
    stops: list[bool] = []

    def stop() -> bool:
        stops.append(True)
        return True

    SignalStop(stop).install()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: stops == [True])
    assert caught == []
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: caught == [signal.SIGTERM])
    assert stops == [True]


def test_a_second_signal_hastens_a_graceful_stop_and_a_third_is_passed_on(
    caught: list[int],
) -> None:
    """A graceful stop may take long: a second signal shortens it, and the third one ends it."""
    calls: list[str] = []
    leave = threading.Event()

    def stop() -> bool:
        calls.append("stop")
        return leave.wait(300)

    SignalStop(stop, lambda: calls.append("hasten")).install()
    for expected in (["stop"], ["stop", "hasten"]):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda expected=expected: calls == expected)
    assert caught == []
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: caught == [signal.SIGTERM])
    leave.set()


def test_a_signal_is_passed_on_after_a_graceful_stop_as_well(caught: list[int]) -> None:
    """To the previous handler, once, although a second signal could have been caught."""
    SignalStop(lambda: False, lambda: None).install()
    os.kill(os.getpid(), signal.SIGINT)
    wait_for(lambda: caught == [signal.SIGINT])


def test_removing_puts_back_what_was_there(caught: list[int]) -> None:
    """Handlers are the previous ones, except those that the program has installed since."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signals = SignalStop(lambda: True)
    signals.install()
    assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]

    def mine(number: int, frame: Any) -> None:
        raise AssertionError

    signal.signal(signal.SIGTERM, mine)
    signals.remove()
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
    signals.remove()


def test_other_threads_install_nothing(caught: list[int]) -> None:
    """Only the main thread can; in other threads it is not an error."""
    before = signal.getsignal(signal.SIGTERM)
    signals = SignalStop(lambda: True)
    errors: list[BaseException] = []

    def install() -> None:
        try:
            signals.install()
            signals.remove()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join(300)
    assert errors == []
    assert signal.getsignal(signal.SIGTERM) is before

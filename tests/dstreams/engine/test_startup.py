"""The progress of a restart until it has caught up, in the log or on a terminal; no Spark."""

from __future__ import annotations

import logging

import pytest

from dstreams.engine.startup import RestartProgress
from dstreams.monitoring.events import BatchCompleted, BatchInfo, StreamingStarted
from dstreams.testing import ManualClock
from tests.support.terminal import on_terminal

LOGGER = "dstreams.engine.startup"

# A restart that waits for a line at each batch, which prints.
RESTART = """
import sys
from dstreams.common.clock import SystemClock
from dstreams.monitoring.events import BatchCompleted, BatchInfo
from dstreams.engine.startup import RestartProgress
standard = sys.stdout, sys.stderr
restart = RestartProgress("stream-1", SystemClock(), on_terminal=True)
input()
restart.catch_up(3, 3000)
for time_ms in (1000, 2000, 3000):
    print("batch", time_ms, file=sys.stderr if time_ms == 2000 else sys.stdout)
    input()
    info = BatchInfo(0, time_ms, {}, 0, 0, 0, (), "succeeded", None)
    restart.observe(BatchCompleted(info))
print("caught up", (sys.stdout, sys.stderr) == standard)
"""


def completed(time_ms: int) -> BatchCompleted:
    return BatchCompleted(BatchInfo(0, time_ms, {}, 0, 0, 0, (), "succeeded", None))


@pytest.mark.parametrize("on_terminal", [False, True])
def test_in_the_log(
    on_terminal: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, progress is logged by the driver's clock, and nothing is printed."""
    caplog.set_level(logging.INFO, LOGGER)
    clock = ManualClock()
    restart = RestartProgress("stream-1", clock, on_terminal=on_terminal)
    clock.advance(4000)
    restart.begin("restoring state", 3)
    clock.advance(4000)
    restart.advance()
    restart.catch_up(100, 100_000)
    for number in range(1, 101):
        clock.advance(100)
        restart.observe(StreamingStarted(0))
        restart.observe(completed(1000 * number))
    restart.observe(completed(101_000))
    assert caplog.messages == [
        "stream stream-1 restarts: restoring state: 1 of 3, 4 s",
        "stream stream-1 restarts: batches to catch up: 50 of 100, 5 s",
        "stream stream-1 restarts: batches to catch up: 100 of 100, 10 s",
        "stream stream-1 has caught up, in 100 batches",
    ]
    assert capsys.readouterr() == ("", "")


def test_nothing_to_catch_up_with(caplog: pytest.LogCaptureFixture) -> None:
    """A restart that missed no batch has ended when its state is restored."""
    caplog.set_level(logging.INFO, LOGGER)
    restart = RestartProgress("stream-1", ManualClock(), on_terminal=False)
    restart.catch_up(0, 1000)
    restart.observe(completed(2000))
    assert caplog.messages == []


@pytest.mark.deep
@pytest.mark.parametrize("columns", [40, 80])
def test_on_a_terminal(columns: int) -> None:
    """The bar follows the restart; the output of the program stays above it."""
    with on_terminal(RESTART, columns=columns) as program:
        program.wait_for("restarting")
        program.type("\n")
        for number in range(3):
            program.wait_for("batches to catch up")
            program.wait_for(f"{number} of 3")
            above = [f"batch {1000 * (k + 1)}" for k in range(number + 1)]
            program.wait_until(lambda above=above: program.shown[:-1] == above)  # type: ignore[misc]
            program.type("\n")
        assert program.end() == 0
    assert program.shown == ["batch 1000", "batch 2000", "batch 3000", "caught up True"]
    assert max(map(len, program.drawn)) < columns


def test_a_program_that_ends_meanwhile() -> None:
    """If a program ends before it has caught up, the bar is removed."""
    with on_terminal(RESTART.replace("for time_ms in", "sys.exit(7)\nfor time_ms in")) as program:
        program.wait_for("restarting")
        program.type("\n")
        assert program.end() == 7
    assert program.shown == []
    assert program.screen.cursor.x == 0

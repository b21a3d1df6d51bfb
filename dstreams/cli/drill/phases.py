"""What a driver was doing when it was killed, from the steps that it told of."""

from __future__ import annotations

from dataclasses import dataclass

STARTED, OPENED, RUNS = "driver.started", "driver.opened", "driver.runs"
"""Steps of the driver itself: it is there; it has a context and a graph; it waits for batches."""

STOP = "stop"

PHASES = (
    "start of Python",
    "start of the JVM",
    "recovery",
    "between batches",
    "begin record",
    "input",
    "state",
    "outputs",
    "commit",
    "retention",
    STOP,
)

_BEGINS = {"begin.start": True, "begin.done": False}
_PHASE_AFTER = {
    STARTED: "start of the JVM",
    OPENED: "recovery",
    RUNS: "between batches",
    "job.submit": "input",
    "state.start": "state",
    "state.done": "outputs",
    "out.start": "outputs",
    "out.done": "outputs",
    "commit.start": "commit",
    "commit.done": "retention",
    "clean.start": "retention",
    "clean.done": "between batches",
}


@dataclass
class Whereabouts:
    """Follows a driver, whose two threads begin batches and run them at once."""

    running: str = PHASES[0]
    begins: bool = False

    @property
    def phase(self) -> str:
        """One of :data:`PHASES`; the shorter one of two."""
        return "begin record" if self.begins else self.running

    def note(self, step: str) -> None:
        """Take in that it came to a step."""
        self.begins = _BEGINS.get(step, self.begins)
        # A batch may have begun to run before the driver says that it waits for one.
        if step != RUNS or self.running == "recovery":
            self.running = _PHASE_AFTER.get(step, self.running)

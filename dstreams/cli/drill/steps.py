"""The steps of a batch, a restart and a stop at which a driver is killed.

Most have a name in the runtime (:mod:`dstreams.common.faults`). The moments around decisive files
have none: there the driver to be killed wraps a function.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dstreams.common import faults


@dataclass(frozen=True)
class KillStep:
    """A moment in the life of a driver."""

    name: str  # in the runtime, or another one with a space
    in_restart: bool = False
    """Precedes the first batch; other steps are armed after that, to hit an intact driver."""
    function: str = ""  # ``module:name`` of the function to wrap; empty for a step of the runtime
    when: Literal["before", "after"] = "before"  # die before or after the call
    call: int = 1  # number of the call, from 1
    file: str = ""  # count only calls whose first argument has this prefix
    in_stop: bool = False  # part of a graceful stop


_CREATE = "checkpoint.storage.local_files:LocalFiles.create"
_DELETE = "checkpoint.storage.local_files:LocalFiles.delete"
_SNAPSHOTS = "dstreams.state.state_versions:StateVersions.maintain"
_LAST_CHECKPOINT = "dstreams.engine.engine:Engine.checkpoint_now"
_WRITE_RDD = "dstreams.engine.committer:RddSnapshots.write"
_PUBLISH = "dstreams.sinks.hadoop_directory:HadoopDirectory._publish"
_PUBLISH_ROWS = "dstreams.structured.sources.committed_files:CommittedFiles.add"

STEPS = (
    KillStep("plan.start"),
    KillStep("begin.start"),
    KillStep("before the begin record", function=_CREATE, file="batches/"),
    KillStep("after the begin record", function=_CREATE, when="after", file="batches/"),
    KillStep("begin.done"),
    KillStep("job.submit"),
    KillStep("state.start"),
    KillStep("before a snapshot of an RDD is written", function=_WRITE_RDD),
    KillStep("state.done"),
    KillStep("out.start"),
    KillStep("before an output is published", function=_PUBLISH),
    KillStep("after an output is published", function=_PUBLISH, when="after"),
    KillStep("out.done"),
    KillStep("between the outputs", function=_PUBLISH, when="after", call=2),
    KillStep("commit.start"),
    KillStep("before the commit record", function=_CREATE, file="commits/"),
    KillStep("after the commit record", function=_CREATE, when="after", file="commits/"),
    KillStep("commit.done"),
    KillStep("clean.start"),
    KillStep("before snapshots of stored state", function=_SNAPSHOTS),
    KillStep("after snapshots of stored state", function=_SNAPSHOTS, when="after"),
    KillStep("before a snapshot of inputs", function=_CREATE, file="inputs/"),
    KillStep("after a snapshot of inputs", function=_CREATE, when="after", file="inputs/"),
    KillStep("before the first file is deleted", function=_DELETE),
    KillStep("after the first file was deleted", function=_DELETE, when="after"),
    KillStep("clean.done"),
    KillStep("before the graph is written", True, _CREATE, file="graph/"),
    KillStep("after the graph is written", True, _CREATE, "after", file="graph/"),
    KillStep("after the epoch is claimed", True, _CREATE, "after", file="epochs/"),
    KillStep("rec.fence", True),
    KillStep("rec.load", True),
    KillStep("rec.replay", True),
    KillStep("the first begin record", True, _CREATE, "after", file="batches/"),
    KillStep("the first commit record", True, _CREATE, file="commits/"),
    KillStep("before the checkpoint at the end", function=_LAST_CHECKPOINT, in_stop=True),
    KillStep("after the checkpoint at the end", False, _LAST_CHECKPOINT, "after", in_stop=True),
    KillStep("before the epoch is released", function=_CREATE, file="epochs/", in_stop=True),
)
"""Steps of a batch of the drill's stream, in order, then of a restart and of a stop."""

STEPS_OF_A_QUERY = (
    *(step for step in STEPS if step.function not in (_WRITE_RDD, _PUBLISH, _LAST_CHECKPOINT)),
    KillStep("before the rows of a query are published", function=_PUBLISH_ROWS),
    KillStep("after the rows of a query are published", function=_PUBLISH_ROWS, when="after"),
)
"""Steps of the drill's structured query."""

STEPS_WITH_KAFKA = tuple(step for step in STEPS if step.function != _PUBLISH)
"""Steps of the drill's stream with Kafka."""

RUNTIME_STEPS = tuple(step.name for step in STEPS if not step.function)
"""Names of the steps of every stream and query, in order."""


def step_named(name: str) -> KillStep:
    """Return the step of a name.

    Raises:
        KeyError: no such step.
    """
    return {step.name: step for step in (*STEPS, *STEPS_OF_A_QUERY)}[name]


def die() -> None:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: KillStep, end: Callable[[], None] = die) -> None:
    """Make this process die at *step*.

    Raises:
        AttributeError: the function does not exist.
    """
    if not step.function:
        faults._faults[step.name] = faults.Fault(None, "kill9")
        return
    module, _, function = step.function.partition(":")
    owner: Any = importlib.import_module(module)
    *path, name = function.split(".")
    for part in path:
        owner = getattr(owner, part)
    inner = getattr(owner, name)
    calls = 0

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if not step.file or str(args[1]).startswith(step.file):
            calls += 1
            if calls == step.call:
                if step.when == "after":
                    inner(*args, **kwargs)
                end()
        return inner(*args, **kwargs)

    setattr(owner, name, wrapped)


STARTED, OPENED, RUNS = "driver.started", "driver.opened", "driver.runs"
"""Steps of the driver: it runs; it has a context and a graph; it waits for batches."""

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
    """Tracks the phase of a driver, which begins and runs batches on two threads."""

    running: str = PHASES[0]
    begins: bool = False

    @property
    def phase(self) -> str:
        """One of :data:`PHASES`; of two, the shorter one."""
        return "begin record" if self.begins else self.running

    def note(self, step: str) -> None:
        """Record that the driver reached a step."""
        self.begins = _BEGINS.get(step, self.begins)
        # A batch may run before the driver reports that it waits for one.
        if step != RUNS or self.running == "recovery":
            self.running = _PHASE_AFTER.get(step, self.running)

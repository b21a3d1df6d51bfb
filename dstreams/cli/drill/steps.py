"""The steps of a batch, and of a restart, at which a driver is killed.

Most have a name in the runtime (:mod:`dstreams.common.faults`). Between those are the moments
around the files that decide what counts: there a function is wrapped, in the driver that is to die.
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
class Step:
    """A moment in the life of a driver.

    Args:
        name: of the step in the runtime, or one of ours with a space.
        in_restart: it comes before the first batch of a driver. Other steps are waited for after a
            first batch, so that a batch is hit that nothing was wrong with.
        in_stop: it comes when a driver was asked to end.
        function: ``module:name`` of a function that is wrapped; empty for a step of the runtime.
        when: the driver dies before the call, or after it.
        call: which call it is, from 1 on.
        file: only calls count whose first argument begins like this.
    """

    name: str
    in_restart: bool = False
    function: str = ""
    when: Literal["before", "after"] = "before"
    call: int = 1
    file: str = ""
    in_stop: bool = False


_CREATE = "checkpoint.storage.local_files:LocalFiles.create"
_DELETE = "checkpoint.storage.local_files:LocalFiles.delete"
_SNAPSHOTS = "dstreams.state.state_versions:StateVersions.maintain"
_LAST_CHECKPOINT = "dstreams.engine.engine:Engine.checkpoint_now"
_WRITE_RDD = "dstreams.engine.rdd_snapshots:RddSnapshots.write"
_PUBLISH = "dstreams.sinks.hadoop_directory:HadoopDirectory._publish"
_PUBLISH_ROWS = "dstreams.structured.sources.committed_files:CommittedFiles.add"

STEPS = (
    Step("plan.start"),
    Step("begin.start"),
    Step("before the begin record", function=_CREATE, file="batches/"),
    Step("after the begin record", function=_CREATE, when="after", file="batches/"),
    Step("begin.done"),
    Step("job.submit"),
    Step("state.start"),
    Step("before a snapshot of an RDD is written", function=_WRITE_RDD),
    Step("state.done"),
    Step("out.start"),
    Step("before an output is published", function=_PUBLISH),
    Step("after an output is published", function=_PUBLISH, when="after"),
    Step("out.done"),
    Step("between the outputs", function=_PUBLISH, when="after", call=2),
    Step("commit.start"),
    Step("before the commit record", function=_CREATE, file="commits/"),
    Step("after the commit record", function=_CREATE, when="after", file="commits/"),
    Step("commit.done"),
    Step("clean.start"),
    Step("before snapshots of stored state", function=_SNAPSHOTS),
    Step("after snapshots of stored state", function=_SNAPSHOTS, when="after"),
    Step("before a snapshot of inputs", function=_CREATE, file="inputs/"),
    Step("after a snapshot of inputs", function=_CREATE, when="after", file="inputs/"),
    Step("before the first file is deleted", function=_DELETE),
    Step("after the first file was deleted", function=_DELETE, when="after"),
    Step("clean.done"),
    Step("before the graph is written", True, _CREATE, file="graph/"),
    Step("after the graph is written", True, _CREATE, "after", file="graph/"),
    Step("after the epoch is claimed", True, _CREATE, "after", file="epochs/"),
    Step("rec.fence", True),
    Step("rec.load", True),
    Step("rec.replay", True),
    Step("the first begin record", True, _CREATE, "after", file="batches/"),
    Step("the first commit record", True, _CREATE, file="commits/"),
    Step("before the checkpoint at the end", function=_LAST_CHECKPOINT, in_stop=True),
    Step("after the checkpoint at the end", False, _LAST_CHECKPOINT, "after", in_stop=True),
    Step("before the epoch is released", function=_CREATE, file="epochs/", in_stop=True),
)
"""Steps of a batch of the drill's own stream, in order, then those of a restart, and of a stop."""

STEPS_OF_A_QUERY = (
    *(step for step in STEPS if step.function not in (_WRITE_RDD, _PUBLISH, _LAST_CHECKPOINT)),
    Step("before the rows of a query are published", function=_PUBLISH_ROWS),
    Step("after the rows of a query are published", function=_PUBLISH_ROWS, when="after"),
)
"""Those of a batch of the drill's own structured query, which has all that have a name."""

STEPS_WITH_KAFKA = tuple(step for step in STEPS if step.function != _PUBLISH)
"""Those of a batch of the drill's own stream whose outputs are a topic and a database."""


RUNTIME_STEPS = tuple(step.name for step in STEPS if not step.function)
"""Names of those that every stream and query comes to, in order."""


def step_named(name: str) -> Step:
    """Return the step of a name.

    Raises:
        KeyError: no such step.
    """
    return {step.name: step for step in (*STEPS, *STEPS_OF_A_QUERY)}[name]


def die() -> None:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: Step, end: Callable[[], None] = die) -> None:
    """Let this process die at *step*, from now on.

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

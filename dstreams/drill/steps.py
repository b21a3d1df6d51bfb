"""The steps of a batch at which a driver is killed, and the killing, inside the driver.

A step is a call of a function of the runtime, before or after it. The function is wrapped in the
driver that is to die; nothing of this is in the runtime itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Step:
    """A moment in the life of a driver.

    Args:
        name: for people, and for ``--steps``.
        module: where the function is.
        function: its qualified name there.
        when: the driver dies before the call, or after it.
        call: which call it is, from 1 on; those of the first batch are let pass, so that there is
            something to recover.
        file: only calls count that have a first argument which begins like this.
    """

    name: str
    module: str
    function: str
    when: Literal["before", "after"]
    call: int = 2
    file: str = ""


_ENGINE = "dstreams.runtime.engine"
_FILES = ("checkpoint.local_files", "LocalFiles.create")
_PUBLISH = ("dstreams.sinks.hadoop_directory", "HadoopDirectory._publish")
_OUTPUTS = 4  # of the job

STEPS = (
    Step("batch planned", _ENGINE, "Engine.plan_batch", "after"),
    Step("begin not written", *_FILES, "before", file="batches/"),
    Step("begin written", *_FILES, "after", file="batches/"),
    Step("input read", _ENGINE, "_BatchRun._feed", "after"),
    Step("stored state made", _ENGINE, "_BatchRun._make_stored", "after"),
    Step("outputs made", _ENGINE, "_BatchRun._generate", "after"),
    Step("state computed", _ENGINE, "_BatchRun._persist_state", "after"),
    Step("first output written, not published", *_PUBLISH, "before", call=_OUTPUTS + 1),
    Step("first output published", *_PUBLISH, "after", call=_OUTPUTS + 1),
    Step("half of the outputs done", _ENGINE, "_BatchRun._run_output", "after", call=_OUTPUTS + 2),
    Step("all outputs done", _ENGINE, "_BatchRun._run_output", "after", call=2 * _OUTPUTS),
    Step("commit not written", *_FILES, "before", file="commits/"),
    Step("commit written", *_FILES, "after", file="commits/"),
    Step("state replaced by its files", _ENGINE, "_BatchRun._commit", "after"),
    Step("cleaned up", _ENGINE, "_BatchRun._clean_up", "after"),
    Step("epoch claimed", *_FILES, "after", call=1, file="epochs/"),
    Step("graph not written", *_FILES, "before", call=1, file="graph/"),
    Step("graph written", *_FILES, "after", call=1, file="graph/"),
    Step("first batch after a restart begun", *_FILES, "after", call=1, file="batches/"),
    Step("first batch after a restart not committed", *_FILES, "before", call=1, file="commits/"),
)
"""Steps of a batch of the drill's own job, in order, and then those of a restart."""


def step_named(name: str) -> Step:
    """Return the step of a name.

    Raises:
        KeyError: there is none.
    """
    return {step.name: step for step in STEPS}[name]


def die() -> None:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: Step, end: Callable[[], None] = die) -> None:
    """Let this process die at *step*.

    Raises:
        AttributeError: the runtime has no such function any more.
    """
    owner: Any = importlib.import_module(step.module)
    *path, name = step.function.split(".")
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

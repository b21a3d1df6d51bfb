"""The driver of the drill with a promise broken on purpose, which the drill has to notice.

``DSTREAMS_DRILL_BREAKS`` in the environment names the promise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dstreams.cli.drill import driver
from dstreams.engine.recovery import resume
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.sources.source import PlannedInput

BREAKS = "DSTREAMS_DRILL_BREAKS"

Function = Callable[..., Any]


def nothing(inner: Function) -> Function:
    """Commits nothing, silently."""
    return lambda *arguments, **more: None


def less_state(inner: Function) -> Function:
    """A restart does not find the state of a key."""

    def read_state(*arguments: Any) -> Any:
        state = inner(*arguments)
        less = state.filter(lambda pair: pair[0] != "key-03")
        less.partitioner = state.partitioner
        return less

    return read_state


def less_input(inner: Function) -> Function:
    """A batch that runs again reads less than it did before."""

    def from_record(*arguments: Any) -> Any:
        planned = inner(*arguments)
        less = {name: files[1:] for name, files in planned.facts.items() if name == "files"}
        return replace(planned, facts={**planned.facts, **less})

    return from_record


BROKEN: dict[str, tuple[Any, str, Callable[[Function], Function]]] = {
    "commits": (StreamCheckpoint, "commit", nothing),
    "state": (resume, "read_state", less_state),
    "input": (PlannedInput, "from_record", less_input),
}
"""What is replaced by what, for each promise."""


if __name__ == "__main__":
    owner, name, broken = BROKEN[os.environ[BREAKS]]
    setattr(owner, name, broken(getattr(owner, name)))
    sys.exit(driver.run_driver())

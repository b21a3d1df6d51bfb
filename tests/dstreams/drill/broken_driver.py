"""The driver of the drill with a promise broken on purpose, which the drill has to notice.

``BREAKS`` in the environment names the promise.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from dstreams.drill import driver
from dstreams.recovery import replay
from dstreams.sources.file_stream import FileReader
from dstreams.streams.durability import StreamDurability

BREAKS = "DSTREAMS_DRILL_BREAKS"


def drop_commits() -> None:
    """No batch is committed, and nobody notices."""
    StreamDurability.commit = lambda self, made: None  # type: ignore[method-assign]


def lose_state() -> None:
    """A restart does not find the state of a key."""
    read = replay.read_state

    def read_less(*arguments: Any) -> Any:
        state = read(*arguments)
        less = state.filter(lambda pair: pair[0] != "key-03")
        less.partitioner = state.partitioner
        return less

    replay.read_state = read_less


def shift_input() -> None:
    """A batch that runs again reads less than it did before."""
    inner = FileReader.replay

    def replay(self: Any, batch_time_ms: int, recorded: Any) -> Any:
        planned = inner(self, batch_time_ms, recorded)
        less = replace(planned.content, files=planned.content.files[1:])
        return replace(planned, content=less)

    FileReader.replay = replay  # type: ignore[method-assign]


if __name__ == "__main__":
    {"commits": drop_commits, "state": lose_state, "input": shift_input}[os.environ[BREAKS]]()
    sys.exit(driver.run_driver())

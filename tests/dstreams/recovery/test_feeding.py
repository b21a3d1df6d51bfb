"""Which batches of an earlier run are read again after a restart. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import BeginRecord
from dstreams.graph.input import InputDStream
from dstreams.recovery.committed_state import CommittedState
from dstreams.recovery.replay import Replay
from dstreams.sources.queue import QueueSource
from dstreams.sources.source import PlannedInput

STREAM = InputDStream(0, QueueSource([], replayable=True), 1000, "receiverStream at a.py:1")


@dataclass
class Reader:
    """A reader that says which batches it is asked for again.

    Args:
        forgets: whether what batches have read is gone with the driver before.
    """

    forgets: bool
    replayed: list[int] = field(default_factory=list)

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        return {}

    def replay(self, batch_time_ms: int, recorded: Mapping[str, object]) -> PlannedInput:
        self.replayed.append(batch_time_ms)
        return PlannedInput(batch_time_ms, None, 0, "")

    def rdd(self, planned: PlannedInput) -> None:
        return None


@pytest.mark.parametrize(
    ("forgets", "after_ms", "replayed"),
    [
        (False, 1000, [2000, 3000]),
        (False, 3000, [3000]),
        (True, 1000, [2000, 3000]),
        (True, 3000, []),
    ],
)
def test_what_is_read_again(forgets: bool, after_ms: int, replayed: list[int]) -> None:
    """The last batch always, unless it is gone: nobody is told of a loss that matters to none."""
    reader = Reader(forgets)
    plan: Any = SimpleNamespace(zero_ms=0, batch_ms=1000, input_uids={STREAM: "input"})
    owned: Any = SimpleNamespace(
        plan=SimpleNamespace(
            begins={
                time_ms: BeginRecord("stream-1", 0, time_ms, 1, {"input": {"blocks": 1}})
                for time_ms in (1000, 2000, 3000)
            },
            missing_begins=lambda after_ms: [],
        )
    )
    history: Any = SimpleNamespace(feed=lambda *given: None)
    committed = CommittedState(3000, {}, {}, {}, frozenset(), {STREAM: after_ms})
    opened: Any = {STREAM: reader}
    Replay(plan, history, owned, committed, True).feed(opened)
    assert reader.replayed == replayed

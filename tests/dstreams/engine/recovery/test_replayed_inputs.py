"""Which batches of an earlier run are read again after a restart. No Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import BeginRecord
from dstreams.engine.recovery.resume import CommittedState, ResumeSteps
from dstreams.graph.node import InputDStream
from dstreams.sources.queue import QueueSource
from dstreams.sources.source import PlannedInput

STREAM = InputDStream(0, QueueSource([], replayable=True), 1000, "receiverStream at a.py:1")


@dataclass
class Reader:
    """A reader that keeps the inputs that it reads again.

    Args:
        not_replayable_reason: why what batches have read is gone with the driver before.
    """

    not_replayable_reason: str | None
    read_again: list[PlannedInput] = field(default_factory=list)

    def read(self, planned: PlannedInput) -> None:
        self.read_again.append(planned)


@pytest.mark.parametrize("not_replayable_reason", [None, "it cannot replay"])
@pytest.mark.parametrize(("after_ms", "times"), [(1000, [2000, 3000]), (3000, [])])
def test_what_is_read_again(
    not_replayable_reason: str | None,
    after_ms: int,
    times: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The needed input is read again; input that is lost and not needed causes no warning."""
    reader = Reader(not_replayable_reason)
    begins = {
        time_ms: BeginRecord("stream-1", 0, time_ms, 1, {"input": said})
        for time_ms in (1000, 2000, 3000)
        for said in [{"start": time_ms - 1000, "end": time_ms, "records": 7}]
    }
    engine: Any = SimpleNamespace(
        plan=SimpleNamespace(zero_ms=0, batch_ms=1000, input_uids={STREAM: "input"}),
        rdds=SimpleNamespace(put=lambda *given: None),
        readers={STREAM: reader},
    )
    records: Any = SimpleNamespace(begins=begins, missing_begins=lambda after_ms: [])
    recovered: Any = SimpleNamespace(added=None)
    state = CommittedState(3000, {}, {}, {}, frozenset(), {STREAM: after_ms}, {})
    ResumeSteps(engine, recovered, records, state).read_inputs()
    assert [planned.time_ms for planned in reader.read_again] == times
    starts = [
        planned.end if not_replayable_reason else planned.end - 1000
        for planned in reader.read_again
    ]
    assert [planned.start for planned in reader.read_again] == starts
    assert len(caplog.messages) == (len(times) if not_replayable_reason else 0)
    assert all("7 records of the batch at" in message for message in caplog.messages)

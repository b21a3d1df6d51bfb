"""The environment that source readers under test run in."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark import SparkContext

from checkpoint import InputPast
from checkpoint.json_records import encode
from dstreams.settings import Settings
from dstreams.sources.source import PlannedInput, SourceEnvironment


@dataclass
class HandClock:
    """Stands where a test puts it."""

    time_ms: int = 0

    def now_ms(self) -> int:
        return self.time_ms

    def wait_until(self, time_ms: int, interrupted: threading.Event) -> bool:
        return not interrupted.is_set() and self.time_ms >= time_ms


@dataclass
class Surroundings:
    """Builds environments, and keeps the errors that readers report."""

    clock: HandClock = field(default_factory=HandClock)
    errors: list[Exception] = field(default_factory=list)

    def environment(
        self, spark: SparkContext | None = None, batch_ms: int = 1000, **settings: Any
    ) -> SourceEnvironment:
        return SourceEnvironment(
            spark=cast(SparkContext, spark),
            clock=self.clock,
            settings=Settings().replace(**settings),
            batch_ms=batch_ms,
            report_error=self.errors.append,
        )


@dataclass
class Written:
    """What a stream has written down of one input: a snapshot, and the begin record of batches."""

    upto_ms: int = -1
    facts: dict[str, Any] | None = None
    batches: dict[int, dict[str, Any]] = field(default_factory=dict)

    def past(self, uid: str) -> InputPast:
        """What a restart gets."""
        return InputPast(
            self.upto_ms, self.facts, dict(self.batches), max(self.batches, default=-1)
        )

    def started(self, reader: Any, upto_ms: int = 0) -> Any:
        """Start a reader; of one that is new, write down what it begins with."""
        reader.start()
        if self.facts is None:
            self.upto_ms, self.facts = upto_ms, _read_back(reader.snapshot(upto_ms))
        return reader

    def batch(self, reader: Any, time_ms: int) -> PlannedInput:
        """Plan a batch and begin it, or again as it was begun."""
        planned: PlannedInput
        if time_ms in self.batches:
            planned = reader.replay(time_ms, self.batches[time_ms])
        else:
            planned = reader.plan(time_ms)
            self.batches[time_ms] = _read_back(reader.recorded(planned))
        return planned

    def retire(self, reader: Any, upto_ms: int) -> None:
        """Let a snapshot stand for batches up to a time."""
        self.upto_ms, self.facts = upto_ms, _read_back(reader.snapshot(upto_ms))
        reader.retire(upto_ms)
        self.batches = {ms: said for ms, said in self.batches.items() if ms > upto_ms}


def _read_back(facts: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(encode(facts))
    return read

"""The environment that source readers under test run in."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark import SparkContext

from checkpoint import InputPast
from checkpoint.storage.json_records import encode
from dstreams.common.settings import Settings
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
            begin_ms=0,
            report_error=self.errors.append,
            batch_ms=batch_ms,
        )


def reads(*ends: Any) -> list[PlannedInput]:
    """What a batch reads of sources, of each up to one of these offsets."""
    return [PlannedInput(0, None, end, records=None) for end in ends]


class Driven:
    """A reader, asked for batch after batch as a stream or query does; else it is the reader.

    Args:
        reader: the reader.
        end: offset up to which batches have read.
    """

    def __init__(self, reader: Any, end: Any = None) -> None:
        self.reader = reader
        self.end = end

    def plan(self, time_ms: int) -> PlannedInput:
        """Plan the next batch."""
        planned: PlannedInput = self.reader.plan(self.end, time_ms)
        self.end = planned.end
        return planned

    def records(self, time_ms: int) -> Any:
        """Plan the next batch, and return its records; None where it has no RDD."""
        rdd = self.reader.read(self.plan(time_ms))
        return None if rdd is None else rdd.collect()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)


@dataclass
class Written:
    """What a stream has written down of one input: a snapshot, and the begin record of batches."""

    upto_ms: int = -1
    facts: dict[str, Any] | None = None
    batches: dict[int, dict[str, Any]] = field(default_factory=dict)

    def past(self) -> InputPast:
        """What a restart gets."""
        return InputPast(self.upto_ms, self.facts, dict(self.batches))

    def started(self, reader: Any, upto_ms: int = 0) -> Driven:
        """Start a reader; of one that is new, write down what it begins with."""
        reader.start()
        if self.facts is None:
            self.upto_ms, self.facts = upto_ms, _read_back(reader.snapshot(None))
        return Driven(reader, self.end(max(self.batches, default=0)))

    def batch(self, reader: Driven, time_ms: int) -> PlannedInput:
        """Plan a batch and begin it, or again as it was begun."""
        if time_ms not in self.batches:
            self.batches[time_ms] = _read_back(reader.plan(time_ms).to_record())
        return PlannedInput.from_record(time_ms, self.batches[time_ms])

    def retire(self, reader: Driven, upto_ms: int) -> None:
        """Let a snapshot stand for batches up to a time."""
        end = self.end(upto_ms)
        self.upto_ms, self.facts = upto_ms, _read_back(reader.snapshot(end))
        reader.retire(end)
        self.batches = {ms: said for ms, said in self.batches.items() if ms > upto_ms}

    def end(self, upto_ms: int) -> Any:
        """Up to where batches up to a time read."""
        known = [ms for ms in self.batches if ms <= upto_ms]
        return self.batches[max(known)]["end"] if known else None


def _read_back(facts: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(encode(facts))
    return read

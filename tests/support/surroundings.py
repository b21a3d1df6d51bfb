"""The environment that source readers under test run in."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark import SparkContext

from dstreams.settings import Settings
from dstreams.sources.source import SourceEnvironment


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

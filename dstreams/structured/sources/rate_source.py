"""The source ``rate``: numbered rows at a steady rate."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from dstreams.sources.rate import RateReader, RateSource
from dstreams.sources.source import SourceEnvironment


class RateRow(NamedTuple):
    """A row of the rate source.

    Args:
        timestamp: time of the row, local time without zone.
        value: number of the row, from 0.
    """

    timestamp: datetime
    value: int


class RateStreamSource(RateSource):
    """Rows :class:`RateRow`, unchanged after a restart: the checkpoint has the start time.

    Semantics: the source ``rate`` of Spark; offsets are whole seconds since the query started.
    """

    @property
    def name(self) -> str:
        ramp = f", rampUpTimeMs={self.ramp_up_ms}" if self.ramp_up_ms else ""
        return f"rate[rowsPerSecond={self.rows_per_second}{ramp}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return RateRow._fields

    def open(self, environment: SourceEnvironment) -> RateReader:
        return RateReader(self, environment, 1000, RateRow)

"""Numbered rows at a steady rate, second by second."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from dstreams.sources.rate import RateReader, RateSource
from dstreams.sources.source import Source, SourceEnvironment


class RateRow(NamedTuple):
    """A row of the rate source.

    Args:
        timestamp: when it was due, local time without zone.
        value: its number, from 0.
    """

    timestamp: datetime
    value: int


@dataclass(frozen=True)
class RateStreamSource(Source):
    """Rows :class:`RateRow`, the same after a restart: the checkpoint keeps when the first was due.

    Semantics: the source ``rate`` of Spark: offsets are whole seconds since the query began.

    Args:
        rate: how many rows.
    """

    rate: RateSource

    @property
    def name(self) -> str:
        ramp = f", rampUpTimeMs={self.rate.ramp_up_ms}" if self.rate.ramp_up_ms else ""
        return f"rate[rowsPerSecond={self.rate.rows_per_second}{ramp}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return RateRow._fields

    def open(self, environment: SourceEnvironment) -> RateReader:
        return RateReader(self.rate, environment, 1000, RateRow)

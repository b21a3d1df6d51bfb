"""Settings of structured queries, by the names that Spark gives them.

Settings that decide how state is laid out are pinned: each begin record has them, and a restart
takes them from there, whatever the session says then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dstreams.configuration import COUNT, FLAG, PATH, choice, duration, setting
from dstreams.settings import StateSettings

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
ALLOW_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"
STATE_SCHEMA_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"
CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"

_ONE_FORMAT = (None, "has no effect: the rows of an operator have one format")
_PINNED = ("shuffle_partitions", "watermark_policy", "state_values")


@dataclass(frozen=True)
class QueryConf(StateSettings):
    """The settings of one query, frozen at its start."""

    shuffle_partitions: int = setting(SHUFFLE_PARTITIONS, COUNT, "200")
    watermark_policy: Literal["min", "max"] = setting(
        "spark.sql.streaming.multipleWatermarkPolicy", choice("min", "max"), "min"
    )
    allow_multiple: bool = setting(ALLOW_MULTIPLE, FLAG, "true")
    check_correctness: bool = setting(
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled", FLAG, "true"
    )
    unsupported_check: bool = setting("spark.sql.streaming.unsupportedOperationCheck", FLAG, "true")
    no_data_batches: bool = setting("spark.sql.streaming.noDataMicroBatches.enabled", FLAG, "true")
    retained_batches: int = setting("spark.sql.streaming.minBatchesToRetain", COUNT, "100")
    polling_delay_ms: int = setting("spark.sql.streaming.pollingDelay", duration("ms", 0), "10ms")
    recent_updates: int = setting("spark.sql.streaming.numRecentProgressUpdates", COUNT, "100")
    idle_event_interval_ms: int = setting(
        "spark.sql.streaming.noDataProgressEventInterval", duration("ms", 0), "10s"
    )
    checkpoint_location: str | None = setting(CHECKPOINT_LOCATION, PATH)
    state_schema_check: bool = setting(STATE_SCHEMA_CHECK, FLAG, "true")

    without_choice: ClassVar = {
        f"spark.sql.streaming.{operator}.stateFormatVersion": _ONE_FORMAT
        for operator in ("aggregation", "flatMapGroupsWithState", "join", "sessionWindow")
    }

    def pinned(self) -> dict[str, str]:
        """Return the settings that begin records keep."""
        declared = self.declared()
        return {declared[name]["key"]: str(getattr(self, name)) for name in _PINNED}

    def restored(self, pinned: Mapping[str, str]) -> QueryConf:
        """Return these settings with those that a checkpoint has *pinned*."""
        kept = QueryConf.from_conf(pinned)
        declared = self.declared()
        return self.replace(
            **{name: getattr(kept, name) for name in _PINNED if declared[name]["key"] in pinned}
        )

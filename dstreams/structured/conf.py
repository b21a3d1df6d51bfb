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
    """The settings of one query, frozen at its start.

    Args:
        shuffle_partitions: partitions of the state of each operator, and tasks of each of its jobs
            (``spark.sql.shuffle.partitions``). A session has as many as there are cores, its
            ``defaultParallelism``, unless it is set. A checkpoint keeps that of its first batch.
        watermark_policy: whether the watermark of a query with several is the least of them
            (``min``), or the greatest (``max``)
            (``spark.sql.streaming.multipleWatermarkPolicy``). A checkpoint keeps that of its first
            batch.
        allow_multiple: count as late what is behind the watermark of the batch before, so that
            stateful operators may follow each other, and let ``withWatermark`` give another event
            time to records that have one (``spark.sql.streaming.statefulOperator.allowMultiple``).
        check_correctness: refuse stateful operators over rows that may be behind the watermark;
            else the log has a warning
            (``spark.sql.streaming.statefulOperator.checkCorrectness.enabled``).
        unsupported_check: refuse what cannot be run as a stream
            (``spark.sql.streaming.unsupportedOperationCheck``).
        no_data_batches: run a batch without new records when a timer or the watermark asks for it
            (``spark.sql.streaming.noDataMicroBatches.enabled``).
        retained_batches: batches of which a checkpoint keeps records and state, to be read and to
            be rewound to (``spark.sql.streaming.minBatchesToRetain``).
        polling_delay_ms: pause before a query without an interval looks again for new records
            (``spark.sql.streaming.pollingDelay``).
        recent_updates: batches that ``recentProgress`` has
            (``spark.sql.streaming.numRecentProgressUpdates``).
        idle_event_interval_ms: how often listeners are told of a query that has nothing to do
            (``spark.sql.streaming.noDataProgressEventInterval``).
        checkpoint_location: directory below which a named query has its checkpoint, where it gives
            no ``checkpointLocation`` (``spark.sql.streaming.checkpointLocation``).
        state_schema_check: refuse a restart with another aggregate or window, or with other keys of
            an aggregation, duplicates, a join or groups
            (``spark.sql.streaming.stateStore.stateSchemaCheck``).
        fuses_operators: execute a stateful operator and those below it, up to the shuffle, as one
            function, which is faster; else one after the other, as ``explain`` shows them
            (``spark.dstreams.query.fusedOperators``).
    """

    shuffle_partitions: int = setting(SHUFFLE_PARTITIONS, COUNT, "200", unit="partitions")
    watermark_policy: Literal["min", "max"] = setting(
        "spark.sql.streaming.multipleWatermarkPolicy", choice("min", "max"), "min"
    )
    allow_multiple: bool = setting(ALLOW_MULTIPLE, FLAG, "true")
    check_correctness: bool = setting(
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled", FLAG, "true"
    )
    unsupported_check: bool = setting("spark.sql.streaming.unsupportedOperationCheck", FLAG, "true")
    no_data_batches: bool = setting("spark.sql.streaming.noDataMicroBatches.enabled", FLAG, "true")
    retained_batches: int = setting(
        "spark.sql.streaming.minBatchesToRetain", COUNT, "100", unit="batches"
    )
    polling_delay_ms: int = setting("spark.sql.streaming.pollingDelay", duration("ms", 0), "10ms")
    recent_updates: int = setting(
        "spark.sql.streaming.numRecentProgressUpdates", COUNT, "100", unit="batches"
    )
    idle_event_interval_ms: int = setting(
        "spark.sql.streaming.noDataProgressEventInterval", duration("ms", 0), "10s"
    )
    checkpoint_location: str | None = setting(CHECKPOINT_LOCATION, PATH)
    state_schema_check: bool = setting(STATE_SCHEMA_CHECK, FLAG, "true")
    fuses_operators: bool = setting("spark.dstreams.query.fusedOperators", FLAG, "true")

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

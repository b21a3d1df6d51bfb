"""Settings of structured queries, by the names that Spark gives them.

Settings that determine the layout of state are pinned: each begin record has them, and a restart
takes them from there instead of from the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dstreams.common.settings import BYTES, COUNT, FLAG, PATH, Kind, StateSettings, choice, setting
from dstreams.state.state_manager import STATE_FORMAT
from dstreams.structured.operators.aggregation_state import (
    AGGREGATION_STATE_FORMAT,
)

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
STATE_SCHEMA_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"
BROADCAST_THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"
CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"

_FORMAT = Kind("one of 1, 2", lambda value: type(value) is int and value in (1, 2), int)
_ONE_FORMAT = (None, "the rows of this operator have only one format")
_STATE_FORMATS = ("flat_map_groups_state_format", "aggregation_state_format")
_PINNED = ("shuffle_partitions", "watermark_policy", "state_values", *_STATE_FORMATS)


@dataclass(frozen=True)
class QueryConf(StateSettings):
    """Settings of one query, frozen at its start.

    Args:
        shuffle_partitions: partitions of the state of each operator, and tasks of each of its jobs
            (``spark.sql.shuffle.partitions``). The default of a session is its
            ``defaultParallelism``. A checkpoint keeps the value of its first batch; see
            :meth:`~dstreams.structured.StreamSession.repartitionState`.
        watermark_policy: whether a query with several watermarks uses the smallest (``min``) or the
            largest (``max``) (``spark.sql.streaming.multipleWatermarkPolicy``). A checkpoint keeps
            the value of its first batch.
        no_data_batches: run a batch without new records when a timer or the watermark requires it
            (``spark.sql.streaming.noDataMicroBatches.enabled``).
        retained_batches: number of batches whose records and state a checkpoint keeps, for reading
            and rewinding (``spark.sql.streaming.minBatchesToRetain``).
        checkpoint_location: parent directory of the checkpoints of named queries that set no
            ``checkpointLocation`` (``spark.sql.streaming.checkpointLocation``).
        state_schema_check: refuse a restart with another aggregate or window, or with other keys of
            an aggregation, deduplication, join or group
            (``spark.sql.streaming.stateStore.stateSchemaCheck``).
        fuses_operators: execute a stateful operator and the operators below it, up to the shuffle,
            as one function, which is faster; otherwise one after another, as shown by ``explain``
            (``spark.sql.codegen.wholeStage``).
        broadcast_bytes: largest size of the static rows of a join that each worker has in memory;
            others are partitioned by their keys, and the rows of each batch are shuffled to them.
            -1 partitions all (``spark.sql.autoBroadcastJoinThreshold``).
        flat_map_groups_state_format: format of the rows of ``mapGroupsWithState`` and
            ``flatMapGroupsWithState``, 1 or 2; format 1 cannot store a timer without a state
            (``spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion``). A checkpoint keeps
            the format of its first batch and refuses a restart that sets the other one.
        aggregation_state_format: format of the rows of aggregations, 1 or 2
            (``spark.sql.streaming.aggregation.stateFormatVersion``). A checkpoint keeps the format
            of its first batch and refuses a restart that sets the other one.
        chosen_formats: the state format fields that were set explicitly.
    """

    shuffle_partitions: int = setting(SHUFFLE_PARTITIONS, COUNT, "200", unit="partitions")
    watermark_policy: Literal["min", "max"] = setting(
        "spark.sql.streaming.multipleWatermarkPolicy", choice("min", "max"), "min"
    )
    no_data_batches: bool = setting("spark.sql.streaming.noDataMicroBatches.enabled", FLAG, "true")
    retained_batches: int = setting(
        "spark.sql.streaming.minBatchesToRetain", COUNT, "100", unit="batches"
    )
    checkpoint_location: str | None = setting(CHECKPOINT_LOCATION, PATH)
    state_schema_check: bool = setting(STATE_SCHEMA_CHECK, FLAG, "true")
    fuses_operators: bool = setting("spark.sql.codegen.wholeStage", FLAG, "true")
    broadcast_bytes: int = setting(BROADCAST_THRESHOLD, BYTES, "10MB")
    flat_map_groups_state_format: int = setting(STATE_FORMAT, _FORMAT, "2")
    aggregation_state_format: int = setting(AGGREGATION_STATE_FORMAT, _FORMAT, "2")
    chosen_formats: frozenset[str] = frozenset()

    without_choice: ClassVar = {
        f"spark.sql.streaming.{operator}.stateFormatVersion": _ONE_FORMAT
        for operator in ("join", "sessionWindow")
    } | {
        f"spark.sql.streaming.{key}": ("true", "it is always enabled")
        for key in (
            "statefulOperator.allowMultiple",
            "statefulOperator.checkCorrectness.enabled",
            "unsupportedOperationCheck",
        )
    }

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> QueryConf:
        """Read the settings from the pairs of a SparkConf; other keys are ignored."""
        declared = cls.declared()
        chosen = frozenset(name for name in _STATE_FORMATS if declared[name]["key"] in conf)
        return super().from_conf(conf).replace(chosen_formats=chosen)

    def pinned(self) -> dict[str, str]:
        """Return the settings that begin records keep."""
        declared = self.declared()
        return {declared[name]["key"]: str(getattr(self, name)) for name in _PINNED}

    def restored(self, pinned: Mapping[str, str]) -> QueryConf:
        """Return these settings with those that a checkpoint has *pinned*.

        A checkpoint that pins no state format is older than the choice, and has the default.
        """
        kept = QueryConf.from_conf(pinned)
        declared = self.declared()
        names = [name for name in _PINNED if declared[name]["key"] in pinned]
        return self.replace(**{name: getattr(kept, name) for name in (*names, *_STATE_FORMATS)})

    def changed_formats(self, pinned: Mapping[str, str]) -> list[str]:
        """Return a message for each state format that was set and differs from a checkpoint."""
        kept, declared = self.restored(pinned), self.declared()
        return [
            f"{declared[name]['key']}: the checkpoint has state format {getattr(kept, name)}, got "
            f"{getattr(self, name)}; remove the setting, which keeps the format of the checkpoint, "
            "or start a new checkpoint"
            for name in _STATE_FORMATS
            if name in self.chosen_formats and getattr(self, name) != getattr(kept, name)
        ]

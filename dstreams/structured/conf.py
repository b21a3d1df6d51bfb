"""Settings of structured queries, by the names that Spark gives them.

What decides how state is laid out is pinned: written into the batch log with each batch, and taken
from there at a restart, whatever the session says then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstreams.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError
from dstreams.structured.options import flag, whole_number

_PREFIX = "spark.sql.streaming."

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
POLICY = f"{_PREFIX}multipleWatermarkPolicy"
ALLOW_MULTIPLE = f"{_PREFIX}statefulOperator.allowMultiple"
CHECK_CORRECTNESS = f"{_PREFIX}statefulOperator.checkCorrectness.enabled"
UNSUPPORTED_CHECK = f"{_PREFIX}unsupportedOperationCheck"
NO_DATA_BATCHES = f"{_PREFIX}noDataMicroBatches.enabled"
RETAINED_BATCHES = f"{_PREFIX}minBatchesToRetain"
POLLING_DELAY = f"{_PREFIX}pollingDelay"
RECENT_UPDATES = f"{_PREFIX}numRecentProgressUpdates"
IDLE_EVENT_INTERVAL = f"{_PREFIX}noDataProgressEventInterval"
CHECKPOINT_LOCATION = f"{_PREFIX}checkpointLocation"
SKIP_INITIAL_KEYS = f"{_PREFIX}flatMapGroupsWithState.skipEmittingInitialStateKeys"
STATE_SCHEMA_CHECK = f"{_PREFIX}stateStore.stateSchemaCheck"
STATE_VALUES = "spark.dstreams.state.values"
STATE_LOCAL_DIRECTORY = "spark.dstreams.state.localDirectory"
STATE_LOCAL_RETENTION = "spark.dstreams.state.localRetention"
STATE_CHECKSUMS = "spark.dstreams.state.checksums"

PINNED = (SHUFFLE_PARTITIONS, POLICY, STATE_VALUES)
"""Settings that a checkpoint keeps."""

_STATE_FORMATS = tuple(
    f"{_PREFIX}{operator}.stateFormatVersion"
    for operator in ("aggregation", "flatMapGroupsWithState", "join", "sessionWindow")
)
"""Settings of Spark that would promise a format, where there is one."""

_DEFAULTS = {
    POLICY: "min",
    ALLOW_MULTIPLE: "true",
    CHECK_CORRECTNESS: "true",
    UNSUPPORTED_CHECK: "true",
    NO_DATA_BATCHES: "true",
    RETAINED_BATCHES: "100",
    POLLING_DELAY: "10ms",
    RECENT_UPDATES: "100",
    IDLE_EVENT_INTERVAL: "10s",
    SKIP_INITIAL_KEYS: "false",
    STATE_SCHEMA_CHECK: "true",
    STATE_VALUES: "data",
    STATE_LOCAL_RETENTION: "7d",
    STATE_CHECKSUMS: "false",
}

_CHOICES = {STATE_VALUES: ("data", "pickle")}

_FLAGS = (
    ALLOW_MULTIPLE,
    CHECK_CORRECTNESS,
    UNSUPPORTED_CHECK,
    NO_DATA_BATCHES,
    STATE_SCHEMA_CHECK,
    STATE_CHECKSUMS,
)


@dataclass(frozen=True)
class QueryConf:
    """The settings of one query, frozen at its start.

    Args:
        values: by name; what is missing has Spark's default.
    """

    values: Mapping[str, str]

    def text(self, key: str) -> str | None:
        """Return a setting as it was written, its default, or None."""
        return self.values.get(key, _DEFAULTS.get(key))

    def flag(self, key: str) -> bool:
        """Return a setting that is true or false.

        Raises:
            InvalidStreamError: it is neither.
        """
        return flag(self.text(key), key)

    def count(self, key: str) -> int:
        """Return a setting that is a whole number of at least 1.

        Raises:
            InvalidStreamError: it is none.
        """
        return whole_number(self.text(key), key)

    def duration_ms(self, key: str) -> int:
        """Return a setting that is a duration, in milliseconds."""
        return parse_duration_ms(str(self.text(key)), key)

    def policy(self) -> str:
        """Return how several watermarks become one.

        Raises:
            InvalidStreamError: the policy is not one of the two.
        """
        text = str(self.text(POLICY))
        if text.lower() not in ("min", "max"):
            raise InvalidStreamError(f"{POLICY} is {text!r}; valid values are 'min' and 'max'")
        return text.lower()

    def validate(self) -> None:
        """Refuse at the start of a query what a batch would refuse later.

        Raises:
            InvalidStreamError: a setting cannot be read.
        """
        self.policy()
        for key in _STATE_FORMATS:
            if key in self.values:
                raise InvalidStreamError(
                    f"{key} is {self.values[key]!r} and has no effect: the rows of an operator "
                    "have one format; do not set it"
                )
        for key in (SHUFFLE_PARTITIONS, RETAINED_BATCHES, RECENT_UPDATES):
            self.count(key)
        for key in _FLAGS:
            self.flag(key)
        for key in (POLLING_DELAY, IDLE_EVENT_INTERVAL, STATE_LOCAL_RETENTION):
            self.duration_ms(key)
        for key, choices in _CHOICES.items():
            if self.text(key) not in choices:
                raise InvalidStreamError(
                    f"{key} is {self.text(key)!r}; use one of {', '.join(choices)}"
                )

    def pinned(self) -> dict[str, str]:
        """Return what the batch log keeps."""
        return {key: str(self.text(key)) for key in PINNED}

    def restored(self, pinned: Mapping[str, str]) -> QueryConf:
        """Return these settings as a checkpoint wants them.

        Args:
            pinned: what its batch log kept.
        """
        kept = {key: pinned[key] for key in PINNED if key in pinned}
        return QueryConf({**self.values, **kept})

"""Settings: values that a user tunes, read once from the SparkConf and frozen.

Keys that Spark Streaming has keep their name, unit and default (``spark.streaming.*``); keys of
our own begin with ``spark.dstreams.``, because Spark drops keys that do not begin with ``spark.``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from dstreams.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError

OnFailure = Literal["continue", "stop"]
StateValues = Literal["data", "pickle"]
MapWithStateTimeouts = Literal["exact", "checkpoint"]
MissedBatches = Literal["all", "merge", "skip"]
LongLines = Literal["skip", "fail"]
WindowInverse = Literal["pyspark", "scala"]

IGNORE_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
"""The key by which a user says that input files may vanish."""

_SAME_AS = {"spark.files.ignoreMissingFiles": IGNORE_MISSING_FILES}

UNLIMITED_MS = 1 << 62
"""A duration that is longer than any."""


@dataclass(frozen=True)
class Settings:
    """Settings of one streaming context.

    Args:
        on_failure: what follows a batch that failed (``spark.dstreams.onFailure``). ``continue``
            reports the error, commits the batch without the outputs that failed, and goes on with
            the next one, as Spark Streaming does; the log says how these outputs are run again.
            ``stop`` ends the batch there, does not commit it and stops the context; a restart runs
            it again, whole. A failure to persist state stops the context in any case.
        state_values: how the values of stored state are written
            (``spark.dstreams.state.values``). ``data``: plain data, which runs no code when it is
            read; ``pickle``: any object.
        state_local_directory: path on each host where copies of stored state are kept, of this user
            alone; None: a directory below that for temporary files
            (``spark.dstreams.state.localDirectory``).
        state_local_retention_ms: how long a host keeps copies of stored state that no stream uses;
            one that comes back later builds new ones (``spark.dstreams.state.localRetention``).
        state_checksums: carry a checksum of each partition of stored state from batch to batch,
            which finds a damaged local copy before it is published
            (``spark.dstreams.state.checksums``).
        map_with_state_timeouts: when ``mapWithState`` looks for keys that have timed out
            (``spark.dstreams.mapWithState.timeouts``). ``exact``: in every batch; ``checkpoint``:
            in the batches at the stream's checkpoint interval, as Spark Streaming does.
        skip_initial_keys: do not call the function of ``flatMapGroupsWithState`` for keys that have
            an initial state and no value in the first batch
            (``spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys``).
        missed_batches: what a restart does with the batches whose time passed while no driver ran
            (``spark.dstreams.recovery.missedBatches``). ``all``: run them one by one, as Spark
            does; ``merge``: run one batch in their place, with the input of all; ``skip``:
            likewise, and what a source would have made in that time, such as the rows of a rate, is
            never made. Input that waits, such as files and received blocks, is read in any case.
        window_inverse: when a window uses its inverse function (``spark.dstreams.window.inverse``).
            ``pyspark``: from five slides on, as ``pyspark.streaming`` does; shorter ones are made
            anew. ``scala``: always, with the semantics of Scala's ReducedWindowedDStream. A window
            that was defined keeps its rule over restarts from its checkpoint.
        unpersist: unpersist RDDs that are no longer remembered (``spark.streaming.unpersist``).
        graceful_stop_timeout_ms: how long a graceful stop waits for receivers to end and to store
            what they have; None for as long as it waits for batches
            (``spark.streaming.gracefulStopTimeout``).
        wait_for_batches_ms: how long a graceful stop waits for batches that run or are planned;
            what it cuts off then is named in an :class:`~dstreams.IncompleteStopError`
            (``spark.dstreams.stop.waitForBatches``).
        stop_gracefully_on_shutdown: stop gracefully on SIGTERM and SIGINT
            (``spark.streaming.stopGracefullyOnShutdown``).
        checkpoint_directory: called with ``StreamingContext.checkpoint`` at construction
            (``spark.streaming.checkpoint.directory``).
        max_queued_batches: batches that may wait while an earlier one runs; after that the
            generator waits too (``spark.dstreams.maxQueuedBatches``).
        file_remember_ms: how far back a file stream looks at modification times
            (``spark.streaming.fileStream.minRememberDuration``).
        file_max_age_ms: how old a file may be when it appears, None for Spark's rule
            (``spark.dstreams.fileStream.maxFileAge``, where ``unlimited`` is :data:`UNLIMITED_MS`).
        max_files_per_batch: files in a batch of a file stream at most, None for no limit
            (``spark.dstreams.fileStream.maxFilesPerBatch``).
        ignore_missing_files: go on without input files that are not there any more when their batch
            reads them (``spark.sql.files.ignoreMissingFiles``, and the same without ``sql.``, which
            is that of Spark's RDDs); the log names them.
        receiver_restart_delay_ms: pause before a receiver connects or starts again
            (``spark.streaming.receiverRestartDelay``).
        receiver_max_rate: records a second that each receiver, socket and rate source gives at
            most, from the first batch on; None for no limit (``spark.streaming.receiver.maxRate``).
        receiver_max_buffer_bytes: bytes of blocks that wait in the driver for each receiver; then
            it has to wait (``spark.dstreams.receiver.maxBufferBytes``).
        receiver_write_ahead_log: write blocks to the checkpoint directory before they count as
            received (``spark.streaming.receiver.writeAheadLog.enable``).
        block_interval_ms: how long a receiver collects records for a block
            (``spark.streaming.blockInterval``).
        backpressure: let each source give no more than its stream can process, as far as it is one
            that can wait (``spark.streaming.backpressure.enabled``).
        backpressure_initial_rate: records a second of each source before the first batch has run,
            under backpressure; None for ``receiver_max_rate``
            (``spark.streaming.backpressure.initialRate``).
        pid_proportional: weight of the last batch's rate
            (``spark.streaming.backpressure.pid.proportional``).
        pid_integral: weight of the records that wait
            (``spark.streaming.backpressure.pid.integral``).
        pid_derived: weight of the change (``spark.streaming.backpressure.pid.derived``).
        pid_minimum: records a second that are let in always
            (``spark.streaming.backpressure.pid.minRate``).
        max_queued_events: events that may wait for slow listeners; after that events are dropped
            (``spark.dstreams.maxQueuedEvents``).
        extra_listeners: listeners that each context has, as ``module.name`` of what makes one
            (``spark.dstreams.extraListeners``, separated by commas).
        socket_max_line_bytes: longest line a socket source takes
            (``spark.dstreams.socket.maxLineBytes``).
        socket_long_lines: what becomes of a longer one (``spark.dstreams.socket.longLines``).
            ``skip``: it is left out, and the log says so; ``fail``: the stream fails as well, in
            ``awaitTermination``, or with its query.
        socket_max_buffer_bytes: bytes a socket source holds for batches to come; when it is full
            it stops reading, so the sender waits (``spark.dstreams.socket.maxBufferBytes``).
    """

    on_failure: OnFailure = "continue"
    state_values: StateValues = "data"
    state_local_directory: str | None = None
    state_local_retention_ms: int = 7 * 86_400_000
    state_checksums: bool = False
    map_with_state_timeouts: MapWithStateTimeouts = "exact"
    skip_initial_keys: bool = False
    missed_batches: MissedBatches = "all"
    window_inverse: WindowInverse = "pyspark"
    unpersist: bool = True
    graceful_stop_timeout_ms: int | None = None
    wait_for_batches_ms: int = 3_600_000
    stop_gracefully_on_shutdown: bool = False
    checkpoint_directory: str | None = None
    max_queued_batches: int = 1000
    file_remember_ms: int = 60_000
    file_max_age_ms: int | None = None
    max_files_per_batch: int | None = None
    ignore_missing_files: bool = False
    receiver_restart_delay_ms: int = 2000
    receiver_max_rate: int | None = None
    receiver_max_buffer_bytes: int = 64 << 20
    receiver_write_ahead_log: bool = False
    block_interval_ms: int = 200
    backpressure: bool = False
    backpressure_initial_rate: int | None = None
    pid_proportional: float = 1.0
    pid_integral: float = 0.2
    pid_derived: float = 0.0
    pid_minimum: float = 100.0
    max_queued_events: int = 10_000
    extra_listeners: tuple[str, ...] = ()
    socket_max_line_bytes: int = 1 << 20
    socket_long_lines: LongLines = "skip"
    socket_max_buffer_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.on_failure not in ("continue", "stop"):
            raise InvalidStreamError(
                f"on_failure is {self.on_failure!r}; use one of continue, stop"
            )
        if self.state_values not in ("data", "pickle"):
            raise InvalidStreamError(
                f"state_values is {self.state_values!r}; use one of data, pickle"
            )
        if self.map_with_state_timeouts not in ("exact", "checkpoint"):
            raise InvalidStreamError(
                f"map_with_state_timeouts is {self.map_with_state_timeouts!r}; use one of exact, "
                "checkpoint"
            )
        if self.missed_batches not in ("all", "merge", "skip"):
            raise InvalidStreamError(
                f"missed_batches is {self.missed_batches!r}; use one of all, merge, skip"
            )
        if self.socket_long_lines not in ("skip", "fail"):
            raise InvalidStreamError(
                f"socket_long_lines is {self.socket_long_lines!r}; use one of skip, fail"
            )
        if self.window_inverse not in ("pyspark", "scala"):
            raise InvalidStreamError(
                f"window_inverse is {self.window_inverse!r}; use one of pyspark, scala"
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_number = field.name.startswith("max_") or field.name.endswith(
                ("_ms", "_bytes", "_rate")
            )
            if is_number and value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidStreamError(
                    f"{field.name} is {value!r}; use a whole number of at least 1"
                )
            if field.name.startswith("pid_"):
                _require_amount(value, field.name, positive=field.name == "pid_minimum")

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> Settings:
        """Read the settings from the pairs of a SparkConf.

        Raises:
            InvalidStreamError: a value cannot be read, or asks for what dstreams does not do.
        """
        _require_one_job(conf.get("spark.streaming.concurrentJobs", "1"))
        estimator = "spark.streaming.backpressure.rateEstimator"
        _choice("pid")(conf.get(estimator, "pid"), estimator)
        conf = {**{_SAME_AS[key]: conf[key] for key in _SAME_AS if key in conf}, **conf}
        return cls(
            **{
                field: parse(conf[key], key)
                for field, (key, parse) in _KEYS.items()
                if conf.get(key) is not None
            }
        )

    def replace(self, **changes: Any) -> Settings:
        """Return these settings with *changes*, by field name."""
        return dataclasses.replace(self, **changes)


def _require_one_job(value: str) -> None:
    if value.strip() != "1":
        raise InvalidStreamError(
            f"spark.streaming.concurrentJobs is {value!r}, but batches run strictly one after "
            "another here, because state would otherwise depend on their order; remove the setting"
        )


def _require_amount(value: Any, name: str, *, positive: bool) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (positive and value == 0):
        rule = "above 0" if positive else "of at least 0"
        raise InvalidStreamError(f"{name} is {value!r}; use a number {rule}")


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def parse(text: str, key: str) -> str:
        if text not in allowed:
            raise InvalidStreamError(f"{key} is {text!r}; use one of {', '.join(allowed)}")
        return text

    return parse


def _flag(text: str, key: str) -> bool:
    return _choice("true", "false")(text.strip().lower(), key) == "true"


def _positive(text: str, key: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidStreamError(f"{key} is {text!r}; use a whole number of at least 1")
    return int(text)


def _rate(text: str, key: str) -> int | None:
    """Parse records a second; Spark takes zero and less for no limit."""
    if re.fullmatch(r"\s*(0+|-\d+)\s*", text):
        return None
    return _positive(text, key)


def _amount(text: str, key: str) -> float:
    value: float | str = text
    with suppress(ValueError):
        value = float(text)
    _require_amount(value, key, positive=key.endswith("minRate"))
    return float(value)


def _names(text: str, key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _milliseconds(text: str, key: str) -> int:
    return parse_duration_ms(text, key)


def _seconds(text: str, key: str) -> int:
    return parse_duration_ms(text, key, default_unit="s")


def _age(text: str, key: str) -> int:
    return UNLIMITED_MS if text.strip().lower() == "unlimited" else _seconds(text, key)


def _text(text: str, key: str) -> str:
    return text


_KEYS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "state_values": ("spark.dstreams.state.values", _choice("data", "pickle")),
    "state_local_directory": ("spark.dstreams.state.localDirectory", _text),
    "state_local_retention_ms": ("spark.dstreams.state.localRetention", _milliseconds),
    "state_checksums": ("spark.dstreams.state.checksums", _flag),
    "map_with_state_timeouts": (
        "spark.dstreams.mapWithState.timeouts",
        _choice("exact", "checkpoint"),
    ),
    "skip_initial_keys": (
        "spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys",
        _flag,
    ),
    "missed_batches": (
        "spark.dstreams.recovery.missedBatches",
        _choice("all", "merge", "skip"),
    ),
    "window_inverse": ("spark.dstreams.window.inverse", _choice("pyspark", "scala")),
    "on_failure": ("spark.dstreams.onFailure", _choice("continue", "stop")),
    "unpersist": ("spark.streaming.unpersist", _flag),
    "graceful_stop_timeout_ms": ("spark.streaming.gracefulStopTimeout", _milliseconds),
    "wait_for_batches_ms": ("spark.dstreams.stop.waitForBatches", _milliseconds),
    "stop_gracefully_on_shutdown": ("spark.streaming.stopGracefullyOnShutdown", _flag),
    "checkpoint_directory": ("spark.streaming.checkpoint.directory", _text),
    "max_queued_batches": ("spark.dstreams.maxQueuedBatches", _positive),
    "file_remember_ms": ("spark.streaming.fileStream.minRememberDuration", _seconds),
    "file_max_age_ms": ("spark.dstreams.fileStream.maxFileAge", _age),
    "max_files_per_batch": ("spark.dstreams.fileStream.maxFilesPerBatch", _positive),
    "ignore_missing_files": (IGNORE_MISSING_FILES, _flag),
    "receiver_restart_delay_ms": ("spark.streaming.receiverRestartDelay", _milliseconds),
    "receiver_max_rate": ("spark.streaming.receiver.maxRate", _rate),
    "receiver_max_buffer_bytes": ("spark.dstreams.receiver.maxBufferBytes", _positive),
    "receiver_write_ahead_log": ("spark.streaming.receiver.writeAheadLog.enable", _flag),
    "block_interval_ms": ("spark.streaming.blockInterval", _milliseconds),
    "backpressure": ("spark.streaming.backpressure.enabled", _flag),
    "backpressure_initial_rate": ("spark.streaming.backpressure.initialRate", _rate),
    "pid_proportional": ("spark.streaming.backpressure.pid.proportional", _amount),
    "pid_integral": ("spark.streaming.backpressure.pid.integral", _amount),
    "pid_derived": ("spark.streaming.backpressure.pid.derived", _amount),
    "pid_minimum": ("spark.streaming.backpressure.pid.minRate", _amount),
    "max_queued_events": ("spark.dstreams.maxQueuedEvents", _positive),
    "extra_listeners": ("spark.dstreams.extraListeners", _names),
    "socket_max_line_bytes": ("spark.dstreams.socket.maxLineBytes", _positive),
    "socket_long_lines": ("spark.dstreams.socket.longLines", _choice("skip", "fail")),
    "socket_max_buffer_bytes": ("spark.dstreams.socket.maxBufferBytes", _positive),
}

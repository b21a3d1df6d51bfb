"""Settings: values that a user tunes, read once from the SparkConf and frozen.

Keys that Spark Streaming has keep their name, unit and default (``spark.streaming.*``); keys of
our own begin with ``spark.dstreams.``, because Spark drops keys that do not begin with ``spark.``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dstreams.common.configuration import (
    COUNT,
    FLAG,
    NAMES,
    PATH,
    RATE,
    TEXT,
    Configuration,
    Kind,
    amount,
    choice,
    duration,
    setting,
    similar,
    whole_number,
)
from dstreams.errors import InvalidStreamError

OnFailure = Literal["continue", "stop"]
StateValues = Literal["data", "pickle"]
MapWithStateTimeouts = Literal["exact", "checkpoint"]
MissedBatches = Literal["all", "merge", "skip"]
LongLines = Literal["skip", "fail"]
WindowInverse = Literal["pyspark", "scala"]

IGNORE_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
"""The key by which a user says that input files may vanish."""

STATE_LOCAL_ENCRYPTED = "spark.dstreams.state.localEncrypted"
"""Setting by which a program says that the disks of local copies of state are encrypted."""

UI_ENABLED = "spark.dstreams.ui.enabled"
"""The key by which a user asks for the live page."""

UNLIMITED_MS = 1 << 62
"""A duration that is longer than any."""

_MS = duration("ms")
_SECONDS = duration("s")
_BROKERS = Kind("brokers as host:port, separated by commas", TEXT.allows)
_HOST = Kind("a host name or address", TEXT.allows)
_WEIGHT = amount("a number of at least 0", lambda number: number >= 0)
_ABOVE_0 = amount("a number above 0", lambda number: number > 0)


def _age_ms(text: str) -> int:
    age_ms: int = UNLIMITED_MS if text.strip().lower() == "unlimited" else _SECONDS.parse(text)
    return age_ms


_PORT = Kind(
    "a whole number from 0 to 65535",
    lambda value: whole_number(0).allows(value) and value <= 65535,
    int,
)
_TOKEN = Kind(
    "16 or more letters, digits and -._~",
    lambda value: (
        isinstance(value, str) and re.fullmatch(r"[\w.~-]{16,}", value, re.ASCII) is not None
    ),
    is_secret=True,
)
_AGE = Kind(f"{_SECONDS.rule}, or unlimited", _SECONDS.allows, _age_ms, unit="s")


@dataclass(frozen=True)
class StateSettings(Configuration):
    """Settings that streams and queries share; :class:`Settings` describes them."""

    task_timeout_ms: int | None = setting("spark.dstreams.task.timeout", _MS)
    state_values: StateValues = setting(
        "spark.dstreams.state.values", choice("data", "pickle"), "data"
    )
    state_local_directory: str | None = setting("spark.dstreams.state.localDirectory", PATH)
    state_local_retention_ms: int = setting("spark.dstreams.state.localRetention", _MS, "7d")
    state_local_encrypted: bool = setting(STATE_LOCAL_ENCRYPTED, FLAG, "false")
    state_checksums: bool = setting("spark.dstreams.state.checksums", FLAG, "false")
    skip_initial_keys: bool = setting(
        "spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys", FLAG, "false"
    )


@dataclass(frozen=True)
class Settings(StateSettings):
    """Settings of one streaming context.

    Args:
        on_failure: what follows a batch that failed (``spark.dstreams.onFailure``). ``continue``
            reports the error, commits the batch without the outputs that failed, and goes on with
            the next one, as Spark Streaming does; the log says how these outputs are run again.
            ``stop`` ends the batch there, does not commit it and stops the context; a restart runs
            it again, whole. A failure to persist state stops the context in any case.
        task_timeout_ms: how long a task may run (``spark.dstreams.task.timeout``); None: no limit.
            When a task of a batch takes longer, its Python worker is killed and Spark runs the task
            again, on another worker. When that has happened in as many attempts as Spark gives a
            task (with a local master the second number of ``local[2,4]``), the job fails, and the
            batch with it. Give much more than the longest task takes: a task may be interrupted
            after its effects outside Spark, and it runs up to five seconds longer than this.
        state_values: how the values of stored state are written
            (``spark.dstreams.state.values``). ``data``: plain data and instances of classes of
            data, which runs no code when it is read; ``pickle``: any object.
        state_local_directory: path on each host where copies of stored state are kept, of this user
            alone; None: a directory below that for temporary files
            (``spark.dstreams.state.localDirectory``). Each partition needs 4 MiB or more. In a
            directory that is given here copies stay for the next start, as long as the next setting
            says; those below temporary files are deleted from the driver's host when the stream or
            query is stopped.
        state_local_retention_ms: how long a host keeps copies of stored state that no stream uses;
            one that comes back later builds new ones (``spark.dstreams.state.localRetention``).
        state_local_encrypted: whether the operating system encrypts the disks of that directory and
            of temporary files, on each host (``spark.dstreams.state.localEncrypted``). If Spark is
            to encrypt its local files (spark.io.encryption.enabled), stored state needs this, since
            Spark does not encrypt files of Python workers.
        state_checksums: carry a checksum of each partition of stored state from batch to batch,
            which finds a damaged replica before it is published
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
            anew. ``scala``: always, with the semantics of Scala's ReducedWindowedDStream: a
            key of which all values left stays until ``filterFunc`` drops it. A window
            that was defined keeps its rule over restarts from its checkpoint.
        unpersist: unpersist RDDs that are no longer remembered (``spark.streaming.unpersist``).
        graceful_stop_timeout_ms: how long a graceful stop waits for receivers to end and to store
            what they have; None for as long as it waits for batches
            (``spark.streaming.gracefulStopTimeout``). Batches are not bounded by it, as in Spark.
        wait_for_batches_ms: how long a graceful stop waits for batches that run or are planned;
            what it cuts off then is named in an :class:`~dstreams.IncompleteStopError`
            (``spark.dstreams.stop.waitForBatches``).
        stop_gracefully_on_shutdown: stop gracefully on SIGTERM and SIGINT
            (``spark.streaming.stopGracefullyOnShutdown``).
        checkpoint_directory: called with ``StreamingContext.checkpoint`` at construction
            (``spark.streaming.checkpoint.directory``).
        max_queued_batches: batches that may wait while an earlier one runs; after that the
            generator waits too (``spark.dstreams.maxQueuedBatches``).
        file_remember_ms: how far back a file stream looks at modification times of files
            (``spark.streaming.fileStream.minRememberDuration``).
        file_max_age_ms: how old a file may be when it appears, None for Spark's rule
            (``spark.dstreams.fileStream.maxFileAge``, where ``unlimited`` is :data:`UNLIMITED_MS`).
        max_files_per_batch: files in a batch of a file stream at most, the oldest first, None for
            no limit
            (``spark.dstreams.fileStream.maxFilesPerBatch``).
        ignore_missing_files: go on without input files that are not there any more when their batch
            reads them (``spark.sql.files.ignoreMissingFiles``, and the same without ``sql.``, which
            is that of Spark's RDDs); the log and the ``inputs`` of the batch name them.
        receiver_restart_delay_ms: pause before a receiver connects or starts again
            (``spark.streaming.receiverRestartDelay``).
        receiver_max_rate: records a second that each receiver, socket, Kinesis stream and rate
            source gives at most, from the first batch on; None for no limit
            (``spark.streaming.receiver.maxRate``).
        receiver_max_buffer_bytes: bytes of blocks that wait in the driver for each receiver; then
            ``store`` waits (``spark.dstreams.receiver.maxBufferBytes``). So it is for each Kinesis
            stream, whose records then stay where they are.
        receiver_write_ahead_log: write blocks to the checkpoint directory before they count as
            received (``spark.streaming.receiver.writeAheadLog.enable``); needs that directory.
        block_interval_ms: how long a receiver collects records for a block
            (``spark.streaming.blockInterval``).
        backpressure: let each source give no more than its stream can process, as far as it is one
            that can wait (``spark.streaming.backpressure.enabled``).
        backpressure_initial_rate: records a second of each source until two batches with
            records have run, under backpressure: the rate is estimated from the second one on. None
            for ``receiver_max_rate``
            (``spark.streaming.backpressure.initialRate``).
        pid_proportional: weight of the error of the last batch's rate
            (``spark.streaming.backpressure.pid.proportional``).
        pid_integral: weight of the records that wait
            (``spark.streaming.backpressure.pid.integral``).
        pid_derived: weight of the change of the error
            (``spark.streaming.backpressure.pid.derived``).
        pid_minimum: records a second that are let in always
            (``spark.streaming.backpressure.pid.minRate``).
        max_queued_events: events that may wait for slow listeners; after that events are dropped
            and counted
            (``spark.dstreams.maxQueuedEvents``).
        shows_console_progress: show how far a restart is, until its batches have caught up, in the
            last line of the terminal that standard error is
            (``spark.dstreams.showConsoleProgress``); elsewhere the log says it now and then. On
            under ``dstreams run``, unless it is ``--quiet``.
        retained_batches: batches that are kept to be looked at after they ran
            by ``status()`` and ``recentProgress``
            (``spark.streaming.ui.retainedBatches``); the older ones without offsets where there are
            very many partitions, so that 25 MB hold all of them.
        extra_listeners: listeners that each context has, as ``module.name`` of what makes one
            (``spark.dstreams.extraListeners``, separated by commas).
        kafka_brokers: brokers of Kafka for programs of Spark 2.4 that name ZooKeeper alone, in
            ``createStream``; what they name themselves wins
            (``spark.dstreams.kafka.bootstrapServers``).
        kafka_max_rate: records a second that a batch reads of each partition of Kafka at most; None
            for no limit (``spark.streaming.kafka.maxRatePerPartition``).
        kafka_min_rate: records of each partition that a batch may read whatever the limits say
            (``spark.streaming.kafka.minRatePerPartition``).
        kafka_poll_ms: how long a task waits for the next record of Kafka before it fails
            (``spark.streaming.kafka.consumer.poll.ms``).
        kafka_fail_on_data_loss: whether records of Kafka that were deleted before they were read,
            by age or with their topic, fail the batch, which names them
            (``spark.dstreams.kafka.failOnDataLoss``). Else the log names them, and the partition
            goes on where ``auto.offset.reset`` says, at its first record where that is not given.
        socket_max_line_bytes: longest line a socket source takes; a longer one is counted in the
            log and in the ``inputs`` of the batch
            (``spark.dstreams.socket.maxLineBytes``).
        socket_long_lines: what becomes of a longer one (``spark.dstreams.socket.longLines``).
            ``skip``: it is left out, and the log says so; ``fail``: the stream fails as well, in
            ``awaitTermination``, or with its query.
        socket_max_buffer_bytes: bytes a socket source holds for batches to come; when it is full
            it stops reading, so the sender waits (``spark.dstreams.socket.maxBufferBytes``).
        ui_enabled: serve the live page of what runs in this process
            (``spark.dstreams.ui.enabled``); on under ``dstreams run`` and ``dstreams demo`` unless
            it is set. There is one page for all streams and queries: the
            first that has it on starts it, by its own settings, and it is there until the process
            ends.
        ui_port: port of the page (``spark.dstreams.ui.port``); where it is taken, one of the 16
            after it. 0: any that is free.
        ui_host: what the page listens on (``spark.dstreams.ui.host``), None for this machine alone.
            Where others can reach it, a token is asked for.
        ui_token: what has to be known to look at the page (``spark.dstreams.ui.token``), 16
            characters at least; None for one that is made at the start, and for none at all if
            only this machine can reach the page. One that is made is printed on a terminal, or
            written to a private file that the log names. It is in no checkpoint.
        ui_max_connections: how many requests the page answers at a time, and how many pages may be
            open (``spark.dstreams.ui.maxConnections``); a client may have a quarter of these open.
    """

    on_failure: OnFailure = setting(
        "spark.dstreams.onFailure", choice("continue", "stop"), "continue"
    )
    map_with_state_timeouts: MapWithStateTimeouts = setting(
        "spark.dstreams.mapWithState.timeouts", choice("exact", "checkpoint"), "exact"
    )
    missed_batches: MissedBatches = setting(
        "spark.dstreams.recovery.missedBatches", choice("all", "merge", "skip"), "all"
    )
    window_inverse: WindowInverse = setting(
        "spark.dstreams.window.inverse", choice("pyspark", "scala"), "pyspark"
    )
    unpersist: bool = setting("spark.streaming.unpersist", FLAG, "true")
    graceful_stop_timeout_ms: int | None = setting("spark.streaming.gracefulStopTimeout", _MS)
    wait_for_batches_ms: int = setting("spark.dstreams.stop.waitForBatches", _MS, "1h")
    stop_gracefully_on_shutdown: bool = setting(
        "spark.streaming.stopGracefullyOnShutdown", FLAG, "false"
    )
    checkpoint_directory: str | None = setting("spark.streaming.checkpoint.directory", PATH)
    max_queued_batches: int = setting(
        "spark.dstreams.maxQueuedBatches", COUNT, "1000", unit="batches"
    )
    file_remember_ms: int = setting(
        "spark.streaming.fileStream.minRememberDuration", _SECONDS, "60s"
    )
    file_max_age_ms: int | None = setting("spark.dstreams.fileStream.maxFileAge", _AGE)
    max_files_per_batch: int | None = setting(
        "spark.dstreams.fileStream.maxFilesPerBatch", COUNT, unit="files"
    )
    ignore_missing_files: bool = setting(
        IGNORE_MISSING_FILES, FLAG, "false", also="spark.files.ignoreMissingFiles"
    )
    receiver_restart_delay_ms: int = setting("spark.streaming.receiverRestartDelay", _MS, "2000")
    receiver_max_rate: int | None = setting("spark.streaming.receiver.maxRate", RATE)
    receiver_max_buffer_bytes: int = setting(
        "spark.dstreams.receiver.maxBufferBytes", COUNT, "67108864", unit="bytes"
    )
    receiver_write_ahead_log: bool = setting(
        "spark.streaming.receiver.writeAheadLog.enable", FLAG, "false"
    )
    block_interval_ms: int = setting("spark.streaming.blockInterval", _MS, "200")
    backpressure: bool = setting("spark.streaming.backpressure.enabled", FLAG, "false")
    backpressure_initial_rate: int | None = setting(
        "spark.streaming.backpressure.initialRate", RATE
    )
    pid_proportional: float = setting(
        "spark.streaming.backpressure.pid.proportional", _WEIGHT, "1.0"
    )
    pid_integral: float = setting("spark.streaming.backpressure.pid.integral", _WEIGHT, "0.2")
    pid_derived: float = setting("spark.streaming.backpressure.pid.derived", _WEIGHT, "0.0")
    pid_minimum: float = setting(
        "spark.streaming.backpressure.pid.minRate", _ABOVE_0, "100", unit="records a second"
    )
    max_queued_events: int = setting(
        "spark.dstreams.maxQueuedEvents", COUNT, "10000", unit="events"
    )
    shows_console_progress: bool = setting("spark.dstreams.showConsoleProgress", FLAG, "false")
    retained_batches: int = setting(
        "spark.streaming.ui.retainedBatches", COUNT, "1000", unit="batches"
    )
    extra_listeners: tuple[str, ...] = setting("spark.dstreams.extraListeners", NAMES, "")
    kafka_brokers: str | None = setting("spark.dstreams.kafka.bootstrapServers", _BROKERS)
    kafka_max_rate: int | None = setting("spark.streaming.kafka.maxRatePerPartition", RATE)
    kafka_min_rate: int = setting(
        "spark.streaming.kafka.minRatePerPartition", COUNT, "1", unit="records"
    )
    kafka_poll_ms: int = setting("spark.streaming.kafka.consumer.poll.ms", _MS, "120000")
    kafka_fail_on_data_loss: bool = setting("spark.dstreams.kafka.failOnDataLoss", FLAG, "true")
    socket_max_line_bytes: int = setting(
        "spark.dstreams.socket.maxLineBytes", COUNT, "1048576", unit="bytes"
    )
    socket_long_lines: LongLines = setting(
        "spark.dstreams.socket.longLines", choice("skip", "fail"), "skip"
    )
    socket_max_buffer_bytes: int = setting(
        "spark.dstreams.socket.maxBufferBytes", COUNT, "67108864", unit="bytes"
    )
    ui_enabled: bool = setting(UI_ENABLED, FLAG, "false")
    ui_port: int = setting("spark.dstreams.ui.port", _PORT, "4050")
    ui_host: str | None = setting("spark.dstreams.ui.host", _HOST)
    ui_token: str | None = setting("spark.dstreams.ui.token", _TOKEN)
    ui_max_connections: int = setting(
        "spark.dstreams.ui.maxConnections", COUNT, "64", unit="connections"
    )

    without_choice: ClassVar = {
        "spark.streaming.concurrentJobs": (
            "1",
            "batches run strictly one after another here, because state would otherwise depend on "
            "their order",
        ),
        "spark.streaming.backpressure.rateEstimator": ("pid", "pid is the only estimator"),
    }

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> Settings:
        """Read the settings from the pairs of a SparkConf.

        Raises:
            InvalidStreamError: a value cannot be read, or asks for what dstreams does not do; or a
                key begins with ``spark.dstreams.``, and there is no such setting.
        """
        cls.refuse_unknown(conf)
        return super().from_conf(conf)

    @classmethod
    def refuse_unknown(cls, keys: Iterable[str]) -> None:
        """Refuse keys that begin as ours do, where there is no such setting.

        Raises:
            InvalidStreamError: there is none.
        """
        for key in keys:
            if key.startswith("spark.dstreams.") and key not in cls.defaults():
                hint = (
                    similar(key, cls.defaults()) or "the documentation lists those that there are; "
                )
                raise InvalidStreamError(f"there is no setting {key}; {hint}remove it")

"""Declaring, parsing and checking settings and options; the settings of streams.

A setting is a field of a class derived from :class:`Configuration`: its key, the kind of its value,
and its default as a user would write it. An option of a source or sink has a name and a kind. Keys
of Spark Streaming keep their name, unit and default (``spark.streaming.*``). All others begin with
``spark.dstreams.``, because Spark drops keys that do not begin with ``spark.``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from dstreams.common.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError

C = TypeVar("C", bound="Configuration")


@dataclass(frozen=True)
class Kind:
    """A kind of values: the rule for messages, a test of values, and a parser of texts.

    A text is invalid if *parse* raises a ValueError or returns a value that is not allowed.
    Messages do not show secret values. *unit* is the unit of a bare number, for the documentation.
    """

    rule: str
    allows: Callable[[Any], bool]
    parse: Callable[[str], Any] = str
    is_secret: bool = False
    unit: str = ""

    def read(self, text: str, name: str) -> Any:
        """Return the value of the setting or option *name* from its text."""
        try:
            value = self.parse(text)
        except ValueError:
            raise self._refused(text, name) from None
        if value is None or self.allows(value):
            return value
        raise self._refused(text, name)

    def require(self, value: Any, name: str) -> Any:
        """Return *value*, which a program passed as *name*, if it is allowed."""
        if not self.allows(value):
            raise self._refused(value, name)
        return value

    def of(self, value: Any, name: str) -> Any:
        """Return *value*, parsed if it is a text."""
        return self.read(value, name) if isinstance(value, str) else self.require(value, name)

    def _refused(self, value: object, name: str) -> InvalidStreamError:
        shown = "not allowed" if self.is_secret else repr(value)
        return InvalidStreamError(f"{name} is {shown}; use {self.rule}")


def choice(*allowed: str) -> Kind:
    """One of several words, case-insensitive."""
    found = {word.lower(): word for word in allowed}
    rule = f"one of {', '.join(allowed)}"
    return Kind(rule, allowed.__contains__, lambda text: found.get(text.strip().lower(), text))


def _bytes(text: str) -> int | str:
    found = re.fullmatch(r"(-?\d+) *([kmgtp]?)b?", text.strip().lower())
    return text if found is None else int(found[1]) << 10 * "bkmgtp".index(found[2] or "b")


BYTES = Kind(
    "a number of bytes, or of a unit such as 10MB; -1 for none",
    lambda value: isinstance(value, int) and value >= -1,
    _bytes,
    unit="bytes",
)


def whole_number(least: int) -> Kind:
    """A whole number of at least *least*."""

    def allows(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Kind(f"a whole number of at least {least}", allows, int)


def amount(rule: str, allows: Callable[[float], bool]) -> Kind:
    """A finite number that *allows* accepts."""

    def is_allowed(value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and allows(value)

    return Kind(rule, is_allowed, float)


def duration(default_unit: str = "", least_ms: int = 1) -> Kind:
    """A duration in milliseconds; as text in words, or a bare number of *default_unit*."""
    rule = f"a duration of at least {least_ms} ms, such as '10s' or '1 hour 30 minutes'"

    def parse(text: str) -> int:
        return parse_duration_ms(text, default_unit=default_unit)

    return Kind(rule, whole_number(least_ms).allows, parse, unit=default_unit)


def _rate(text: str) -> int | None:
    """Return None, no limit, for zero and less, as in Spark."""
    number = int(text)
    return number if number > 0 else None


COUNT = whole_number(1)
RATE = Kind(COUNT.rule, COUNT.allows, _rate, unit="records a second")
FLAG = Kind(
    "one of true, false",
    lambda value: isinstance(value, bool),
    lambda text: {"true": True, "false": False}.get(text.strip().lower(), text),
)
TEXT = Kind(
    "a text that is not empty", lambda value: isinstance(value, str) and bool(value.strip())
)
PATH = Kind("a path or a URL", TEXT.allows)
SEPARATOR = Kind(
    "one ASCII character other than a quotation mark or a line end",
    lambda sep: isinstance(sep, str) and len(sep) == 1 and sep.isascii() and sep not in '"\r\n',
)
NAMES = Kind(
    "names separated by commas",
    lambda value: isinstance(value, tuple),
    lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
)


def setting(
    key: str, kind: Kind, default: str | None = None, also: str | None = None, unit: str = ""
) -> Any:
    """Return the field of a setting.

    *default* is as a user would write it; *also* is another key, read if *key* is not set; *unit*
    is the unit of a number. A secret is not printed with the settings.
    """
    value = None if default is None else kind.read(default, key)
    return dataclasses.field(
        default=value,
        repr=not kind.is_secret,
        metadata={
            "key": key,
            "kind": kind,
            "default": default,
            "also": also,
            "unit": unit or kind.unit,
        },
    )


@dataclass(frozen=True)
class Configuration:
    """Base of settings: frozen, checked, and read from the pairs of a SparkConf."""

    without_choice: ClassVar[Mapping[str, tuple[str | None, str]]] = {}
    """Keys that accept one value only: that value (None if none), and the reason."""

    def __post_init__(self) -> None:
        for name, declared in self.declared().items():
            value = getattr(self, name)
            if value is not None or declared["default"] is not None:
                declared["kind"].require(value, name)

    @classmethod
    def declared(cls) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of each setting, by the name of its field."""
        known = dataclasses.fields(cls)
        return {field.name: field.metadata for field in known if "key" in field.metadata}

    @classmethod
    def defaults(cls) -> dict[str, str | None]:
        """Return the defaults of the settings, as a user would write them, by key."""
        return {declared["key"]: declared["default"] for declared in cls.declared().values()}

    @classmethod
    def from_conf(cls: type[C], conf: Mapping[str, str]) -> C:
        """Read the settings from the pairs of a SparkConf; other keys are ignored."""
        for key, (only, why) in cls.without_choice.items():
            if key in conf and conf[key].strip() != only:
                raise InvalidStreamError(f"{key} is {conf[key]!r}, but {why}; remove the setting")
        values = {}
        for name, declared in cls.declared().items():
            key = declared["key"]
            text = conf.get(key, conf.get(declared["also"]))
            if text is not None:
                values[name] = declared["kind"].read(text, key)
        return cls(**values)

    def without_secrets(self: C) -> C:
        """Return these settings without their secrets, for storage."""
        declared = self.declared().items()
        return self.replace(**{name: None for name, each in declared if each["kind"].is_secret})

    def replace(self: C, **changes: Any) -> C:
        """Return these settings with *changes*, by field name."""
        return dataclasses.replace(self, **changes)


def read_options(given: Mapping[str, Any], kinds: Mapping[str, Kind], what: str) -> dict[str, Any]:
    """Return the values of options by name; names are case-insensitive.

    *kinds* has all options of *what*, a source or sink as named in messages.
    """
    names = {name.lower(): name for name in kinds}
    options = {}
    for key, value in given.items():
        name = names.get(key.lower()) if isinstance(key, str) else None
        if name is None:
            there_are = f"there are {', '.join(kinds)}"
            raise InvalidStreamError(
                f"{what} has no option {key!r}; {similar(key, kinds)}{there_are}"
            )
        if value is not None:
            text = os.fspath(value) if isinstance(value, os.PathLike) else value
            options[name] = kinds[name].of(text, f"{name} of {what}")
    return options


def similar(key: object, known: Iterable[str]) -> str:
    """Return ``did you mean ...? `` with the known name closest to *key*, or an empty text."""
    near = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(key).lower(), near, 1, cutoff=0.8)
    return f"did you mean {near[found[0]]}? " if found else ""


# The settings of streams ----------------------------------------------------------------------

OnFailure = Literal["continue", "stop"]
StateValues = Literal["data", "pickle"]
MapWithStateTimeouts = Literal["exact", "checkpoint"]
CatchUp = Literal["all", "merge", "skip"]
WindowInverse = Literal["pyspark", "scala"]

IGNORE_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
"""Key of the setting that allows input files to disappear."""

STATE_LOCAL_ENCRYPTED = "spark.dstreams.state.localEncrypted"
"""Key of the setting that declares local disks to be encrypted."""

UI_ENABLED = "spark.dstreams.ui.enabled"
"""Key of the setting that enables the live page."""

UNLIMITED_MS = 1 << 62
"""A duration longer than any other."""

_MS = duration("ms")
_SECONDS = duration("s")
_BROKERS = Kind("brokers as host:port, separated by commas", TEXT.allows)
_HOST = Kind("a host name or address", TEXT.allows)
_ABOVE_0 = amount("a number above 0", lambda number: number > 0)


def _age_ms(text: str) -> int:
    age_ms: int = UNLIMITED_MS if text.strip().lower() == "unlimited" else _SECONDS.parse(text)
    return age_ms


_AGE = Kind(f"{_SECONDS.rule}, or unlimited", _SECONDS.allows, _age_ms, unit="s")
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


@dataclass(frozen=True)
class StateSettings(Configuration):
    """Settings shared by streams and queries, described in :class:`Settings`."""

    task_timeout_ms: int | None = setting("spark.dstreams.task.timeout", _MS)
    state_values: StateValues = setting(
        "spark.dstreams.state.values", choice("data", "pickle"), "data"
    )
    state_local_directory: str | None = setting("spark.dstreams.state.localDirectory", PATH)
    state_local_encrypted: bool = setting(STATE_LOCAL_ENCRYPTED, FLAG, "false")
    state_checksums: bool = setting("spark.dstreams.state.checksums", FLAG, "false")
    skip_initial_keys: bool = setting(
        "spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys", FLAG, "false"
    )


@dataclass(frozen=True)
class Settings(StateSettings):
    """Settings of one streaming context.

    Args:
        on_failure: what happens after a batch fails (``spark.dstreams.onFailure``). ``continue``
            reports the error, commits the batch without the failed outputs and continues with the
            next batch, as Spark Streaming does; the log says how to run these outputs again.
            ``stop`` does not commit the batch and stops the context; a restart runs the whole batch
            again. A failure to persist state always stops the context.
        task_timeout_ms: maximum run time of a task (``spark.dstreams.task.timeout``); None: no
            limit. A task of a batch that takes longer has its Python worker killed, and Spark
            retries the task on another worker. After as many attempts as Spark gives a task (with a
            local master the second number of ``local[2,4]``), the job and its batch fail. Choose
            much more than the longest task takes: a task may be interrupted after its effects
            outside Spark, and it may run up to five seconds longer than this.
        state_values: how the values of stored state are encoded (``spark.dstreams.state.values``).
            ``data``: plain data and instances of data classes; reading them runs no code.
            ``pickle``: any object.
        state_local_directory: directory on each host for copies of stored state, private to this
            user (``spark.dstreams.state.localDirectory``). Each partition needs 4 MiB or more.
            None: below the directory for temporary files of each host (``TMPDIR`` of its
            processes); these copies are deleted from the driver's host when the stream or query
            stops. In a configured directory, copies are kept for the next start, for at most seven
            days.
        state_local_encrypted: whether the operating system encrypts that directory, the directory
            for temporary files and Spark's local directories on each host
            (``spark.dstreams.state.localEncrypted``). Required if spark.io.encryption.enabled is
            set, because Spark does not encrypt files of Python workers.
        state_checksums: maintain a checksum of each partition of stored state across batches, which
            detects a damaged replica before it is published (``spark.dstreams.state.checksums``).
        map_with_state_timeouts: when ``mapWithState`` checks for timed-out keys
            (``spark.dstreams.mapWithState.timeouts``). ``exact``: in every batch; ``checkpoint``:
            in the batches at the stream's checkpoint interval, as Spark Streaming does.
        skip_initial_keys: do not call the function of ``flatMapGroupsWithState`` for keys that have
            an initial state and no value in the first batch
            (``spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys``).
        history_batches: number of batches that the checkpoint keeps in addition to those that a
            restart may need, for replays and rewinds (``spark.dstreams.history.batches``). Sources
            keep their own history: files must stay, and topics need the retention.
        catch_up: how a restart handles the batches whose time passed while no driver was running
            (``spark.dstreams.recovery.catchUp``). ``all``: run them one by one, as Spark does;
            ``merge``: run one batch instead, with the input of all; ``skip``: the same, but sources
            that generate data, such as a rate source, do not generate it for that time. Waiting
            input, such as files and received blocks, is read in any case.
        window_inverse: when a window uses its inverse function (``spark.dstreams.window.inverse``).
            ``pyspark``: for five slides or more, as in ``pyspark.streaming``; shorter windows are
            computed from scratch. ``scala``: always, with the semantics of Scala's
            ReducedWindowedDStream: a key whose values have all left remains until ``filterFunc``
            drops it. An existing window keeps its rule across restarts from its checkpoint.
        unpersist: unpersist RDDs that are no longer remembered (``spark.streaming.unpersist``).
        stop_batch_timeout_ms: how long a graceful stop waits for running and planned batches
            (``spark.dstreams.stop.batchTimeout``); batches it cancels then are listed in an
            :class:`~dstreams.IncompleteStopError`.
        stop_gracefully_on_shutdown: stop gracefully on SIGTERM and SIGINT
            (``spark.streaming.stopGracefullyOnShutdown``).
        checkpoint_directory: passed to ``StreamingContext.checkpoint`` at construction
            (``spark.streaming.checkpoint.directory``).
        file_remember_ms: how far back a file stream considers modification times of files
            (``spark.streaming.fileStream.minRememberDuration``).
        file_max_age_ms: maximum age of a file's modification time when the file appears, or
            ``unlimited`` (``spark.dstreams.fileStream.maxFileAge``); None: Spark's rule.
        ignore_missing_files: skip input files that no longer exist when their batch reads them
            (``spark.sql.files.ignoreMissingFiles``, or the same key without ``sql``); the log and
            the ``inputs`` of the batch list them.
        receiver_max_rate: maximum number of records per second of each receiver, socket, Kinesis
            stream and rate source, from the first batch on; None: no limit
            (``spark.streaming.receiver.maxRate``).
        receiver_max_buffer_bytes: maximum number of bytes that wait in the driver for each
            receiver, socket or Kinesis stream (``spark.dstreams.receiver.maxBufferBytes``). When
            the buffer is full, ``store`` blocks and no more is read from the socket or shard.
        receiver_write_ahead_log: write blocks to the checkpoint directory before they count as
            received (``spark.streaming.receiver.writeAheadLog.enable``); needs that directory.
        block_interval_ms: how long a receiver collects records for a block
            (``spark.streaming.blockInterval``).
        backpressure: limit each source that can wait to the rate that its stream can process
            (``spark.streaming.backpressure.enabled``).
        backpressure_initial_rate: records per second of each source under backpressure until two
            batches with records have run; the rate is estimated from the second one on. None:
            ``receiver_max_rate`` (``spark.streaming.backpressure.initialRate``).
        pid_minimum: minimum rate in records per second under backpressure
            (``spark.streaming.backpressure.pid.minRate``).
        retained_batches: number of batches that ``status()`` and ``recentProgress`` cover
            (``spark.streaming.ui.retainedBatches``). With very many partitions, older batches have
            no offsets, so that all of them fit in 25 MB.
        extra_listeners: listeners to add to each context, as ``module.name`` of their factories,
            separated by commas (``spark.dstreams.extraListeners``).
        kafka_brokers: Kafka brokers for Spark 2.4 programs that only give ZooKeeper in
            ``createStream``; brokers given by the program take precedence
            (``spark.dstreams.kafka.bootstrapServers``).
        kafka_max_rate: maximum number of records per second that a batch reads from each Kafka
            partition; None: no limit (``spark.streaming.kafka.maxRatePerPartition``).
        kafka_min_rate: records of each partition that a batch may always read, regardless of the
            limits (``spark.streaming.kafka.minRatePerPartition``).
        kafka_poll_ms: how long a task waits for the next Kafka record before it fails
            (``spark.streaming.kafka.consumer.poll.ms``).
        kafka_fail_on_data_loss: whether Kafka records that were deleted before they were read, by
            age or with their topic, fail the batch (``spark.dstreams.kafka.failOnDataLoss``). If
            not, they are logged, and the partition continues at the position given by
            ``auto.offset.reset``, by default its first record.
        socket_max_line_bytes: maximum length of a line from a socket source; longer lines are
            skipped and counted in the log and in the ``inputs`` of the batch
            (``spark.dstreams.socket.maxLineBytes``).
        ui_enabled: serve the live page of this process (``spark.dstreams.ui.enabled``); on by
            default under ``dstreams run`` and ``dstreams demo``. One page serves all streams and
            queries: the first one with this setting starts it with its own settings, and it runs
            until the process ends.
        ui_port: port of the page (``spark.dstreams.ui.port``); if taken, one of the next 16.
            0: any free port.
        ui_host: address that the page listens on (``spark.dstreams.ui.host``); None: this machine
            only. If other hosts can reach it, a token is required.
        ui_token: token for viewing the page (``spark.dstreams.ui.token``), at least 16 characters.
            None: generated at the start, or none if only this machine can reach the page. A
            generated token is printed on a terminal or written to a private file that the log
            names. It is never stored in a checkpoint.
    """

    on_failure: OnFailure = setting(
        "spark.dstreams.onFailure", choice("continue", "stop"), "continue"
    )
    map_with_state_timeouts: MapWithStateTimeouts = setting(
        "spark.dstreams.mapWithState.timeouts", choice("exact", "checkpoint"), "exact"
    )
    catch_up: CatchUp = setting(
        "spark.dstreams.recovery.catchUp", choice("all", "merge", "skip"), "all"
    )
    history_batches: int = setting("spark.dstreams.history.batches", whole_number(0), "0")
    window_inverse: WindowInverse = setting(
        "spark.dstreams.window.inverse", choice("pyspark", "scala"), "pyspark"
    )
    unpersist: bool = setting("spark.streaming.unpersist", FLAG, "true")
    stop_batch_timeout_ms: int = setting("spark.dstreams.stop.batchTimeout", _MS, "1h")
    stop_gracefully_on_shutdown: bool = setting(
        "spark.streaming.stopGracefullyOnShutdown", FLAG, "false"
    )
    checkpoint_directory: str | None = setting("spark.streaming.checkpoint.directory", PATH)
    file_remember_ms: int = setting(
        "spark.streaming.fileStream.minRememberDuration", _SECONDS, "60s"
    )
    file_max_age_ms: int | None = setting("spark.dstreams.fileStream.maxFileAge", _AGE)
    ignore_missing_files: bool = setting(
        IGNORE_MISSING_FILES, FLAG, "false", also="spark.files.ignoreMissingFiles"
    )
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
    pid_minimum: float = setting(
        "spark.streaming.backpressure.pid.minRate", _ABOVE_0, "100", unit="records a second"
    )
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
    ui_enabled: bool = setting(UI_ENABLED, FLAG, "false")
    ui_port: int = setting("spark.dstreams.ui.port", _PORT, "4050")
    ui_host: str | None = setting("spark.dstreams.ui.host", _HOST)
    ui_token: str | None = setting("spark.dstreams.ui.token", _TOKEN)

    max_queued_batches: int = 1000
    max_queued_events: int = 10_000
    receiver_restart_delay_ms: int = 2000

    without_choice: ClassVar = {
        "spark.streaming.concurrentJobs": (
            "1",
            "batches run strictly one after another, because state would otherwise depend on their "
            "order",
        ),
        "spark.streaming.backpressure.rateEstimator": ("pid", "pid is the only estimator"),
        "spark.streaming.backpressure.pid.proportional": ("1.0", "this weight is fixed"),
        "spark.streaming.backpressure.pid.integral": ("0.2", "this weight is fixed"),
        "spark.streaming.backpressure.pid.derived": ("0.0", "this weight is fixed"),
        "spark.streaming.gracefulStopTimeout": (
            None,
            "a graceful stop waits for receivers as long as for batches "
            "(spark.dstreams.stop.batchTimeout)",
        ),
        "spark.streaming.receiverRestartDelay": ("2000", "the delay is fixed at 2 seconds"),
    }
    """Settings of Spark with a fixed value."""

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> Settings:
        """Read the settings from the pairs of a SparkConf.

        Raises:
            InvalidStreamError: if a value is invalid or unsupported, or a key that begins with
                ``spark.dstreams.`` is not a setting.
        """
        cls.refuse_unknown(conf)
        return super().from_conf(conf)

    @classmethod
    def refuse_unknown(cls, keys: Iterable[str]) -> None:
        """Refuse keys that begin with ``spark.dstreams.`` and are not settings."""
        for key in keys:
            if key.startswith("spark.dstreams.") and key not in cls.defaults():
                hint = (
                    similar(key, cls.defaults()).strip() or "the documentation lists all settings"
                )
                raise InvalidStreamError(f"unknown setting {key}; {hint}")

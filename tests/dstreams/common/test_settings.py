"""Settings read from the pairs of a SparkConf."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from dstreams.common.settings import UNLIMITED_MS, Settings
from dstreams.errors import InvalidStreamError


def test_defaults() -> None:
    """Without keys, the defaults are those of Spark Streaming."""
    assert Settings.from_conf({}) == Settings()
    assert Settings().on_failure == "continue"
    assert Settings().unpersist is True
    assert Settings().stop_gracefully_on_shutdown is False
    assert Settings().stop_batch_timeout_ms == 3_600_000
    assert Settings().file_remember_ms == 60_000


def test_foreign_keys_are_ignored() -> None:
    """Keys of other tools, and other keys of Spark Streaming, change nothing."""
    conf = {"spark.master": "local[2]", "spark.streaming.manualClock.jump": "5"}
    assert Settings.from_conf(conf) == Settings()


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("spark.dstreams.onFailure", "stop", "on_failure", "stop"),
        ("spark.dstreams.state.checksums", "true", "state_checksums", True),
        ("spark.dstreams.state.localEncrypted", "true", "state_local_encrypted", True),
        (
            "spark.dstreams.mapWithState.timeouts",
            "checkpoint",
            "map_with_state_timeouts",
            "checkpoint",
        ),
        (
            "spark.sql.streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys",
            "true",
            "skip_initial_keys",
            True,
        ),
        ("spark.dstreams.recovery.catchUp", "merge", "catch_up", "merge"),
        ("spark.dstreams.window.inverse", "scala", "window_inverse", "scala"),
        ("spark.dstreams.history.batches", "100", "history_batches", 100),
        ("spark.streaming.unpersist", "false", "unpersist", False),
        ("spark.streaming.unpersist", " TRUE ", "unpersist", True),
        ("spark.dstreams.stop.batchTimeout", "2h", "stop_batch_timeout_ms", 7_200_000),
        ("spark.dstreams.task.timeout", "90s", "task_timeout_ms", 90_000),
        (
            "spark.streaming.stopGracefullyOnShutdown",
            "true",
            "stop_gracefully_on_shutdown",
            True,
        ),
        ("spark.streaming.checkpoint.directory", "/state", "checkpoint_directory", "/state"),
        ("spark.streaming.fileStream.minRememberDuration", "90", "file_remember_ms", 90_000),
        ("spark.streaming.fileStream.minRememberDuration", "2min", "file_remember_ms", 120_000),
        ("spark.dstreams.fileStream.maxFileAge", "90", "file_max_age_ms", 90_000),
        ("spark.dstreams.fileStream.maxFileAge", "2d", "file_max_age_ms", 172_800_000),
        ("spark.dstreams.fileStream.maxFileAge", "unlimited", "file_max_age_ms", UNLIMITED_MS),
        ("spark.streaming.receiver.maxRate", "100", "receiver_max_rate", 100),
        ("spark.streaming.receiver.maxRate", "0", "receiver_max_rate", None),
        ("spark.dstreams.receiver.maxBufferBytes", "4096", "receiver_max_buffer_bytes", 4096),
        (
            "spark.streaming.receiver.writeAheadLog.enable",
            "true",
            "receiver_write_ahead_log",
            True,
        ),
        ("spark.streaming.blockInterval", "50ms", "block_interval_ms", 50),
        ("spark.streaming.backpressure.enabled", "true", "backpressure", True),
        ("spark.streaming.backpressure.initialRate", "50", "backpressure_initial_rate", 50),
        ("spark.streaming.backpressure.pid.minRate", "10", "pid_minimum", 10.0),
        ("spark.streaming.ui.retainedBatches", "5", "retained_batches", 5),
        ("spark.dstreams.extraListeners", "a.B, c.D,", "extra_listeners", ("a.B", "c.D")),
        ("spark.dstreams.state.values", "pickle", "state_values", "pickle"),
        ("spark.dstreams.state.localDirectory", "/fast", "state_local_directory", "/fast"),
        ("spark.dstreams.socket.maxLineBytes", "1024", "socket_max_line_bytes", 1024),
        ("spark.dstreams.kafka.bootstrapServers", "a:1,b:2", "kafka_brokers", "a:1,b:2"),
        ("spark.streaming.kafka.maxRatePerPartition", "500", "kafka_max_rate", 500),
        ("spark.streaming.kafka.maxRatePerPartition", "0", "kafka_max_rate", None),
        ("spark.streaming.kafka.minRatePerPartition", "5", "kafka_min_rate", 5),
        ("spark.streaming.kafka.consumer.poll.ms", "5000", "kafka_poll_ms", 5000),
        ("spark.streaming.kafka.consumer.poll.ms", "5s", "kafka_poll_ms", 5000),
        ("spark.dstreams.kafka.failOnDataLoss", "false", "kafka_fail_on_data_loss", False),
        ("spark.sql.files.ignoreMissingFiles", "true", "ignore_missing_files", True),
        ("spark.files.ignoreMissingFiles", "true", "ignore_missing_files", True),
        ("spark.dstreams.ui.enabled", "true", "ui_enabled", True),
        ("spark.dstreams.ui.port", "0", "ui_port", 0),
        ("spark.dstreams.ui.host", "0.0.0.0", "ui_host", "0.0.0.0"),  # noqa: S104
        ("spark.dstreams.ui.token", "0123456789abcdef", "ui_token", "0123456789abcdef"),
    ],
)
def test_key(key: str, text: str, field: str, value: object) -> None:
    """Each key sets its field and no other, in the unit that Spark gives the key."""
    assert Settings.from_conf({key: text}) == dataclasses.replace(Settings(), **{field: value})


def test_every_field_has_a_key() -> None:
    """Each setting can be made in a SparkConf."""
    marks = [case.args[1] for case in test_key.pytestmark if case.name == "parametrize"]
    assert {field for _, _, field, _ in marks[0]} == set(Settings.declared())


@pytest.mark.parametrize(
    ("key", "text", "rule"),
    [
        ("spark.dstreams.onFailure", "retry", "use one of continue, stop"),
        ("spark.streaming.unpersist", "yes", "use one of true, false"),
        ("spark.dstreams.socket.maxLineBytes", "-1", "use a whole number of at least 1"),
        ("spark.dstreams.kafka.bootstrapServers", " ", "use brokers as host:port, separated by c"),
        ("spark.streaming.kafka.maxRatePerPartition", "fast", "use a whole number of at least 1"),
        ("spark.streaming.kafka.minRatePerPartition", "0", "use a whole number of at least 1"),
        ("spark.streaming.kafka.consumer.poll.ms", "0", "use a duration of at least 1 ms"),
        ("spark.dstreams.kafka.failOnDataLoss", "reset", "use one of true, false"),
        ("spark.streaming.backpressure.rateEstimator", "mine", "pid is the only estimator"),
        ("spark.streaming.backpressure.pid.integral", "0.5", "this weight is fixed"),
        ("spark.streaming.gracefulStopTimeout", "10s", "as long as for batches"),
        ("spark.streaming.receiverRestartDelay", "10", "fixed at 2 seconds"),
        ("spark.streaming.blockInterval", "0", "use a duration of at least 1 ms"),
        ("spark.dstreams.fileStream.maxFileAge", "-5s", "or unlimited"),
        ("spark.streaming.backpressure.initialRate", "fast", "use a whole number of at least 1"),
        ("spark.streaming.backpressure.pid.minRate", "0", "use a number above 0"),
        ("spark.streaming.backpressure.pid.minRate", "inf", "use a number above 0"),
        ("spark.dstreams.ui.port", "65536", "use a whole number from 0 to 65535"),
        ("spark.dstreams.ui.port", "http", "use a whole number from 0 to 65535"),
        ("spark.dstreams.ui.host", "", "use a host name or address"),
    ],
)
def test_bad_value(key: str, text: str, rule: str) -> None:
    """An invalid value is refused with its key, the value and the rule."""
    with pytest.raises(InvalidStreamError) as raised:
        Settings.from_conf({key: text})
    assert str(raised.value).startswith(f"{key} is ")
    assert rule in str(raised.value)


@pytest.mark.parametrize("token", ["short-secret", "long enough, with a blank"])
def test_a_secret_is_not_printed(token: str) -> None:
    """Neither with the settings nor in the error that refuses it."""
    with pytest.raises(InvalidStreamError) as raised:
        Settings.from_conf({"spark.dstreams.ui.token": token})
    assert str(raised.value) == (
        "spark.dstreams.ui.token is not allowed; use 16 or more letters, digits and -._~"
    )
    assert "0123456789abcdef" not in repr(Settings(ui_token="0123456789abcdef"))  # noqa: S106


@pytest.mark.parametrize(
    ("field", "value"),
    [("pid_minimum", 0), ("pid_minimum", "0.1"), ("pid_minimum", True)],
)
def test_bad_amount(field: str, value: Any) -> None:
    """An amount is also checked if it does not come from a SparkConf."""
    with pytest.raises(InvalidStreamError, match=f"{field} is {value!r}; use a number"):
        Settings(**{field: value})


def test_concurrent_jobs() -> None:
    """Concurrent batches would make state depend on their order, so they are refused."""
    assert Settings.from_conf({"spark.streaming.concurrentJobs": "1"}) == Settings()
    with pytest.raises(InvalidStreamError, match="concurrentJobs is '2', but batches run strictly"):
        Settings.from_conf({"spark.streaming.concurrentJobs": "2"})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("spark.dstreams.onfailure", "did you mean spark.dstreams.onFailure?"),
        ("spark.dstreams.state.value", "did you mean spark.dstreams.state.values?"),
        (
            "spark.dstreams.anotherKindOfThing",
            "the documentation lists all settings",
        ),
    ],
)
def test_unknown_key(key: str, hint: str) -> None:
    """An unknown key with our prefix would have no effect, so it is refused."""
    with pytest.raises(InvalidStreamError) as raised:
        Settings.from_conf({key: "stop"})
    assert str(raised.value) == f"unknown setting {key}; {hint}"


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("on_failure", "retry", "one of continue, stop"),
        ("unpersist", "true", "one of true, false"),
        ("block_interval_ms", 0.5, "a duration of at least 1 ms"),
        ("retained_batches", True, "a whole number of at least 1"),
        ("retained_batches", None, "a whole number of at least 1"),
    ],
)
def test_bad_field(field: str, value: Any, rule: str) -> None:
    """A value is also checked if it does not come from a SparkConf."""
    with pytest.raises(InvalidStreamError, match=f"{field} is {value!r}; use {rule}"):
        Settings(**{field: value})


def test_documented() -> None:
    """The documentation lists all fields with their keys."""
    text = Settings.__doc__ or ""
    keys = re.findall(r"`(spark\.[\w.]+)`", text)
    assert sorted(keys) == sorted(Settings.defaults())
    assert set(re.findall(r"^        (\w+): ", text, re.MULTILINE)) == set(Settings.declared())


def test_replace() -> None:
    """Settings never change; a changed copy is made by field name."""
    settings: Any = Settings()
    changed = settings.replace(unpersist=False, retained_batches=3)
    assert changed == Settings(unpersist=False, retained_batches=3)
    assert settings == Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.unpersist = False
    with pytest.raises(TypeError, match="no_such_setting"):
        settings.replace(no_such_setting=1)

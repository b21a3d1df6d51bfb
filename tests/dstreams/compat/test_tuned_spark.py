"""The settings of a program, as far as they are known before its JVM is launched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dstreams.compat.run import TunedSpark, changed_defaults
from dstreams.spark.spark_context import (
    JVM_OPTIONS,
    SOCKET_DIRECTORY,
    UNIX_SOCKETS,
    machine_settings,
    tuned_settings,
)


@pytest.mark.parametrize(
    ("given", "submitted", "arguments", "defaults", "master"),
    [
        ({}, {}, "", "", None),
        ({}, {}, "", "spark.app.name x\nspark.master  spark://far:7077\n", "spark://far:7077"),
        ({}, {}, "", "# spark.masters local\nspark.master=local[3]\n", "local[3]"),
        ({}, {}, "--name x --master yarn pyspark-shell", "spark.master local", "yarn"),
        ({}, {}, "--conf spark.master=yarn pyspark-shell", "", "yarn"),
        ({}, {"spark.master": "local[1]"}, "--master yarn pyspark-shell", "", "local[1]"),
        ({"spark.master": "k8s://x"}, {"spark.master": "local[1]"}, "", "", "k8s://x"),
    ],
)
def test_master(
    given: Mapping[str, str],
    submitted: Mapping[str, str],
    arguments: str,
    defaults: str,
    master: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the strongest: the program, the command line, arguments, defaults of the machine."""
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    monkeypatch.delenv("MASTER", raising=False)
    tuned = TunedSpark(submitted, "app.py")
    assert tuned._known_master(given, machine_settings()) == master


def test_changed_defaults() -> None:
    """Settings that belong together share a line; without changes the report is empty."""
    changed = {
        "spark.port.maxRetries": "64",
        JVM_OPTIONS: "-Dx=1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    assert changed_defaults(changed) == (
        "dstreams changes these defaults (none with --spark-defaults):\n"
        "  spark.driver.defaultJavaOptions: the JVM logs errors only\n"
        "  spark.driver.bindAddress=127.0.0.1: Spark listens on this machine only\n"
        "  spark.port.maxRetries=64: up to that many pages on one host\n"
    )
    assert "spark.driver.bindAddress: Spark" in changed_defaults({"spark.driver.host": "a"})
    assert changed_defaults({}) == ""


def test_every_tuned_setting_is_reported() -> None:
    """The report has all tuned settings."""
    one_line = {"spark.driver.host", SOCKET_DIRECTORY}
    for key in {*tuned_settings("local[2]"), UNIX_SOCKETS} - one_line:
        assert f"  {key}=x: " in changed_defaults({key: "x"})

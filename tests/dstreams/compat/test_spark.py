"""What a program will have, as far as that is known before its JVM is launched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dstreams.compat.changed_defaults import changed_defaults
from dstreams.compat.spark import TunedSpark
from dstreams.spark.context import JVM_OPTIONS, SOCKET_DIRECTORY, UNIX_SOCKETS, tuned_settings
from dstreams.spark.machine_settings import machine_settings


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
    """Settings that go with another one are one line, and nothing is said of nothing."""
    changed = {
        "spark.port.maxRetries": "64",
        JVM_OPTIONS: "-Dx=1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    assert changed_defaults(changed) == (
        "dstreams changes these defaults (none with --spark-defaults):\n"
        "  spark.driver.defaultJavaOptions: the JVM logs errors only\n"
        "  spark.driver.bindAddress=127.0.0.1: Spark is open to this machine alone\n"
        "  spark.port.maxRetries=64: so many programs have a page each on one host\n"
    )
    assert "spark.driver.bindAddress: Spark" in changed_defaults({"spark.driver.host": "a"})
    assert changed_defaults({}) == ""


def test_every_tuned_setting_is_told() -> None:
    """None of the settings that are tuned is left out of what is said."""
    one_line = {"spark.driver.host", SOCKET_DIRECTORY}
    for key in {*tuned_settings("local[2]"), UNIX_SOCKETS} - one_line:
        assert f"  {key}=x: " in changed_defaults({key: "x"})

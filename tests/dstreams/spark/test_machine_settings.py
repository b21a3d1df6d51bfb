"""Settings of the machine and of the environment: they win over those that are tuned."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams.spark.spark_context import (
    ERRORS_ONLY,
    JVM_OPTIONS,
    ONE_COMPILER,
    jvm_options,
    machine_settings,
    tuned_conf,
)

DEFAULTS = """\
# spark.of.comment 1
spark.port.maxRetries   3
spark.driver.host=far.example.org
spark.with.colon: a b
 spark.python.task.killTimeout 5s
spark.empty
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose Spark is configured in a directory of the test, and nothing else."""
    for name in ("PYSPARK_SUBMIT_ARGS", "MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    # A JVM that runs already knows what it was started with.
    monkeypatch.setattr(SparkContext, "_jvm", None)
    return tmp_path


def test_defaults_of_the_machine(machine: Path) -> None:
    """They are read as Spark reads them: with blanks, an equals sign or a colon."""
    assert machine_settings() == {}
    (machine / "spark-defaults.conf").write_text(DEFAULTS)
    assert machine_settings() == {
        "spark.port.maxRetries": "3",
        "spark.driver.host": "far.example.org",
        "spark.with.colon": "a b",
        "spark.python.task.killTimeout": "5s",
    }


def test_arguments_of_spark_submit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They win over the defaults, which another file may hold; MASTER is the last to be asked."""
    (machine / "spark-defaults.conf").write_text("spark.a 1\nspark.b 1\n")
    monkeypatch.setenv("MASTER", "local[7]")
    arguments = "--conf spark.a=2 --name 'my app' --jars a.jar -c spark.c='x y' pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert machine_settings() == {
        "spark.master": "local[7]",
        "spark.a": "2",
        "spark.b": "1",
        "spark.app.name": "my app",
        "spark.c": "x y",
    }
    (machine / "other.conf").write_text("spark.b 3\n")
    file = machine / "other.conf"
    arguments = f"--properties-file {file} --master=yarn pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert machine_settings() == {"spark.master": "yarn", "spark.b": "3"}


def test_under_spark_submit(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its JVM already has the settings, independent of files on this machine."""
    (machine / "spark-defaults.conf").write_text("spark.a 1\n")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert machine_settings() == {}


def test_they_win_over_tuned_ones(machine: Path) -> None:
    """A tuned setting that the machine has is left to it; one of the caller wins over both."""
    (machine / "spark-defaults.conf").write_text(f"{DEFAULTS}spark.master local[3]\n")
    tuned = dict(tuned_conf("mine", conf={"spark.driver.host": "near"}).getAll())
    assert tuned["spark.master"] == "local[3]"
    assert tuned["spark.driver.host"] == "near"
    assert tuned["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.port.maxRetries" not in tuned
    assert "spark.python.task.killTimeout" not in tuned
    assert tuned["spark.ui.showConsoleProgress"] == "false"
    assert tuned["spark.shuffle.compress"] == "false"
    assert tuned_conf("mine", "yarn").get("spark.shuffle.compress") is None
    assert tuned_conf("mine", "local[1]").get("spark.master") == "local[1]"


def test_logging_of_the_machine(machine: Path) -> None:
    """A log4j2.properties of the machine stays what the JVM logs by."""
    assert ERRORS_ONLY in (tuned_conf("mine").get(JVM_OPTIONS) or "")
    (machine / "log4j2.properties").write_text("")
    assert ERRORS_ONLY not in jvm_options()
    assert tuned_conf("mine").get(JVM_OPTIONS) == f"{ONE_COMPILER} {jvm_options()}"

"""Which master a program will have, as far as that is known before its JVM is launched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dstreams.legacy.spark import TunedSpark


@pytest.mark.parametrize(
    ("given", "submitted", "arguments", "defaults", "master"),
    [
        ({}, {}, "", "", "local[*,4]"),
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
    master: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the strongest: the program, the command line, arguments, defaults of the machine."""
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    monkeypatch.delenv("MASTER", raising=False)
    assert TunedSpark(submitted, "app.py")._known_master(given) == master

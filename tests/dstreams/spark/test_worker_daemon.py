"""Preloaded modules of workers, and files that a program adds for its tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.spark.spark_context import WORKER_DAEMON, tuned_conf, tuned_settings
from dstreams.spark.worker_daemon import quiet_without_spark

_LOADED = """
import json, os, sys, threading
import pyspark.daemon
seen = {}
def manager():
    import gc
    seen["frozen"] = gc.get_freeze_count()
    seen["threads"] = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc") else 1
    seen["loaded"] = sorted(sys.modules)
    seen["path"] = sys.path
    seen["spark"] = sys.modules["pyspark"].__file__
pyspark.daemon.manager = manager
from dstreams.spark import worker_daemon
sys.path.insert(0, sys.argv[1])
worker_daemon.main()
print(json.dumps(seen))
"""


def facts(archive: Path) -> dict[str, Any]:
    """Return what a daemon has when it begins to wait for tasks."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, str(archive)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.deep
def test_before_the_first_fork(tmp_path: Path) -> None:
    """One thread has loaded what tasks need, and nothing that must not be shared by a fork."""
    import pyspark  # noqa: PLC0415 - as an interpreter of its own finds it

    ours = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    found = facts(ours)
    assert found["threads"] == 1
    assert found["frozen"] > 10_000
    assert {"pyspark.worker", "dstreams.context"} <= set(found["loaded"])
    # Their threads, handles and states of random numbers are each worker's own.
    assert not {"confluent_kafka", "numpy", "pandas", "pyarrow"} & set(found["loaded"])
    assert str(ours) not in found["path"]
    assert found["spark"] == pyspark.__file__

    other = tmp_path / "pyspark.zip"
    assert str(other) in facts(other)["path"]


def test_workers_of_the_tests_are_ours(sc: SparkContext) -> None:
    """Workers are forked with dstreams loaded, and draw random numbers of their own."""

    def look(_: Any) -> list[Any]:
        import os  # noqa: PLC0415
        import random  # noqa: PLC0415
        import sys  # noqa: PLC0415

        return [(os.getpid(), "dstreams.structured" in sys.modules, random.random())]

    found = sc.parallelize(range(2), 2).mapPartitions(look).collect()
    assert all(is_loaded for _, is_loaded, _ in found)
    by_process = {process: number for process, _, number in found}
    assert len(set(by_process.values())) == len(by_process)


def test_added_files_are_found(sc: SparkContext, tmp_path: Path) -> None:
    """A module that is added while workers live is found by the next task."""
    (tmp_path / "added_later.py").write_text("VALUE = 17\n")
    sc.parallelize([0], 1).count()
    sc.addPyFile(str(tmp_path / "added_later.py"))

    def value(_: Any) -> int:
        import added_later  # type: ignore[import-not-found]  # noqa: PLC0415

        return int(added_later.VALUE)

    assert sc.parallelize([0], 1).map(value).collect() == [17]


@pytest.mark.parametrize(
    ("master", "environment", "python", "is_ours"),
    [
        ("local[2]", None, None, True),
        ("local[2]", sys.executable, None, True),
        ("local[2]", "/other/python", None, False),
        ("local[2]", None, "/other/python", False),
        ("spark://far:7077", None, None, False),
    ],
)
def test_where_it_is_used(
    master: str,
    environment: str | None,
    python: str | None,
    is_ours: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is used where workers run the driver's interpreter on its machine."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if environment is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", environment)
    assert (WORKER_DAEMON in tuned_settings(master, python)) is is_ours


def test_not_where_dstreams_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that might not find it get PySpark's own."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr("dstreams.spark.worker_python._installed", lambda: None)
    assert WORKER_DAEMON not in tuned_settings("local[2]")


def test_that_of_the_program_wins() -> None:
    """A daemon that a program names stays."""
    conf = tuned_conf("mine", "local[1]", {WORKER_DAEMON: "pyspark.daemon"})
    assert conf.get(WORKER_DAEMON) == "pyspark.daemon"


@pytest.mark.parametrize("gone", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_spark_has_gone_ends_without_a_word(gone: type[Exception]) -> None:
    """Other errors are reported as usual."""

    def worker(error: type[Exception]) -> int:
        raise error

    quiet = quiet_without_spark(worker)
    assert quiet(gone) == 1
    with pytest.raises(KeyError):
        quiet(KeyError)
    assert quiet_without_spark(lambda *arguments: len(arguments))("socket", True) == 2

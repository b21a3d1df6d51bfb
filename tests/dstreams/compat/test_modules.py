"""Imports of ``pyspark.streaming``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import datetime
from pathlib import Path

import pytest

from dstreams.compat.modules import NAMES
from dstreams.util import rddToFileName

ROOT = Path(__file__).parents[3]


def run_python(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own: the modules of this one stay what they are."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_every_way_of_importing_it() -> None:
    """The names are those of dstreams, under each module, and nothing of Spark's is loaded."""
    done = run_python(
        """
        import sys
        from dstreams.compat.modules import install
        install()
        import dstreams
        import pyspark
        assert pyspark.streaming.StreamingContext is dstreams.StreamingContext
        import pyspark.streaming
        import pyspark.streaming as streaming
        assert pyspark.streaming is streaming is sys.modules["pyspark.streaming"]
        from pyspark import streaming as again
        assert again is streaming
        from pyspark.streaming import *
        from pyspark.streaming import DStream, StreamingContext, StreamingListener
        import pyspark.streaming.context, pyspark.streaming.util
        import pyspark.streaming.kafka, pyspark.streaming.kinesis
        assert not any(name.startswith(("boto", "confluent")) for name in sys.modules)
        from pyspark.streaming import dstream, listener
        assert StreamingContext is pyspark.streaming.context.StreamingContext
        assert StreamingContext is dstreams.StreamingContext
        assert DStream is dstream.DStream is dstreams.DStream
        assert StreamingListener is listener.StreamingListener is dstreams.StreamingListener
        assert pyspark.streaming.util.rddToFileName("out", "txt", 1000) == "out-1000.txt"
        assert pyspark.StorageLevel.MEMORY_ONLY_SER_2 is pyspark.StorageLevel.MEMORY_ONLY_2
        modules = {name for name in sys.modules if name.startswith("pyspark.streaming")}
        assert not any(getattr(sys.modules[name], "__file__", None) for name in modules), modules
        install()
        assert sys.modules["pyspark.streaming"] is streaming
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_was_imported_before() -> None:
    """Later imports are of dstreams, and a warning says that earlier ones were not."""
    done = run_python(
        """
        import pyspark.streaming
        from pyspark.streaming import StreamingContext as Before
        from dstreams.compat.modules import install
        install()
        import dstreams, pyspark.streaming.context
        from pyspark.streaming import StreamingContext as Now
        assert Before is not Now
        assert Now is dstreams.StreamingContext is pyspark.streaming.context.StreamingContext
        assert pyspark.streaming.StreamingContext is Now
        install()
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "pyspark.streaming was imported before dstreams replaced it; names already imported from "
        "it remain Spark's own: import it later\n"
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("flume", "Spark removed it in 3.0; let Flume's Kafka sink write to a topic and read that"),
        (
            "mqtt",
            "its modules of pyspark.streaming are context, dstream, kafka, kinesis, listener, util",
        ),
    ],
)
def test_missing_modules(module: str, reason: str) -> None:
    """The import fails like that of any missing module, and says what to use instead."""
    done = run_python(
        f"""
        from dstreams.compat.modules import install
        install()
        try:
            import pyspark.streaming.{module}
        except ModuleNotFoundError as error:
            print(error.name, error, sep="|")
        """
    )
    name, message = done.stdout.split("|")
    assert name == f"pyspark.streaming.{module}"
    assert message.startswith(f"dstreams has no pyspark.streaming.{module}: {reason}")
    assert done.stderr == ""


@pytest.mark.deep
def test_a_missing_name() -> None:
    """The import of a missing name fails as usual."""
    done = run_python(
        """
        from dstreams.compat.modules import install
        install()
        from pyspark.streaming.util import TransformFunction
        """
    )
    assert "ImportError: cannot import name 'TransformFunction' from 'pyspark.st" in done.stderr


@pytest.mark.parametrize(
    ("timestamp", "name"),
    [
        (12345678910, "spark-12345678910"),
        (datetime(2018, 7, 1, 12, 0, 0, 250_000), None),  # noqa: DTZ001 - as functions get it
    ],
)
def test_names_of_files(timestamp: datetime | int, name: str | None) -> None:
    """Programs name files as saveAsTextFiles does, from a datetime or milliseconds."""
    if isinstance(timestamp, datetime):
        name = f"spark-{round(timestamp.timestamp() * 1000)}"
    assert rddToFileName("spark", None, timestamp) == name
    assert rddToFileName("spark", "tmp", timestamp) == f"{name}.tmp"


def test_the_package_comes_first() -> None:
    """The package is imported before its modules."""
    assert next(iter(NAMES)) == "pyspark.streaming"

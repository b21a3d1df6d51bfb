"""The modules that stand for those of ``pyspark.streaming``: replacing its name in imports is all.

Nothing here starts Spark.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import streaming

import dstreams
from dstreams.compat import kafka24 as legacy
from dstreams.compat.modules import NAMES
from dstreams.kafka import offsets

ROOT = Path(__file__).parents[2]
PACKAGE = "pyspark.streaming"
LEGACY = sorted((ROOT / "examples" / "legacy").glob("*.py"))

# What the modules have beside their names for programs, and why it is not here.
NOT_FOR_PROGRAMS = {
    "pyspark.streaming.dstream.TransformedDStream": "what map returns there; it is a DStream here",
    "pyspark.streaming.util.TransformFunction": "how the JVM calls Python",
    "pyspark.streaming.util.TransformFunctionSerializer": "how the JVM calls Python",
}


def ours(module: str) -> ModuleType:
    return importlib.import_module(module.replace(PACKAGE, "dstreams", 1))


@pytest.mark.parametrize("module", NAMES)
def test_names(module: str) -> None:
    """Each name is there, also for a star; a function of ``dstreams run`` is the same function."""
    found = ours(module)
    for name, value in NAMES[module].items():
        assert name in found.__all__
        same = {"KafkaUtils": dstreams.kafka.KafkaUtils, "OffsetRange": offsets.OffsetRange}
        of_kafka = module.endswith("kafka")
        assert getattr(found, name) is (same.get(name, value) if of_kafka else value)


def test_modules_of_the_installed_spark() -> None:
    """Every class and function that a module there defines is here, or is none for programs."""
    missing = set()
    for one in pkgutil.iter_modules(streaming.__path__, f"{PACKAGE}."):
        if one.name.endswith(".tests"):
            continue
        theirs = importlib.import_module(one.name)
        defined = {
            name
            for name, value in vars(theirs).items()
            if (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == one.name
        }
        wanted = {*defined, *getattr(theirs, "__all__", ())}
        missing |= {f"{one.name}.{name}" for name in wanted if not hasattr(ours(one.name), name)}
    assert missing == set(NOT_FOR_PROGRAMS)


@pytest.mark.parametrize("path", LEGACY, ids=lambda path: path.stem)
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name replaced in its imports a program is loaded, and takes all from dstreams."""
    text, count = re.subn(rf"(?m)^(from|import) {PACKAGE}", r"\1 dstreams", path.read_text())
    program = tmp_path / path.name
    program.write_text(text)
    monkeypatch.setattr(sys, "argv", [path.name])
    names = runpy.run_path(str(program), run_name="replaced")
    assert count
    imported = {
        alias.name: node.module or ""
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name, module in imported.items():
        if module.startswith("dstreams"):
            assert names[name].__module__.startswith("dstreams")


def test_a_replaced_program_loads_nothing_of_spark_streaming() -> None:
    """Nor does it load the clients of Kafka and Kinesis before they are used."""
    source = (
        "import sys\n"
        "from dstreams import *\n"
        "from dstreams.context import *\n"
        "from dstreams.dstream import *\n"
        "from dstreams.kafka import *\n"
        "from dstreams.kinesis import *\n"
        "from dstreams.listener import *\n"
        "from dstreams.util import *\n"
        "not_needed = ('pyspark.streaming', 'boto', 'confluent')\n"
        "print([name for name in sys.modules if name.startswith(not_needed)])\n"
        "print(StreamingContext, DStream, StreamingListener, KafkaUtils, KinesisUtils)\n"
        "print(rddToFileName('counts', None, 1000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    first, _, last = done.stdout.splitlines()
    assert (first, last) == ("[]", "counts-1000")


def test_ranges_of_both_forms() -> None:
    """A range of 2.4 is equal to one of Scala's of the same offsets, whichever is asked."""
    assert legacy.OffsetRange24("a", 0, 1, 2) == offsets.OffsetRange("a", 0, 1, 2)
    assert offsets.OffsetRange("a", 0, 1, 2) == legacy.OffsetRange24("a", 0, 1, 2)
    assert offsets.OffsetRange("a", 0, 1, 3) != legacy.OffsetRange24("a", 0, 1, 2)

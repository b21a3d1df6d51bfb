"""The table of answers against the installed PySpark, the product, and the documentation."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel, streaming

import dstreams
from dstreams.compat import kafka24 as legacy
from dstreams.compat.check import table
from dstreams.compat.check.answers import SAME, Answer, Kind
from dstreams.compat.check.calls import MAY_HAVE_NO_BROKERS, NO_BROKERS
from dstreams.compat.check.reader import _ADDED
from dstreams.compat.check.table import ANSWERS, MODULES, PACKAGE, PRIVATE, UNLISTED
from dstreams.compat.check.texts import answers_of_text
from dstreams.compat.modules import NAMES, OLD_LEVELS
from dstreams.context import JavaCalls
from tests.support.surface import public

ROOT = Path(__file__).parents[4]
GONE = {f"{PACKAGE}.{name}" for name in ("flume", "kafka", "mqtt")}
"""Modules that no Spark has that can be installed here."""

CLASSES = ("StreamingContext", "DStream", "StreamingListener")


def installed_modules() -> dict[str, Any]:
    """The modules of the installed pyspark.streaming."""
    found = pkgutil.iter_modules(streaming.__path__, f"{PACKAGE}.")
    names = [PACKAGE, *(one.name for one in found if not one.name.endswith(".tests"))]
    return {name: importlib.import_module(name) for name in names}


def test_every_name_of_the_installed_spark_has_an_answer() -> None:
    """Modules, what they define, and what is public of the classes."""
    modules = installed_modules()
    assert set(modules) == set(MODULES) - GONE
    for name, module in modules.items():
        defined = {
            key
            for key, value in vars(module).items()
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == name
        }
        wanted = defined | set(getattr(module, "__all__", ()))
        assert wanted <= set(MODULES[name]), name
        listed = set(getattr(module, "__all__", MODULES[name]))
        assert listed - UNLISTED == set(MODULES[name]) - UNLISTED, name
    for name in CLASSES:
        members = {f"{name}.{one}" for one in public(dir(getattr(streaming, name)))}
        assert members - set(ANSWERS) == set(), name


def test_every_name_of_2_4_has_an_answer() -> None:
    """Those that dstreams run gives to programs, with the calls of their classes."""
    for module, names in NAMES.items():
        assert set(names) <= set(MODULES[module])
        for name, value in names.items():
            assert name in ANSWERS
            if name.endswith("Utils"):
                assert {f"{name}.{one}" for one in public(dir(value))} <= set(ANSWERS)
    for module in MODULES.values():
        assert set(module) <= set(ANSWERS)


def found_here(name: str) -> bool:
    """Whether the product has a name: as dstreams run gives it, and where imports are replaced."""
    owner, _, attribute = name.partition(".")
    homes = [module for module, names in MODULES.items() if owner in names]
    if owner == "utf8_decoder":
        homes = [home for home in homes if home in NAMES]
    for home in homes:
        try:
            module = importlib.import_module(home.replace(PACKAGE, "dstreams", 1))
        except ModuleNotFoundError:
            return False
        value = getattr(module, owner, None)
        if value is None:
            return False
        if name == "KafkaRDD.offsetRanges":
            value = legacy.KafkaRDD24
        if attribute and not hasattr(value, attribute):
            return False
    return True


def test_storage_levels_that_are_gone() -> None:
    """Those that are told are those that dstreams run gives."""
    assert set(table.OLD_LEVELS) == set(OLD_LEVELS)
    for name, level in OLD_LEVELS.items():
        assert level is getattr(StorageLevel, name.replace("_SER", ""))


NOT_NEEDED = {"StreamingListener.Java"}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_there(name: str) -> None:
    """What is said to run is there, and what is said to be missing is not."""
    is_missing = ANSWERS[name].kind is Kind.CHANGE or name in NOT_NEEDED
    assert found_here(name) is not is_missing


def test_private_names() -> None:
    """The context has _jssc, with the calls that are said of it, and no other one."""
    assert hasattr(dstreams.StreamingContext, "_jssc")
    assert not hasattr(dstreams.StreamingContext, "_jvm")
    assert not hasattr(dstreams.DStream, "_jdstream")
    assert set(public(dir(JavaCalls))) == set(table.JAVA_CALLS)


def test_names_that_dstreams_adds() -> None:
    """They are not told to be unknown."""
    for owner in (dstreams.StreamingContext, dstreams.DStream):
        more = {
            name
            for name in public(dir(owner))
            if f"{owner.__name__}.{name}" not in ANSWERS and not name.startswith("is_")
        }
        assert more <= _ADDED


def test_answers_say_what_to_do() -> None:
    """Each is of sentences; what is to be changed has a remedy, and what is the same has none."""
    others = [value for value in vars(table).values() if isinstance(value, Answer)]
    for one in [*ANSWERS.values(), *PRIVATE.values(), *others, NO_BROKERS, MAY_HAVE_NO_BROKERS]:
        if one is SAME:
            continue
        assert one.what.endswith(".")
        assert one.instead == "" or one.instead.endswith(".")
        assert one.instead or one.kind is Kind.DIFFERS


def rows_of_differences() -> list[str]:
    """The first cells of the table of differences, wherever it stands."""
    for path in (ROOT / "docs/pages/reference/differences.md", ROOT / "README.md"):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        cells = [
            line[2:].partition(" | ")[0]
            for part in re.split(r"(?m)^#+ ", text)
            for line in part.splitlines()
            if line.startswith("| ") and "State in a batch where the parent has no RDD" in part
        ]
        if cells:
            return [cell for cell in cells if cell.strip("-:| ") not in ("", "`pyspark.streaming`")]
    raise AssertionError("there is no table of differences")


def test_every_difference_is_told() -> None:
    """Each row of the table is that of an answer or shows in no name, and no answer has another."""
    setting = dict(answers_of_text("spark.streaming.concurrentJobs=2"))
    texts = dict(answers_of_text("spark.files.ignoreMissingFiles spark.hadoop.validateOutputSpecs"))
    others = [value for value in vars(table).values() if isinstance(value, Answer)]
    answers = [*ANSWERS.values(), *PRIVATE.values(), *others, *setting.values(), *texts.values()]
    told = {row for one in [*answers, NO_BROKERS, MAY_HAVE_NO_BROKERS] for row in one.rows}
    told |= table.WITHOUT_A_NAME
    rows = rows_of_differences()
    missing = [row for row in rows if not any(row.startswith(one) for one in told)]
    assert missing == []
    assert [one for one in told if not any(row.startswith(one) for row in rows)] == []

"""Every public name of the installed ``pyspark.streaming`` is there, and is called the same way.

Ours may add to a call: keyword-only parameters after those of pyspark.streaming, and a default
where that has none.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, streaming
from pyspark.streaming.dstream import TransformedDStream

import dstreams
from dstreams.compat.modules import NAMES
from dstreams.testing import BatchDriver
from tests.support.surface import call_differences, class_differences, public

# Where a program could notice that a name is missing or called in another way, and why it is.
DIFFERENCES = {
    "StreamingContext(jssc)": "a handle of the JVM; what it is for is done by getOrCreate",
    "StreamingListener.Java": "an interface of the JVM; nothing calls back from there",
    "StreamingListener.onBatchStarted(batchSubmitted)": "a slip there; it is called by position",
    "DStream.func": "of the class TransformedDStream, which fuses functions; not documented",
    "DStream.prev": "of the class TransformedDStream, which fuses functions; not documented",
}

CLASSES = {name: getattr(streaming, name) for name in streaming.__all__}


def differences_of(name: str) -> Iterator[str]:
    theirs, ours = CLASSES[name], getattr(dstreams, name)
    return class_differences(name, theirs, ours, is_made_by_programs=name != "DStream")


def attributes_of_streams() -> set[str]:
    """Public attributes that pyspark gives its streams when they are made."""
    context: Any = SimpleNamespace(_sc=SimpleNamespace(serializer=None))
    stream: Any = streaming.DStream(None, context, None)  # type: ignore[arg-type]
    made = (stream, TransformedDStream(stream, lambda rdd: rdd))
    return {name for one in made for name in public(vars(one))}


def all_differences() -> set[str]:
    """Compare the classes, the modules, and the attributes of streams."""
    found = {difference for name in CLASSES for difference in differences_of(name)}
    found |= {f"DStream.{n}" for n in attributes_of_streams() if not hasattr(dstreams.DStream, n)}
    for module in pkgutil.iter_modules(streaming.__path__, "pyspark.streaming."):
        if ".tests" not in module.name and module.name not in NAMES:
            found.add(module.name)
    return found


def test_differences() -> None:
    """What differs is in the table, and what is in the table still differs."""
    assert all_differences() == set(DIFFERENCES)


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name: str) -> None:
    """Outside of the table each class has every public name, with the same parameters."""
    found = set(differences_of(name))
    assert found <= set(DIFFERENCES)
    assert len(public(dir(CLASSES[name]))) >= 9, "the names were looked for in the wrong place"


OF_2_4 = {"pyspark.streaming.kafka"}
"""Modules that Spark removed since."""


@pytest.mark.parametrize("module", [name for name in NAMES if name not in OF_2_4])
def test_modules(module: str) -> None:
    """What a module of pyspark.streaming offers, its stand-in offers as well."""
    theirs = importlib.import_module(module)
    assert set(getattr(theirs, "__all__", NAMES[module])) <= set(NAMES[module])
    for name, ours in NAMES[module].items():
        assert hasattr(theirs, name), "the stand-in has a name that is not there"
        if inspect.isfunction(ours):
            assert list(call_differences(name, getattr(theirs, name), ours)) == []


def test_streams_of_streams_are_streams(sc: SparkContext) -> None:
    """TransformedDStream is seen by programs as what map returns: a DStream with all its methods.

    A stream knows whether it was cached or checkpointed, as there.
    """
    with BatchDriver(sc) as driver:
        numbers = driver.input([])
        mapped = numbers.map(str)
        assert isinstance(mapped, dstreams.DStream)
        assert public(dir(CLASSES["DStream"])) == [
            name for name in public(dir(CLASSES["DStream"])) if hasattr(mapped, name)
        ]
        assert (mapped.is_cached, mapped.is_checkpointed) == (False, False)
        assert mapped.cache().is_cached
        assert numbers.checkpoint(1).is_checkpointed
        assert not mapped.is_checkpointed


def noted(theirs: Any, ours: Any) -> list[str]:
    return list(call_differences("f", theirs, ours))


def test_differences_are_noticed() -> None:
    """Another name, place, kind or default is found; what may be added is not."""
    assert noted(lambda a, b=1: 0, lambda a, b=1: 0) == []
    assert noted(lambda a, b=1: 0, lambda a, b=1, *, c=2: 0) == []
    assert noted(lambda a, b: 0, lambda a, b=1: 0) == []
    assert noted(lambda a, b=1: 0, lambda a, b=2: 0) == ["f(b)"]
    assert noted(lambda a, b=1: 0, lambda a, b: 0) == ["f(b)"]
    assert noted(lambda a, b=1: 0, lambda a, *, b=1: 0) == ["f(b)"]
    assert noted(lambda a, b: 0, lambda b, a: 0) == ["f(a)", "f(b)"]
    assert noted(lambda a: 0, lambda: 0) == ["f(a)"]
    assert noted(lambda a: 0, lambda a, b=1: 0) == ["f(b) more"]
    assert noted(lambda *a: 0, lambda a: 0) == ["f(a)"]


def test_missing_names_are_noticed() -> None:
    """A name that is not there, or is no longer a property or class method, is found."""

    class Theirs:
        @property
        def sparkContext(self) -> None: ...

        def window(self) -> None: ...

        @classmethod
        def getActive(cls) -> None: ...

    class Ours:
        def sparkContext(self) -> None: ...

        def getActive(self) -> None: ...

    assert list(class_differences("DStream", Theirs, Ours, is_made_by_programs=False)) == [
        "DStream.getActive",
        "DStream.sparkContext",
        "DStream.window",
    ]

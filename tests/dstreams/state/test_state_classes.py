"""A program's classes of data are those of its functions, of their modules, and of a list."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.state.state_classes import (
    AllowedClasses,
    classes_of_callers,
    classes_of_program,
    require_classes,
)


@dataclass
class Session:
    count: int


class Status(Enum):
    OPEN = 1


@pytest.fixture
def module() -> Iterator[Callable[..., Any]]:
    """Make modules like those of a program."""
    made: list[str] = []

    def make(name: str, source: str, **names: Any) -> Any:
        module = types.ModuleType(name)
        module.__file__ = f"/app/{name}.py"
        sys.modules[name] = module
        made.append(name)
        vars(module).update(names)
        exec(source, vars(module))  # noqa: S102 - of this file
        return module

    yield make
    for name in made:
        del sys.modules[name]


RECORD = "from dataclasses import dataclass\n@dataclass\nclass Record:\n    x: int\n"


def test_classes_of_modules_of_functions(module: Callable[..., Any]) -> None:
    """The module of a function is named, and what it imports of the program, however far."""
    module("records_of_app", RECORD)
    module("parsing_of_app", "from records_of_app import Record\ndef parse(x): return Record(x)\n")
    app = module("main_of_app", "import parsing_of_app\ndef run(x): return x\n")
    other = module("other_of_app", RECORD)
    for part in (app.run, [app.run], partial(app.run, 1), {"f": app.run}, lambda: app.run):
        found = classes_of_program(part)
        assert found.find("records_of_app", "Record") is sys.modules["records_of_app"].Record
        assert found.find(__name__, "Session") is Session  # the module that starts
        assert found.find("other_of_app", "Record") is None
    assert classes_of_program(allowed=AllowedClasses((other.Record,))).find(
        "other_of_app", "Record"
    )


def test_classes_of_closures_and_annotations() -> None:
    """Classes that no module has are named by closures, defaults, annotations and fields."""

    class Place(NamedTuple):
        x: int

    @dataclass
    class Inner:
        place: list[Place]

    Inner.__annotations__["place"] = list[Place]

    def closure(value: Any) -> Any:
        return Inner(value)

    def annotated(value: Any) -> Any:
        return value

    annotated.__annotations__["value"] = Inner
    for func in (closure, annotated, lambda value, kind=Inner: kind(value)):
        found = classes_of_program(func)
        assert found.find(Inner.__module__, Inner.__qualname__) is Inner
        assert found.find(Place.__module__, Place.__qualname__) is Place


def test_classes_of_main_go_with_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of the program's own file are sent, those of modules named; pickled once."""
    main = sys.modules["__main__"]
    kind = dataclass(type("Kept", (), {"__annotations__": {"x": int}, "__module__": "__main__"}))
    monkeypatch.setattr(main, "Kept", kind, raising=False)
    found = classes_of_program()
    assert found.find("__main__", "Kept") is kind
    raw = pickle.dumps(found)
    assert pickle.loads(raw) is pickle.loads(raw)
    assert pickle.loads(raw).find("__main__", "Kept") is not None
    reader = "import pickle, sys; found = pickle.load(sys.stdin.buffer).find('__main__', 'Kept')"
    reader += "; print(found(5))"
    done = subprocess.run(
        [sys.executable, "-c", reader], input=raw, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "Kept(x=5)"


def test_own_classes_and_rows_are_named() -> None:
    """Windows, rows of the rate source and rows of Spark may be in the state of every program."""
    found = classes_of_program()
    for name in (
        ("dstreams.structured.named_rows", "Window"),
        ("dstreams.structured.named_rows", "Row-user-count"),
        ("dstreams.structured.operators.time_windows", "Window"),  # in older states
        ("dstreams.structured.sources.rate_source", "RateRow"),
        ("pyspark.sql.types", "Row"),
    ):
        assert found.find(*name) is not None


def test_callers_name_their_classes() -> None:
    """A handle that a test makes knows the classes of the modules that call it."""
    assert classes_of_callers().find(__name__, "Status") is Status


@pytest.mark.parametrize("wrong", [int, "Session", Session(1), None, object])
def test_only_classes_of_data_are_listed(wrong: Any) -> None:
    """A class that is not a class of data is rejected when it is listed, with remedies."""
    with pytest.raises(InvalidStreamError, match="stateClasses takes classes of data"):
        AllowedClasses().and_more([Session, wrong], None)
    assert require_classes([Session, Status], "x") == (Session, Status)

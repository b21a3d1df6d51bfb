"""Checks of user functions when a stream is defined."""

from __future__ import annotations

import doctest
import functools
import operator
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.common import callables
from dstreams.common.callables import (
    accepts,
    call_site,
    describe,
    require_arity,
    require_callable,
    require_picklable,
)
from dstreams.errors import InvalidStreamError

HERE = __name__
LOCK = threading.Lock()


def named(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def uses_global_lock(record: Any) -> Any:
    with LOCK:
        return record


def line_of(func: Callable[..., Any]) -> int:
    return func.__code__.co_firstlineno


class Counter:
    """Callable, with a method, and with an attribute that cannot be pickled."""

    def __init__(self) -> None:
        self.guards = {"main": [1, threading.Lock()]}

    def update(self, record: Any) -> Any:
        return self.guards, record

    def __call__(self, record: Any) -> Any:
        return record


class Unhelpful:
    """An object that fails on every access."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def decorated(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any) -> Any:
        return func(*args)

    return wrapper


def test_examples() -> None:
    """The examples in the documentation of the module are true."""
    results = doctest.testmod(callables)
    assert results.attempted > 0
    assert results.failed == 0


def test_describe_function() -> None:
    """A function is named by module, qualified name and line."""
    assert describe(named) == f"{HERE}.named:{line_of(named)}"


def test_describe_lambda() -> None:
    """A lambda is named as such, wherever it was written, with its line."""
    func = lambda record: record  # noqa: E731
    assert describe(func) == f"{HERE}.<lambda>:{line_of(func)}"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda func: functools.partial(func, [1]),
        lambda func: functools.partial(functools.partial(func), [1]),
        decorated,
        lambda func: functools.partial(decorated(func)),
    ],
)
def test_describe_what_is_inside(wrap: Callable[..., Any]) -> None:
    """Partials and decorated functions are named by the function inside."""
    assert describe(wrap(named)) == f"{HERE}.named:{line_of(named)}"


def test_describe_methods_and_objects() -> None:
    """A bound method and a callable object are named by the code that they call."""
    counter = Counter()
    assert describe(counter.update) == f"{HERE}.Counter.update:{line_of(Counter.update)}"
    assert describe(counter) == f"{HERE}.Counter.__call__:{line_of(Counter.__call__)}"


def test_describe_without_line() -> None:
    """Functions written in C and classes are described by their names only."""
    assert describe(sum) == "builtins.sum"
    assert describe("".join) == "str.join"
    assert describe(operator.itemgetter(1)) == "operator.itemgetter.__call__"
    assert describe(Counter) == f"{HERE}.Counter"


def test_describe_never_fails() -> None:
    """No object prevents a message."""
    assert describe(Unhelpful()) == "an object of Unhelpful"
    assert describe(5) == "int"


@pytest.mark.parametrize(
    ("func", "counts"),
    [
        (named, {2}),
        (lambda: 0, {0}),
        (lambda a, b=1: 0, {1, 2}),
        (lambda *args: 0, {0, 1, 2, 3}),
        (lambda a, *args: 0, {1, 2, 3}),
        (lambda a, *, key: 0, set()),
        (lambda a, *, key=1: 0, {1}),
        (functools.partial(named, [1]), {1}),
        (functools.partial(named, state=1), {1}),
        (Counter().update, {1}),
        (Counter(), {1}),
        (operator.add, {2}),
        (decorated(named), {2}),
        (Counter, {0}),
    ],
)
def test_accepts(func: Callable[..., Any], counts: set[int]) -> None:
    """The positional arguments that bind are those that are accepted."""
    assert {count for count in range(4) if accepts(func, count)} == counts


def test_accepts_builtin_without_signature() -> None:
    """A builtin without a signature is accepted."""
    assert accepts(max, 7)


@pytest.mark.parametrize(
    ("func", "counts", "expected"),
    [
        (lambda rdd: 0, (2, 1), 1),
        (lambda time, rdd: 0, (2, 1), 2),
        (lambda rdd, index=3: 0, (2, 1), 1),
        (lambda *args: 0, (2, 1), 2),
        (lambda *args: 0, (1, 2), 1),
        (lambda a=0, b=0: 0, (2, 1), 2),
        (max, (2,), 2),
    ],
)
def test_arity_chosen(func: Callable[..., Any], counts: tuple[int, ...], expected: int) -> None:
    """Parameters without a default decide, then the order of preference."""
    assert require_arity(func, counts, "foreachRDD", "f(time, rdd)") == expected


def test_arity_refused() -> None:
    """The error has the operation, the shape, the function and its signature."""

    def update(a: int, b: int, guard: Any = LOCK, *, key: str) -> None: ...

    with pytest.raises(InvalidStreamError) as raised:
        require_arity(update, (2,), "updateStateByKey", "f(values, state)")
    assert str(raised.value) == (
        f"updateStateByKey calls f(values, state), but {describe(update)} takes "
        "(a, b, guard=..., *, key); let it take 2 positional arguments"
    )


def test_arity_refused_no_arguments() -> None:
    """The error for a function without arguments lists each allowed number."""
    with pytest.raises(InvalidStreamError, match=r"takes no arguments; let it take 1 or 2 pos"):
        require_arity(lambda: 0, (1, 2), "foreachRDD", "f(rdd) or f(time, rdd)")
    with pytest.raises(InvalidStreamError, match=r"let it take 1 positional argument$"):
        require_arity(lambda: 0, (1,), "map", "f(record)")


@pytest.mark.parametrize(
    ("func", "shown"),
    [(5, "5 (int)"), (None, "None (NoneType)"), ("x" * 200, "'" + "x" * 76 + "... (str)")],
)
def test_not_callable(func: object, shown: str) -> None:
    """An object that is not a function is shown shortened, with its type."""
    with pytest.raises(InvalidStreamError) as raised:
        require_callable(func, "map", "f(record)")
    assert str(raised.value) == f"map needs a function f(record), got {shown}"


def test_not_callable_without_repr() -> None:
    """A broken repr does not hide the message."""
    with pytest.raises(InvalidStreamError, match="got an object without a working repr"):
        require_callable(Unhelpful(), "map", "f(record)")


def test_picklable() -> None:
    """A function that PySpark can pickle is accepted, even if plain pickle cannot."""
    offset = 3
    require_picklable(lambda record: record + offset, "map")
    require_picklable(named, "map")
    require_picklable(Counter, "map")
    require_picklable(functools.partial(named, [1]), "map")


def in_closure(value: object) -> Callable[..., Any]:
    return lambda record: (value, record)


def in_default(value: object) -> Callable[..., Any]:
    return lambda record, value=value: (value, record)


def in_keyword_default(value: object) -> Callable[..., Any]:
    return lambda record, *, value=value: (value, record)


def in_nested_function(value: object) -> Callable[..., Any]:
    return lambda record: [value for _ in record]


@pytest.mark.parametrize("place", [in_closure, in_default, in_keyword_default, in_nested_function])
def test_culprit_by_name(place: Callable[..., Any]) -> None:
    """The captured variable is named with its type, however the function holds it."""
    func = place(threading.Lock())
    with pytest.raises(InvalidStreamError) as raised:
        require_picklable(func, "map")
    assert str(raised.value) == (
        f"map cannot send {describe(func)} to the workers, because it uses 'value', "
        "of type _thread.lock, which cannot be pickled; "
        "create it inside the function, once per partition if that is costly"
    )
    assert isinstance(raised.value.__cause__, TypeError)


def functions_of_main(source: str) -> ModuleType:
    """Define functions as a script does: not importable by workers, so pickled by value."""
    module = ModuleType("__main__")
    exec(source, module.__dict__)  # noqa: S102
    return module


def test_culprit_global() -> None:
    """A global of the program is found, and not confused with an attribute of the same name."""
    script = functions_of_main(
        "import threading\n"
        "guard = threading.Lock()\n"
        "def update(record):\n"
        "    return [guard for _ in record]\n"
        "def harmless(record):\n"
        "    return record.guard\n"
    )
    require_picklable(script.harmless, "map")
    with pytest.raises(InvalidStreamError, match=r"__main__\.update:3 .* it uses 'guard', of type"):
        require_picklable(script.update, "map")


def test_culprit_of_importable_module() -> None:
    """A function that workers import may use anything: nothing of it is pickled."""
    require_picklable(uses_global_lock, "map")
    require_picklable(functools.partial(uses_global_lock), "map")


@pytest.mark.parametrize(
    ("func", "path"),
    [
        (functools.partial(named, threading.Lock()), "args[0]"),
        (functools.partial(named, state=threading.Lock()), "state"),
        (functools.partial(in_closure(threading.Lock())), "func.value"),
        (in_closure({"a": [1, threading.Lock()]}), "value['a'][1]"),
        (in_closure(in_closure(threading.Lock())), "value.value"),
        (Counter().update, "self.guards['main'][1]"),
        (Counter(), "guards['main'][1]"),
    ],
)
def test_culprit_path(func: Callable[..., Any], path: str) -> None:
    """Deeply nested values are named by the path to them."""
    with pytest.raises(InvalidStreamError) as raised:
        require_picklable(func, "map")
    assert f"because it uses {path!r}, of type _thread.lock" in str(raised.value)


def test_culprit_types(tmp_path: Path) -> None:
    """Generators, sockets and files open for writing are described by their types."""
    with socket.socket() as connection, (tmp_path / "log").open("w") as file:
        for value, name in [
            ((i for i in "a"), "generator"),
            (connection, "socket.socket"),
            (file, "_io.TextIOWrapper"),
        ]:
            with pytest.raises(InvalidStreamError, match=f"uses 'value', of type {name}, which"):
                require_picklable(in_closure(value), "foreachRDD")


class PublicStream:
    """A class that declares that it exists only in the driver."""

    _dstreams_driver_only = True

    def __reduce__(self) -> Any:
        raise TypeError("only in the driver")


def of_dstreams(name: str) -> object:
    return type(name, (PublicStream,), {"__module__": "dstreams.any"})()


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        (SparkContext.__new__(SparkContext), "a SparkContext", "sc.broadcast(value)"),
        (RDD.__new__(RDD), "an RDD", "join the two RDDs, or collect() this one first"),
        (of_dstreams("StreamingContext"), "a StreamingContext", "plain values"),
        (of_dstreams("DStream"), "a DStream", "join, union or transformWith"),
        (PublicStream(), f"a {HERE}.PublicStream", "plain values"),
    ],
)
def test_culprit_driver_only(value: object, kind: str, remedy: str) -> None:
    """The error names objects that exist only in the driver, and an alternative."""
    with pytest.raises(InvalidStreamError) as raised:
        require_picklable(in_closure(value), "map")
    message = str(raised.value)
    assert f"because it uses 'value', {kind}, which exists only in the driver; " in message
    assert remedy in message.rpartition(";")[2]


def test_culprit_driver_only_attribute() -> None:
    """For a method of an object that holds the context, the attribute is named."""

    class Job:
        def __init__(self) -> None:
            self.sc = SparkContext.__new__(SparkContext)

        def update(self, record: Any) -> Any:
            return record

    with pytest.raises(InvalidStreamError, match=r"it uses 'self\.sc', a SparkContext"):
        require_picklable(Job().update, "map")


def test_culprit_unknown() -> None:
    """If no part can be blamed, the error of the pickler is passed on."""

    class Stubborn:
        def __call__(self, record: Any) -> Any:
            return record

        def __reduce__(self) -> Any:
            raise TypeError("it is a secret")

    with pytest.raises(InvalidStreamError, match=r"\(TypeError: it is a secret\); let it use only"):
        require_picklable(Stubborn(), "map")


def test_culprit_in_a_circle() -> None:
    """The search ends for values that refer to each other."""
    circle: list[object] = [threading.Lock()]
    circle.insert(0, circle)
    with pytest.raises(InvalidStreamError, match=r"it uses 'value"):
        require_picklable(in_closure(circle), "map")


def test_call_site() -> None:
    """The line of the caller is given by file name only."""
    line = sys._getframe().f_lineno + 1
    assert call_site() == f"test_callables.py:{line}"


def test_call_site_skips_packages() -> None:
    """Frames of the packages to skip are skipped, those of packages with similar names are not."""
    library = ModuleType("library.inner")
    exec("def call(func):\n    return func()", library.__dict__)  # noqa: S102
    site = lambda: call_site(skip_packages=("library",))  # noqa: E731
    assert library.call(site) == f"test_callables.py:{line_of(site)}"
    inner = (
        "from dstreams.common.callables import call_site\n"
        "def ask(*skip):\n    return call_site(skip)"
    )
    exec(inner, library.__dict__)  # noqa: S102
    line = sys._getframe().f_lineno + 1
    assert library.ask("library") == f"test_callables.py:{line}"
    assert library.ask("lib") == "<string>:3"


def test_call_site_unknown() -> None:
    """If every frame is skipped, the site is unknown."""
    found: list[str] = []
    frames = tuple({HERE.partition(".")[0], "threading"})
    thread = threading.Thread(target=lambda: found.append(call_site(skip_packages=frames)))
    thread.start()
    thread.join()
    assert found == ["unknown"]


def test_a_call_site_in_a_notebook_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the cell that the shell has compiled; another file keeps its name."""

    class Compiler:
        def format_code_name(self, name: str) -> tuple[str, str] | None:
            return ("Cell", "In[7]") if name == "cells/7.py" else None

    class Shell:
        compile = Compiler()

    shells = SimpleNamespace(get_ipython=Shell)
    names = {"__name__": "__main__", "call_site": call_site}
    for shell, file, place in (
        (shells, "cells/7.py", "In[7]:2"),
        (shells, "/home/app.py", "app.py:2"),
        (SimpleNamespace(get_ipython=lambda: None), "/home/app.py", "app.py:2"),
        (None, "/home/app.py", "app.py:2"),
    ):
        if shell is None:
            monkeypatch.delitem(sys.modules, "IPython", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "IPython", shell)
        found = dict(names)
        exec(compile("\nsite = call_site()", file, "exec"), found)  # noqa: S102
        assert found["site"] == place

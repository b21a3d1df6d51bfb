"""Checks of user functions: their names, their arguments, and what they capture.

A function that can never work is refused when its stream is defined, not batches later in a worker.

>>> def update(values, state):
...     return sum(values) + (state or 0)
>>> accepts(update, 2), accepts(update, 3)
(True, False)
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from dstreams.errors import InvalidStreamError

_NESTING = 6
_TEXT_LENGTH = 80

# Matched by the names of class and package, so that Spark is not imported.
_DRIVER_ONLY = {
    "SparkContext": (
        "a SparkContext",
        "compute what it needs in the driver and use the result, or sc.broadcast(value)",
    ),
    "SparkSession": (
        "a SparkSession",
        "compute what it needs in the driver and use the result",
    ),
    "RDD": (
        "an RDD",
        "join the two RDDs, or collect() this one first and use the list or a broadcast of it",
    ),
    "DataFrame": (
        "a DataFrame",
        "join the two, or collect() this one first and use the rows or a broadcast of them",
    ),
    "StreamingContext": (
        "a StreamingContext",
        "copy the plain values it needs into variables of their own and use those",
    ),
    "DStream": (
        "a DStream",
        "combine streams with join, union or transformWith, or use plain values",
    ),
}


def describe(func: object) -> str:
    """Return ``module.qualname:line`` of a callable, as far as known: ``app.<lambda>:7``."""
    try:
        inner = _innermost(func)
        name = _qualified_name(inner)
        code = getattr(inner, "__code__", None)
        return f"{name}:{code.co_firstlineno}" if isinstance(code, types.CodeType) else name
    except Exception:  # must not replace the error whose message it is for
        return f"an object of {type(func).__name__}"


def code_object(func: object) -> types.CodeType | None:
    """Return the code of the function that :func:`describe` names; None if it is written in C."""
    code = getattr(_innermost(func), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def accepts(func: Callable[..., Any], count: int) -> bool:
    """Return whether *func* accepts *count* positional arguments; True without a signature."""
    signature = _signature(func)
    if signature is None:
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def require_callable(func: object, operation: str, shape: str) -> None:
    """Refuse an object that cannot be called."""
    if not callable(func):
        raise InvalidStreamError(
            f"{operation} needs a function {shape}, got {_short(func)} ({type(func).__name__})"
        )


def require_arity(
    func: Callable[..., Any], counts: tuple[int, ...], operation: str, shape: str
) -> int:
    """Return the number of positional arguments to call *func* with, one of *counts*, or refuse it.

    It is the number of parameters without a default if *counts* has that, so that
    ``lambda rdd, index=index: ...`` is a function of one argument; else the first of *counts* that
    the function accepts. For a builtin without a signature it is the first of *counts*.
    """
    require_callable(func, operation, shape)
    signature = _signature(func)
    if signature is None:
        return counts[0]
    accepted = [count for count in counts if accepts(func, count)]
    if not accepted:
        wanted = " or ".join(str(count) for count in counts)
        raise InvalidStreamError(
            f"{operation} calls {shape}, but {describe(func)} takes {_short_signature(signature)}; "
            f"let it take {wanted} positional argument{'' if counts == (1,) else 's'}"
        )
    required = _required_positional(signature)
    return required if required in accepted else accepted[0]


def require_picklable(func: Callable[..., Any], operation: str) -> None:
    """Refuse a function that cannot be pickled for the workers; the error names the culprit."""
    failure = _pickling_failure(func)
    if failure is None:
        return
    path, value = find_culprit(func, _pickling_failure)
    name = describe(func)
    if not path:
        reason = f"{type(failure).__name__}: {_short_text(str(failure))}"
        raise InvalidStreamError(
            f"{operation} cannot send {name} to the workers ({reason}); "
            "let it use only values that can be pickled"
        ) from failure
    kind, remedy = _kind_and_remedy(value)
    raise InvalidStreamError(
        f"{operation} cannot send {name} to the workers, because it uses {path!r}, {kind}; {remedy}"
    ) from failure


def require_function(func: Callable[..., Any], operation: str, shape: str, count: int = 1) -> None:
    """Check a function for the workers, which would otherwise fail in every batch."""
    require_arity(func, (count,), operation, shape)
    require_picklable(func, operation)


def call_site(skip_packages: tuple[str, ...] = ("dstreams", "pyspark")) -> str:
    """Return ``file.py:12``, or ``In[3]:12`` in a notebook, of the innermost caller outside."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.partition(".")[0] not in skip_packages:
            return f"{place_of(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def place_of(filename: str) -> str:
    """Return the base name of a file, or the notebook cell that was compiled under that name."""
    with suppress(Exception):  # not in a notebook
        get_ipython = sys.modules["IPython"].get_ipython
        kind_and_name = get_ipython().compile.format_code_name(filename)
        if kind_and_name is not None and kind_and_name[0] == "Cell":
            return str(kind_and_name[1])
    return os.path.basename(filename)


def _innermost(func: object) -> object:
    """Unwrap partials, decorators, methods and callable objects."""
    for _ in range(_NESTING):
        if isinstance(func, functools.partial):
            func = func.func
        elif inspect.ismethod(func):
            func = func.__func__
        elif hasattr(func, "__wrapped__"):
            func = func.__wrapped__
        elif callable(func) and not hasattr(func, "__qualname__"):
            func = type(func).__call__
        else:
            break
    return func


def _qualified_name(func: object) -> str:
    qualname: str = getattr(func, "__qualname__", "") or type(func).__qualname__
    if qualname.endswith("<lambda>"):
        qualname = "<lambda>"
    owner = getattr(func, "__objclass__", None)  # of methods written in C
    module = getattr(func, "__module__", None) or getattr(owner, "__module__", None)
    return f"{module}.{qualname}" if isinstance(module, str) else qualname


def _signature(func: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(func)
    except (TypeError, ValueError):  # builtins such as max publish none
        return None


def _required_positional(signature: inspect.Signature) -> int:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty
        for parameter in signature.parameters.values()
    )


class _Default:
    """A placeholder in printed signatures for default values, whose repr can be long."""

    def __repr__(self) -> str:
        return "..."


def _short_signature(signature: inspect.Signature) -> str:
    if not signature.parameters:
        return "no arguments"
    empty = inspect.Parameter.empty
    plain = [
        parameter.replace(
            annotation=empty, default=empty if parameter.default is empty else _Default()
        )
        for parameter in signature.parameters.values()
    ]
    return _short_text(str(inspect.Signature(plain)))


def _short(value: object) -> str:
    try:
        return _short_text(repr(value))
    except Exception:  # raised by the user's __repr__
        return "an object without a working repr"


def _short_text(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 3]}..."


def _pickling_failure(value: object) -> Exception | None:
    # CloudPickleSerializer makes the same call, but prints a traceback if it fails.
    from pyspark import cloudpickle  # noqa: PLC0415  # the rest of this module needs no Spark

    try:
        cloudpickle.dumps(value)
    except Exception as failure:
        return failure
    return None


def find_culprit(
    value: object, failure: Callable[[object], Exception | None]
) -> tuple[str, object]:
    """Return the path to the innermost part of *value* that cannot be pickled, and that part.

    *failure* tries to pickle an object and returns the error, or None. The path is for example
    ``"func.lock"``; empty if each part can be pickled.
    """
    path = ""
    for _ in range(_NESTING):
        part = next(_unpicklable_parts(value, failure), None)
        if part is None:
            break
        name, value = part
        path = _joined(path, name) if path else name
        if _driver_only_kind(value) is not None:
            break
    return path, value


def _joined(path: str, name: str) -> str:
    return f"{path}{name}" if name.startswith("[") else f"{path}.{name}"


def _unpicklable_parts(
    value: object, failure: Callable[[object], Exception | None]
) -> Iterator[tuple[str, object]]:
    return (
        (name, part)
        for name, part in _parts(value)
        if part is not value and failure(part) is not None
    )


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each part that would be pickled with *value*."""
    if isinstance(value, functools.partial):
        yield "func", value.func
        yield from ((f"args[{index}]", item) for index, item in enumerate(value.args))
        yield from value.keywords.items()
    elif inspect.ismethod(value):
        yield "self", value.__self__
        yield from _parts(value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from captured(value)
        yield from named_globals(value)
    elif isinstance(value, dict):
        yield from ((f"[{_short(key)}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    else:
        yield from getattr(value, "__dict__", {}).items()


def captured(func: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each closure variable and default of *func*."""
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    signature = inspect.signature(func, follow_wrapped=False)
    for parameter in signature.parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            yield parameter.name, parameter.default


def named_globals(func: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each global that *func* refers to."""
    for name in dict.fromkeys(_global_names(func.__code__)):
        if name in func.__globals__:
            yield name, func.__globals__[name]


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):  # co_names has attributes as well
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _driver_only_kind(value: object) -> str | None:
    """Return the class of an object that exists only in the driver, else None.

    Empty for a class that is only marked as such.
    """
    for base in type(value).__mro__:
        package = base.__module__.partition(".")[0]
        if package in ("pyspark", "dstreams") and base.__name__ in _DRIVER_ONLY:
            return base.__name__
    return "" if getattr(type(value), "_dstreams_driver_only", False) is True else None


def _kind_and_remedy(value: object) -> tuple[str, str]:
    driver_only = _driver_only_kind(value)
    if driver_only:
        kind, remedy = _DRIVER_ONLY[driver_only]
        return f"{kind}, which exists only in the driver", remedy
    cls = type(value)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    name = f"{module}{cls.__qualname__}"
    if driver_only is not None:
        return f"a {name}, which exists only in the driver", "use plain values instead"
    return (
        f"of type {name}, which cannot be pickled",
        "create it inside the function, once per partition if that is costly",
    )

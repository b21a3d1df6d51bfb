"""The classes of data that state may contain: those that the program mentions or lists.

A checkpoint must not choose code to run, so reading state only makes instances of classes of data
(:mod:`checkpoint.state_store`)

- in the modules of the program's functions, and in the modules that call dstreams, such as
  ``__main__``;
- in the modules that these import, if they belong to the program: same package, or neither in
  Python's library nor installed; from other modules, the imported names;
- in closures, defaults and annotations of its functions, and in the fields of such classes;
- in ``stateClasses`` of a context, a session, a StateSpec or an operator.

The driver collects them when a stream or a query starts, and sends them with the tasks: names of
modules, and the classes that other processes cannot import.
"""

from __future__ import annotations

import dataclasses
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

from checkpoint.state_store import Classes, is_class_of_data
from dstreams.common.callables import captured
from dstreams.errors import InvalidStreamError

Upgrade = Callable[[str, dict[str, Any]], Any]

_OWN = (
    "dstreams.structured.named_rows",
    "dstreams.structured.operators.time_windows",
    "dstreams.structured.sources.rate_source",
)
_ROW = "pyspark.sql.types"
_LIBRARIES = frozenset(("dstreams", "checkpoint", "pyspark", "py4j"))
_INSTALLED = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_MOST_ITEMS = 1000


_ATOMS = (str, bytes, int, float, type(None))


class _Namespace(typing.NamedTuple):
    """The contents of a module."""

    name: str


class AllowedClasses(typing.NamedTuple):
    """The classes that a program lists, and its upgrade of stored instances.

    *upgrade* is ``f(name, fields) -> value``; with None, instances that do not fit are rejected.
    """

    classes: tuple[type, ...] = ()
    upgrade: Upgrade | None = None

    def and_more(self, classes: Iterable[type], upgrade: Upgrade | None) -> AllowedClasses:
        """Return a copy with more classes."""
        more = require_classes(classes, "stateClasses")
        return AllowedClasses((*self.classes, *more), upgrade or self.upgrade)


def require_classes(classes: Iterable[type], where: str) -> tuple[type, ...]:
    """Return *classes*, or raise InvalidStreamError if one is not a class of data."""
    found = tuple(classes)
    for kind in found:
        if not isinstance(kind, type) or not is_class_of_data(kind):
            raise InvalidStreamError(
                f"{where} takes classes of data (dataclass, attrs, NamedTuple, Enum), got "
                f"{kind!r}; make it a dataclass, or set spark.dstreams.state.values to pickle"
            )
    return found


@dataclasses.dataclass(frozen=True)
class ProgramClasses(Classes):
    """The classes that a program mentions; pickled once for all tasks."""

    @cached_property
    def _pickled(self) -> bytes:
        # PySpark's pickler gives a class that is sent by value one identity in each worker.
        from pyspark import cloudpickle  # noqa: PLC0415  # the rest of this module needs no Spark

        def can_be_sent(kind: type) -> bool:
            try:
                cloudpickle.dumps(kind)
            except Exception:  # a method of it uses what cannot be sent, such as a context
                return False
            return True

        named = {name: kind for name, kind in self.named.items() if can_be_sent(kind)}
        pickled: bytes = cloudpickle.dumps((self.modules, named, self.upgrade))
        return pickled

    def __reduce__(self) -> Any:
        return _unpickled, (self._pickled,)


@lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> ProgramClasses:
    from pyspark import cloudpickle  # noqa: PLC0415

    return ProgramClasses(*cloudpickle.loads(pickled))


def classes_of_program(
    *parts: object, allowed: AllowedClasses | None = None, depth: int = 1
) -> ProgramClasses:
    """Return the classes that the program mentions in its *parts* and in its list.

    The search of calling modules starts at the frame at *depth*.
    """
    allowed = allowed or AllowedClasses()
    search = _Search()
    search.module("__main__")
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if isinstance(name, str) and not _is_installed(name):
            search.module(name)
        frame = frame.f_back
    for part in (*parts, *allowed.classes, allowed.upgrade):
        search.search(part)
    return ProgramClasses(
        frozenset((*search.modules, *_OWN, _ROW)) - {"__main__"}, search.named, allowed.upgrade
    )


def classes_of_callers() -> ProgramClasses:
    """Return the classes that the modules of the calling functions mention."""
    names = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    own = [name for name in dict.fromkeys(names) if not _is_installed(name)]
    return _classes_of_modules(
        tuple((name, len(vars(sys.modules[name]))) for name in own if name in sys.modules)
    )


@lru_cache(maxsize=16)
def _classes_of_modules(modules: tuple[tuple[str, int], ...]) -> ProgramClasses:
    search = _Search()
    for name, _ in modules:
        search.module(name)
    return ProgramClasses(frozenset((*search.modules, *_OWN, _ROW)), search.named)


@lru_cache(maxsize=4096)
def _is_installed(name: str) -> bool:
    """Return whether a module is in Python's library or installed."""
    if name.partition(".")[0] in _LIBRARIES:
        return True
    found = sys.modules.get(name)
    if found is None or name == "__main__":
        return False
    file = getattr(found, "__file__", None)
    if file is None:
        return (
            not hasattr(found, "__path__") and hasattr(found, "__spec__") and bool(found.__spec__)
        )
    return str(file).startswith(_INSTALLED)


class _Search:
    """Searches a program for modules, and for classes that cannot be imported."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.named: dict[tuple[str, str], type] = {}
        self._packages: set[str] = set()
        self._searched: set[str] = set()
        self._seen: dict[int, object] = {}
        self._rest: list[object] = []

    def search(self, value: object) -> None:
        """Search a part of the program."""
        self._rest.append(value)
        while self._rest:
            part = self._rest.pop()
            if id(part) not in self._seen and not isinstance(part, _ATOMS):
                self._seen[id(part)] = part
                self._rest += self._parts_of(part)

    def module(self, name: str, *, is_of_program: bool = True) -> None:
        """Add the classes of a module, and of the program's modules that it imports."""
        package = name.partition(".")[0]
        if package in _LIBRARIES or name not in sys.modules:
            return
        self.modules.add(name)
        if is_of_program:
            self._packages.add(package)
        if name not in self._searched and (package in self._packages or not _is_installed(name)):
            self._searched.add(name)
            self.search(_Namespace(name))

    def _in_module(self, name: str) -> Iterable[object]:
        for value in list(vars(sys.modules[name]).values()):
            if isinstance(value, types.ModuleType):
                self._import(value)
            elif isinstance(value, type) and is_class_of_data(value):
                yield value
            elif isinstance(value, (type, types.FunctionType)):
                self.module(value.__module__ or "", is_of_program=False)

    def _import(self, module: types.ModuleType) -> None:
        self.module(module.__name__, is_of_program=False)
        if _is_installed(module.__name__):
            self._reexported(module)

    def _reexported(self, module: types.ModuleType) -> None:
        """Add the classes that an installed package re-exports from its modules."""
        package = module.__name__.partition(".")[0]
        if package in _LIBRARIES:
            return
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__.startswith(f"{package}."):
                self.modules.add(value.__module__)

    def _parts_of(self, value: Any) -> Iterable[object]:  # noqa: PLR0911 - one for each kind
        if isinstance(value, _Namespace):
            return list(self._in_module(value.name))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return (value.__self__, value.__func__)
        if isinstance(value, partial):
            return (value.func, value.args, value.keywords)
        if isinstance(value, Mapping):
            return [part for pair in list(value.items())[:_MOST_ITEMS] for part in pair]
        if isinstance(value, (list, tuple, set, frozenset)):
            return list(value)[:_MOST_ITEMS]
        if typing.get_origin(value) is not None:
            return typing.get_args(value)
        if isinstance(value, types.ModuleType):
            self._import(value)
            return ()
        return self._instance(value)

    def _class(self, kind: type) -> Iterable[object]:
        if kind.__module__.partition(".")[0] in _LIBRARIES:
            return ()
        if not is_class_of_data(kind):
            if not _is_installed(kind.__module__):
                self.module(kind.__module__)
            return ()
        name = (kind.__module__, kind.__qualname__)
        if kind.__module__ == "__main__" or _found(*name) is not kind:
            self.named[name] = kind
        else:
            self.modules.add(kind.__module__)
        if not _is_installed(kind.__module__):
            self.module(kind.__module__)
        return [*_annotated(kind), *kind.__bases__]

    def _function(self, func: types.FunctionType) -> Iterable[object]:
        if func.__module__ and func.__module__.partition(".")[0] not in _LIBRARIES:
            self.module(func.__module__)
        return [*(value for _, value in captured(func)), *_annotated(func)]

    def _instance(self, value: Any) -> Iterable[object]:
        kind = type(value)
        package = (kind.__module__ or "").partition(".")[0]
        is_ours = package == "dstreams"
        if getattr(kind, "_dstreams_driver_only", False):
            return ()
        if not is_ours and _is_installed(kind.__module__):
            return [kind]
        slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        held = getattr(value, "__dict__", {})
        parts = [*held.values(), *(getattr(value, name, None) for name in slots)]
        return parts if is_ours else [kind, *parts]


def _found(module: str, name: str) -> object:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _annotated(thing: Any) -> list[object]:
    """Return the annotated types, unresolved if they cannot be evaluated."""
    try:
        return list(typing.get_type_hints(thing).values())
    except Exception:  # names for type checkers alone, for example
        return list(getattr(thing, "__annotations__", {}).values())

"""Pickles that need no class except those of a short list.

The pickler asks about every object that Python cannot pickle without naming a class. Instances of
data classes (:mod:`checkpoint.state_store.classes`) are written as persistent ids. Reading makes
them only after the whole pickle was read, so no opcode can act on an instance.

The names of the functions that rebuild values, such as ``plain_pickles._fraction``, are part of the
format on disk: they must not move.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from checkpoint.state_store.classes import Classes, Maker, Written, written
from checkpoint.state_store.shapes import Shape, Shapes, shape_of

PROTOCOL = 5  # part of the format, independent of Python's default
# A pickle names a class with STACK_GLOBAL, with GLOBAL or INST (followed by two lines), or with a
# number that the program registered by copyreg.add_extension.
STACK_GLOBAL = 0x93
LINE_END = 0x0A
EXTENSIONS: Mapping[int, Any] = vars(copyreg)["_inverted_registry"]
_MUTABLE_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_MAX_KNOWN = 256
_MAX_SHAPE = 32  # items of a tuple; longer tuples rarely hold instances


def _fraction(numerator: int, denominator: int) -> Fraction:
    # Fraction also accepts text, and Fraction("1e999999999") does not return.
    if type(numerator) is int and type(denominator) is int:
        return Fraction(numerator, denominator)
    raise pickle.UnpicklingError("a fraction needs two ints")


def _zone(key: str) -> ZoneInfo:
    return ZoneInfo(key)


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _defaultdict(factory: str | None) -> defaultdict[Any, Any]:
    if factory is not None and factory not in _FACTORIES:
        raise pickle.UnpicklingError(f"{factory!r:.80} is not a factory for a defaultdict")
    return defaultdict(None if factory is None else _FACTORIES[factory])


_BUILTINS = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_FACTORIES: Mapping[str, type] = {
    kind.__name__: kind for kind in (*_BUILTINS, Counter, OrderedDict, deque)
}
_PLAIN: tuple[type, ...] = (
    *(date, datetime, time, timedelta, timezone, Decimal, complex, Counter, OrderedDict, deque),
)
_REBUILT: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    Fraction: lambda value: (_fraction, (value.numerator, value.denominator)),
    UUID: lambda value: (_uuid, (value.bytes,)),
    ZoneInfo: lambda value: (_zone, (_zone_key(value),)),
    defaultdict: lambda value: (
        *(_defaultdict, (_factory_name(value),)),
        *(None, None, iter(value.items())),
    ),
}
_REBUILDERS: tuple[Callable[..., Any], ...] = (_fraction, _uuid, _zone, _defaultdict)


def _zone_key(value: ZoneInfo) -> str:
    if value.key is None:
        raise TypeError("a ZoneInfo without a key cannot be stored; create it with ZoneInfo(name)")
    return value.key


def _factory_name(value: defaultdict[Any, Any]) -> str | None:
    factory: Any = value.default_factory
    name = getattr(factory, "__name__", repr(factory))
    if factory is None or _FACTORIES.get(name) is factory:
        return None if factory is None else name
    raise NotPlainError(
        f"a defaultdict with the factory {name}",
        f"is not plain data: its factory must be one of {', '.join(_FACTORIES)}",
    )


class NotPlainError(TypeError):
    """A value that is neither plain data nor an instance of a registered data class.

    Args:
        what: names the part that cannot be stored.
        why: why it cannot be stored.
        is_class_of_data: whether registering its class is enough.
        path: its place in the value, such as ``[0].tags['x']``.
    """

    def __init__(
        self, what: str, why: str, *, is_class_of_data: bool = False, path: str = ""
    ) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why
        self.is_class_of_data = is_class_of_data
        self.path = path

    def __str__(self) -> str:
        place = f" (at {self.path})" if self.path else ""
        remedy = (
            "register it: DataValues(Classes(named={(module, name): class}))"
            if self.is_class_of_data
            else "store its fields in a tuple, a dict or a dataclass, or use PickleValues(), which "
            "trusts everyone who can write the checkpoint"
        )
        return f"a value that holds {self.what}{place} {self.why}; {remedy}"


def pickled_name(kind: Any) -> tuple[str, str]:
    """Return the module and name by which a pickle refers to a class or function."""
    return (kind.__module__, kind.__qualname__)


class _Callable:
    """A function or class that a pickle may call but not change."""

    __slots__ = ("_call",)

    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"it changes a class: it sets {name!r:.80}")


def _unchangeable(known: Any) -> Any:
    is_mutable = not isinstance(known, type) or (
        known.__flags__ & _MUTABLE_TYPE and not known.__flags__ & _IMMUTABLE_TYPE
    )
    return _Callable(known) if is_mutable else known


PLAIN_NAMES: Mapping[tuple[str, str], Any] = {
    pickled_name(known): _unchangeable(known) for known in (*_PLAIN, *_REBUILDERS)
}
"""Everything that a pickle may name, by module and name. A pickle can change none of it."""


class PlainUnpickler(pickle.Unpickler):
    """Reads plain data, and holds instances of data classes until :func:`careful_loads` makes them.

    Subclasses decide what happens to other names and to instances.
    """

    has_instances = False

    def find_class(self, module: str, name: str) -> Any:
        found = PLAIN_NAMES.get((module, name))
        return self.other_class(module, name) if found is None else found

    def other_class(self, module: str, name: str) -> Any:
        """Return a replacement for a class that is not plain data."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not plain data")

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is not tuple or not pid or type(pid[0]) is not str:
            raise pickle.UnpicklingError(f"{pid!r:.80} is not an instance of a class")
        self.has_instances = True
        return self.instance(pid[0], pid[1:])

    def instance(self, text: str, values: tuple[Any, ...]) -> Any:
        """Return a placeholder for an instance, given its schema as text and its fields."""
        return _Held(text, values)


class _Held:
    """An instance in a pickle that is still being read; no opcode can change it."""

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: tuple[Any, ...]) -> None:
        self.text = text
        self.values = values

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("an instance of a data class has no other state")


MakerOf = Callable[[str], Maker]
"""``f(schema as text)``: how instances are made."""


def careful_loads(record: bytes, find: MakerOf) -> Any:
    """Read a pickle of plain data and of instances of data classes."""
    unpickler = PlainUnpickler(io.BytesIO(record))
    value = unpickler.load()
    return _Instantiation(find).of(value) if unpickler.has_instances else value


class _Instantiation:
    """Replaces held instances by real ones; containers keep their identity."""

    def __init__(self, find: MakerOf) -> None:
        self._find = find
        self._done: dict[int, tuple[Any, Any]] = {}  # holds the originals, so ids are not reused

    def of(self, value: Any) -> Any:
        """Return a value with its instances."""
        kind = type(value)
        if kind is _Held:
            return self._find(value.text).one(*map(self.of, value.values))
        if kind not in _CONTAINERS:
            return value
        done = self._done.get(id(value))
        if done is not None:
            return done[1]
        if kind in (tuple, frozenset):
            made = kind(map(self.of, value))
            self._done[id(value)] = (value, made)
            return made
        self._done[id(value)] = (value, value)
        if isinstance(value, dict):
            items = [(self.of(key), self.of(item)) for key, item in value.items()]
            value.clear()
            for key, item in items:
                value[key] = item
            return value
        inside = list(map(self.of, value))
        value.clear()
        getattr(value, "update" if kind is set else "extend")(inside)
        return value


_CONTAINERS = frozenset(
    (list, tuple, dict, set, frozenset, deque, OrderedDict, Counter, defaultdict)
)


class _DataPickler(pickle.Pickler):
    """Writes instances of registered data classes as persistent ids, and rejects other classes."""

    def __init__(self, file: Any, known: _KnownClasses) -> None:
        super().__init__(file, PROTOCOL)
        self._known = known
        self.has_asked = False

    def persistent_id(self, value: Any) -> Any:
        how = self._known[type(value)]
        if how is None:
            return None
        self.has_asked = True
        return how.apart(value)

    def reducer_override(self, value: Any) -> Any:
        self.has_asked = True
        kind = type(value)
        if kind in _PLAIN:
            return NotImplemented
        rebuild = _REBUILT.get(kind)
        if rebuild is not None:
            return rebuild(value)
        if (kind is type and value in _PLAIN) or (kind is FunctionType and value in _REBUILDERS):
            return NotImplemented  # the class or function itself
        raise NotPlainError(
            f"a {kind.__module__}.{kind.__qualname__}",
            "is not plain data, nor an instance of a class of data (dataclass, attrs, NamedTuple, "
            "Enum, Row)",
        )


class _KnownClasses(dict[type, "Written | None"]):
    """The encoding of the instances of each class; None for other classes."""

    def __init__(self, classes: Classes) -> None:
        super().__init__()
        self._classes = classes

    def __missing__(self, kind: type) -> Written | None:
        """Raise NotPlainError if *kind* is a data class that the program did not register."""
        how = written(kind)
        if how is not None:
            module, name = pickled_name(kind)
            found = self._classes.find(module, name)
            registered = None if found is None else written(found)
            if registered is None or registered.schema != how.schema:
                problem = "of a class of data that the program does not register"
                if registered is not None:
                    problem = "of a class registered under the same name, with other fields"
                raise NotPlainError(f"a {module}.{name}", f"is {problem}", is_class_of_data=True)
        self[kind] = how
        return how


class PlainPickler:
    """Writes the values of one writer with one pickler, which takes a quarter of the time."""

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        self._known = _KnownClasses(classes)
        self._shapes = shapes
        self._written: list[bytes] = []
        self.shape = lru_cache(maxsize=_MAX_KNOWN)(self._shape)
        self.has_asked = False
        """True if the last value needed more than builtin types."""
        self._reset()

    def _reset(self) -> None:
        """Start with a new pickler; needed after an error."""
        self._written.clear()
        self._pickler = _DataPickler(SimpleNamespace(write=self._written.append), self._known)

    def _shape(self, by: Any) -> Shape | None:
        """Return the shape of values of a class, or of tuples with items of these classes."""
        kinds = by if isinstance(by, tuple) else (by,)
        if len(kinds) > _MAX_SHAPE:
            return None
        try:
            parts = [self._known[kind] for kind in kinds]
        except NotPlainError:  # encode raises it again, with the path
            return None
        return shape_of(parts, kinds, self._shapes, is_tuple=by is kinds)

    def encode(self, value: Any) -> bytes:
        """Return the pickle of one value. Raises NotPlainError or TypeError."""
        pieces, pickler = self._written, self._pickler
        pickler.has_asked = False
        try:
            pickler.dump(value)
        except RecursionError:
            self._reset()
            raise TypeError(
                f"a {type(value).__name__} is nested too deeply, or an instance of a class of data "
                "in it refers to itself; store a key or a number instead of the reference"
            ) from None
        except BaseException as error:
            self._reset()
            if isinstance(error, NotPlainError) and not error.path:
                error.path = self._path_in(value, error.what)
            raise
        self.has_asked = pickler.has_asked
        pickler.clear_memo()
        # Pickle writes large strings separately.
        whole = pieces.pop() if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return whole

    def _path_in(self, value: Any, what: str) -> str:
        """Return the path to the part of *value* that cannot be written."""
        if what != f"a {'.'.join(pickled_name(type(value)))}":
            for name, part in _parts_of(value):
                try:
                    self._pickler.dump(part)
                except Exception:
                    self._reset()
                    return name + self._path_in(part, what)
                self._reset()
        return ""


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with the text of its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[{key!r:.40}]", item
            yield ".keys()", key
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", part) for name, part in zip(value._fields, value, strict=False))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{at}]", part) for at, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from (("{...}", part) for part in value)
    elif written(type(value)) is not None:
        yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())

"""Pickles of plain data and of classes of data: they need no class but those of a short list.

C writes and reads. Only where one of the few bytes is there by which a pickle can name a class, is
every name looked up in the list. What is found there can be called and has no attribute to set.
Instances of classes of data (:mod:`checkpoint.state_store.classes`) are persistent ids, and made
when the pickle has been read to its end.
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

from checkpoint.state_store.classes import Classes, Maker
from checkpoint.state_store.schemas import Written, written
from checkpoint.state_store.shapes import Shape, Shapes, shape_of

PROTOCOL = 5  # part of the format, whatever Python's default is
# A pickle names a class by STACK_GLOBAL; by GLOBAL or INST, which two lines follow; or by a number
# that the program itself has given to a class by copyreg.add_extension.
STACK_GLOBAL = 0x93
LINE_END = 0x0A
EXTENSIONS: Mapping[int, Any] = vars(copyreg)["_inverted_registry"]
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def _fraction(numerator: int, denominator: int) -> Fraction:
    # Fraction itself also takes text, and "1e999999999" takes for ever.
    if type(numerator) is int and type(denominator) is int:
        return Fraction(numerator, denominator)
    raise pickle.UnpicklingError("a fraction is made of two ints")


def _zone(key: str) -> ZoneInfo:
    return ZoneInfo(key)


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


_FACTORIES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset),
        *(Counter, OrderedDict, deque),
    )
}


def _defaultdict(factory: str | None) -> defaultdict[Any, Any]:
    if factory is not None and factory not in _FACTORIES:
        raise pickle.UnpicklingError(f"a defaultdict is not made of {factory!r:.80}")
    return defaultdict(None if factory is None else _FACTORIES[factory])


PLAIN: tuple[type, ...] = (
    date,
    datetime,
    time,
    timedelta,
    timezone,
    Decimal,
    complex,
    Counter,
    OrderedDict,
    deque,
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
_MAKERS: tuple[Callable[..., Any], ...] = (_fraction, _uuid, _zone, _defaultdict)


def _zone_key(value: ZoneInfo) -> str:
    if value.key is None:
        raise TypeError("a ZoneInfo without key cannot be stored; make it by ZoneInfo(name)")
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
    """A value that is not plain data, nor of a class of data that the program names.

    Args:
        what: what is in the way.
        why: why it cannot be stored.
        is_class_of_data: whether it only has to be named.
        path: where it is in the value, such as ``[0].tags['x']``.
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
        return f"a value that holds {self.what}{place} {self.why}; {self._remedy()}"

    def _remedy(self) -> str:
        if self.is_class_of_data:
            return "name it: DataValues(Classes(named={(module, name): class}))"
        return (
            "store its fields, in a tuple, a dict or a dataclass, or take PickleValues(), which "
            "trusts whoever can write the checkpoint"
        )


def pickled_name(kind: Any) -> tuple[str, str]:
    """Return module and name by which a pickle names a class or function."""
    return (kind.__module__, kind.__qualname__)


class _Callable:
    """What a pickle may call, without anything that it could change.

    Args:
        call: what is called.
    """

    __slots__ = ("_call",)

    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"{name!r} of what a pickle may call cannot be set")


def plain_names() -> dict[tuple[str, str], Any]:
    """Return what a pickle may name, by module and name: nothing that a pickle could change."""
    return {pickled_name(known): _unchangeable(known) for known in (*PLAIN, *_MAKERS)}


def _unchangeable(known: Any) -> Any:
    if isinstance(known, type) and (
        not known.__flags__ & _HEAP_TYPE or known.__flags__ & _IMMUTABLE
    ):
        return known
    return _Callable(known)


class _DataPickler(pickle.Pickler):
    """A pickler that C asks about each object: is it of a class of data, and else, is it plain?"""

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
        if (kind is type and value in _PLAIN) or (kind is FunctionType and value in _MAKERS):
            return NotImplemented  # the class itself, on the way to the file
        raise NotPlainError(
            f"a {kind.__module__}.{kind.__qualname__}",
            "is not plain data, nor an instance of a class of data (dataclass, attrs, NamedTuple, "
            "Enum, Row)",
        )


_PLAIN = frozenset(PLAIN)


class _KnownClasses(dict[type, "Written | None"]):
    """How instances of classes are written, None for a class that is none of data.

    A class of data that the program does not name raises :class:`NotPlainError`.
    """

    def __init__(self, classes: Classes) -> None:
        super().__init__()
        self._classes = classes

    def __missing__(self, kind: type) -> Written | None:
        how = self[kind] = self._require_named(kind, written(kind))
        return how

    def _require_named(self, kind: type, how: Written | None) -> Written | None:
        if how is None:
            return None
        module, name = pickled_name(kind)
        found = self._classes.find(module, name)
        again = None if found is None else written(found)
        if again is not None and again.schema == how.schema:
            return how
        problem = "of a class of data that the program does not name"
        if again is not None:
            problem = "of a class whose name the program has for another class with other fields"
        raise NotPlainError(f"a {module}.{name}", f"is {problem}", is_class_of_data=True)


_MAX_KNOWN = 256
_MAX_SHAPE = 32  # items of a tuple; in longer ones instances are rare


class PlainPickler:
    """One pickler for the values of one writer: making one for each takes four times as long."""

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        self._known = _KnownClasses(classes)
        self._shapes = shapes
        self._written: list[bytes] = []
        self.shape = lru_cache(maxsize=_MAX_KNOWN)(self._shape)
        self.has_asked = False
        """Whether the last value held more than what Python can pickle without naming a class."""
        self._begin()

    def _begin(self) -> None:
        """Forget what was written before; only needed after an error."""
        self._written.clear()
        self._pickler = _DataPickler(SimpleNamespace(write=self._written.append), self._known)

    def _shape(self, by: Any) -> Shape | None:
        """Return how values are written as a shape, None if they are none."""
        kinds = by if isinstance(by, tuple) else (by,)
        if len(kinds) > _MAX_SHAPE:
            return None
        try:
            parts = [self._known[kind] for kind in kinds]
        except NotPlainError:  # who writes it as a pickle says where it is
            return None
        return shape_of(parts, kinds, self._shapes, is_tuple=by is kinds)

    def encode(self, value: Any) -> bytes:
        """Return the pickle of one value. Raises NotPlainError or TypeError."""
        written, pickler = self._written, self._pickler
        pickler.has_asked = False
        try:
            pickler.dump(value)
        except RecursionError:
            self._begin()
            raise TypeError(
                f"a {type(value).__name__} is nested too deeply, or an instance of a class of data "
                "in it refers to itself; store a key or a number in the place of what it refers to"
            ) from None
        except BaseException as error:
            self._begin()
            if isinstance(error, NotPlainError) and not error.path:
                error.path = self._path_in(value, error.what)
            raise
        self.has_asked = pickler.has_asked
        pickler.clear_memo()
        # Large strings are written on their own.
        whole = written.pop() if len(written) == 1 else b"".join(written)
        written.clear()
        return whole

    def _path_in(self, value: Any, what: str) -> str:
        """Return where in *value* the part is that cannot be written."""
        if what == f"a {'.'.join(pickled_name(type(value)))}":
            return ""
        for name, part in _parts_of(value):
            if not self._is_taken(part):
                return name + self._path_in(part, what)
        return ""

    def _is_taken(self, value: Any) -> bool:
        try:
            self._pickler.dump(value)
        except Exception:
            return False
        finally:
            self._begin()
        return True


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in a value, with the text that leads there."""
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


def careful_loads(record: bytes, find: MakerOf) -> Any:
    """Read a pickle of plain data and of instances of classes of data."""
    unpickler = _DataUnpickler(io.BytesIO(record))
    value = unpickler.load()
    return _Making(find).of(value) if unpickler.held else value


class _Held:
    """An instance of a class of data in a pickle that is being read."""

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: tuple[Any, ...]) -> None:
        self.text = text
        self.values = values

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("an instance of a class of data has no other state")


_NAMES = plain_names()


class _DataUnpickler(pickle.Unpickler):
    """Finds what is plain, and holds instances of classes of data."""

    held = False

    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not plain data")
        return found

    def persistent_load(self, pid: Any) -> _Held:
        if type(pid) is not tuple or not pid or type(pid[0]) is not str:
            raise pickle.UnpicklingError(f"{pid!r:.80} is no instance of a class")
        self.held = True
        return _Held(pid[0], pid[1:])


MakerOf = Callable[[str], Maker]
"""``f(schema as text)``: how instances are made."""


class _Making:
    """Puts instances in the place of those that are held, in containers as they are."""

    def __init__(self, find: MakerOf) -> None:
        self._find = find
        self._done: dict[int, tuple[Any, Any]] = {}  # what was there is kept, or ids come again

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

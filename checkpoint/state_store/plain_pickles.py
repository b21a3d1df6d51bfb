"""Pickles of plain data and of classes of data: they need no class but those of a short list.

C writes and reads; what is not plain is found by the few bytes by which a pickle can name a class.
Only where one of them is there, by chance or not, is every name looked up in the list. What is
found there can be called and nothing else: it has no attribute that a pickle could set.

Instances of classes of data (:mod:`checkpoint.state_store.classes`) are persistent ids. They are
made when the pickle has been read to its end, so that no operation of a pickle meets one.
"""

from __future__ import annotations

import copyreg
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import FunctionType
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from checkpoint.state_store.classes import Classes
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
_MAX_KNOWN = 256
_UNKNOWN: Any = object()


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


def name_of(kind: Any) -> tuple[str, str]:
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
    return {name_of(known): _unchangeable(known) for known in (*PLAIN, *_MAKERS)}


def _unchangeable(known: Any) -> Any:
    if isinstance(known, type) and (
        not known.__flags__ & _HEAP_TYPE or known.__flags__ & _IMMUTABLE
    ):
        return known
    return _Callable(known)


class _DataPickler(pickle.Pickler):
    """Asked by C about each object, whether it is of a class of data; then about what is not plain.

    Args:
        file: what it writes to.
        known: how instances of classes of data are written.
        asked: classes that a pickle must name; more are added.
    """

    def __init__(self, file: Any, known: KnownClasses, asked: set[type]) -> None:
        super().__init__(file, PROTOCOL)
        self._written = known.by_class
        self._known = known
        self._asked = asked

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        how = self._written.get(kind, _UNKNOWN)
        if how is _UNKNOWN:
            how = self._known.of(kind)
        return None if how is None else how.apart(value)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        self._asked.add(kind)
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


class KnownClasses:
    """How the values of one writer are written, as far as their classes are known by now.

    Args:
        classes: those that the program names.
        asked: classes that a pickle must name; more are added.
        shapes: those of the content; more are added.
    """

    def __init__(self, classes: Classes, asked: set[type], shapes: Shapes) -> None:
        self._shapes = shapes
        self.by_class: dict[type, Written | None] = {}
        self._classes = classes
        self._asked = asked

    def of(self, kind: type) -> Written | None:
        """Return how instances of a class are written, None if it is no class of data.

        Raises:
            NotPlainError: it is one that the program does not name.
        """
        how = self.by_class.get(kind, _UNKNOWN)
        if how is not _UNKNOWN:
            return how  # type: ignore[no-any-return]
        how = written(kind)
        if how is not None:
            self._require_named(kind, how)
            self._asked.add(kind)
        self.by_class[kind] = how
        return how

    def shape(self, by: Any) -> Shape | None:
        """Return how values are written as a shape, None if they are none.

        Args:
            by: their class, or those of the items of a tuple.
        """
        kinds = by if isinstance(by, tuple) else (by,)
        if len(kinds) > _MAX_SHAPE:
            return None
        try:
            parts = list(map(self.of, kinds))
        except NotPlainError:  # who writes it as a pickle says where it is
            return None
        return shape_of(parts, kinds, self._shapes, is_tuple=by is kinds)

    def _require_named(self, kind: type, how: Written) -> None:
        module, name = name_of(kind)
        found = self._classes.find(module, name)
        again = None if found is None else written(found)
        if again is None:
            raise NotPlainError(
                f"a {module}.{name}",
                "is of a class of data that the program does not name",
                is_class_of_data=True,
            )
        if again.schema != how.schema:
            raise NotPlainError(
                f"a {module}.{name}",
                "is of a class whose name the program has for another class with other fields",
                is_class_of_data=True,
            )


_MAX_SHAPE = 32  # items of a tuple; in longer ones instances are rare


class PlainPickler:
    """One pickler for the values of one writer: making one for each takes four times as long.

    Args:
        classes: classes of data that are taken beside plain data.
        shapes: those of the content; more are added.
    """

    def __init__(self, classes: Classes, shapes: Shapes) -> None:
        self.asked: set[type] = set()
        """Classes that the values had and that a pickle must name."""
        self.known = KnownClasses(classes, self.asked, shapes)
        self._written: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        """Forget what was written before; only needed after an error."""
        self._written.clear()
        self._pickler = _DataPickler(_Sink(self._written.append), self.known, self.asked)

    def encode(self, value: Any) -> bytes:
        """Return the pickle of one value.

        Raises:
            NotPlainError: it is not plain.
            TypeError: an instance in it has fields that are not set.
        """
        written, pickler = self._written, self._pickler
        try:
            pickler.dump(value)
        except RecursionError:
            self.begin()
            raise TypeError(
                f"a {type(value).__name__} is nested too deeply, or an instance of a class of data "
                "in it refers to itself; store a key or a number in the place of what it refers to"
            ) from None
        except BaseException as error:
            self.begin()
            if isinstance(error, NotPlainError) and not error.path:
                error.path = self._path_in(value, error.what)
            raise
        pickler.clear_memo()
        # Large strings are written on their own.
        whole = written.pop() if len(written) == 1 else b"".join(written)
        written.clear()
        return whole

    def _path_in(self, value: Any, what: str) -> str:
        """Return where in *value* the part is that cannot be written."""
        if what == f"a {'.'.join(name_of(type(value)))}":
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
            self.begin()
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


class _Sink:
    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write

"""Instances of registered data classes are restored as they were."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import pickle
import sys
import types
from abc import ABC
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import datetime
from enum import Enum, Flag, IntEnum, IntFlag
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from pyspark.sql import Row

from checkpoint import open_files
from checkpoint.state_store import EMPTY, LmdbBackend, SnapshotRule, StateStore, StoreId
from checkpoint.state_store.classes import (
    Classes,
    OldFields,
    Schema,
    StoredClassError,
    fields_of,
    schema_of_text,
)
from checkpoint.state_store.keys import decode_key, encode_key
from checkpoint.state_store.maintenance import snapshot_if_due
from checkpoint.state_store.plain_pickles import NotPlainError
from checkpoint.state_store.shapes import Shapes
from checkpoint.state_store.values import DataValues, UndecodableValueError, ValueCodec
from dstreams.spark.stable_hash import stable_hash

T = TypeVar("T")
CLASSES = Classes(frozenset({__name__, "pyspark.sql.types"}))
SHAPES = Shapes()
CODEC = DataValues(CLASSES)


class Status(Enum):
    OPEN = "o"
    CLOSED = "c"
    DONE = "c"  # noqa: PIE796 - an alias


class Level(IntEnum):
    LOW = 1


class Name(str, Enum):
    A = "a"


class Access(Flag):
    READ = 1
    WRITE = 2


class Bits(IntFlag):
    ONE = 1


class Place(NamedTuple):
    x: int
    y: float = 0.5


Old = namedtuple("Old", "a b")


class Roomy(Place):
    """A named tuple with room for attributes."""


@dataclass
class Plain:
    count: int
    total: float


@dataclass(frozen=True)
class Frozen:
    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    at: datetime


@dataclass
class RawVersion:
    name: str = "base"


@dataclass
class Child(RawVersion):
    tags: list[str] = field(default_factory=list)
    status: Status = Status.OPEN
    hidden: int = field(default=3, init=False, repr=False, compare=False)


@dataclass
class Empty:
    pass


@dataclass
class Boxed(Generic[T]):
    inside: T


@dataclass
class Guarded:
    """A class whose pickling methods and constructor fail."""

    value: int

    def __post_init__(self) -> None:
        if self.value != 1:
            raise AssertionError("called")

    def __setattr__(self, name: str, value: Any) -> None:
        if vars(self):
            raise AssertionError("called")
        super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        raise AssertionError("called")

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("called")

    def append(self, item: Any) -> None:
        raise AssertionError("called")


@dataclass
class Extra:
    """A class with attributes in addition to its fields."""

    base: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.made = self.base * factor

    @cached_property
    def cached(self) -> int:
        return self.base + 1


@dataclass
class PartSlots(ABC):
    __slots__ = ("a",)
    a: int


@dataclass
class MixedSlots(PartSlots):
    b: int


def rows() -> list[Row]:
    people = Row("name", "age")
    named = people("a", 1)
    return [Row(k=1, v=2), named, Row(1, 2), Row(inner=Row(a=1), at=None), Row(), people]


def values() -> list[Any]:
    extra = Extra(3)
    _ = extra.cached
    roomy = Roomy(1, 2.0)
    roomy.note = "x"  # type: ignore[attr-defined]
    return [
        Plain(1, 2.0), Plain(2**70, 0.5), Plain("x", None), Place(1), Old("a", "b"), roomy,  # type: ignore[arg-type]
        Frozen("n", Place(1)), Slotted("s", datetime(2024, 1, 1)), Child("c", ["x"], Status.CLOSED),  # noqa: DTZ001
        Empty(), Boxed(1), Boxed[int](3), Guarded(1), extra, MixedSlots(1, 2),
        Status.OPEN, Status.DONE, Level.LOW, Name.A,
        Access.READ, Access.READ | Access.WRITE, Access(0), Bits.ONE, Bits(5), *rows(),
        (Plain(1, 2.0), 5), (None, Plain(1, 2.0), True), (Place(1), Plain(1, 2.0), 3, Level.LOW),
        [Plain(1, 2.0), Plain(2, 3.0)], {"k": Child()}, {Place(1): {Status.OPEN}},
        {Frozen("n", Place(1)), Frozen("m", Place(2))}, frozenset({Status.OPEN}),
        defaultdict(list, {Status.OPEN: [Plain(1, 2.0)]}), Counter({Place(1): 3}),
        OrderedDict(b=Plain(1, 2.0), a=Place(1)), deque([Plain(1, 2.0)], maxlen=2),
        ([Plain(1, 2.0)], (Plain(1, 2.0),)), Boxed([Boxed({"x": Boxed(Level.LOW)})]),
    ]  # fmt: skip


def stepper(codec: ValueCodec) -> Callable[..., list[bytes | None]]:
    """Decode, step and encode keys one after the other, as a writer does for many."""
    encode_many, decode_many = codec.many_encoder(SHAPES), codec.many_decoder(SHAPES)
    return lambda given, before, step: encode_many(map(step, given, decode_many(before)))


def same(found: Any, wanted: Any) -> bool:
    """Return whether types, attributes and fields of rows are equal."""
    if isinstance(wanted, Enum) and not isinstance(wanted, Flag):
        return found is wanted
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, (set, frozenset)):  # equal ones may iterate in another order
        return bool(found == wanted)
    if repr(found) != repr(wanted):
        return False
    if isinstance(wanted, Row):  # its fields may be named by a list or by another Row
        return list(getattr(found, "__fields__", ())) == list(getattr(wanted, "__fields__", ()))
    held = {} if isinstance(wanted, Flag) else dict(getattr(wanted, "__dict__", {}))
    held.pop("__orig_class__", None)
    return all(same(vars(found)[name], value) for name, value in held.items())


@pytest.mark.parametrize("at", range(len(values())))
def test_instances_come_back(at: int) -> None:
    """Each kind of instance is restored by every method of the codec."""
    value = values()[at]
    encode, decode = CODEC.encoder(SHAPES), CODEC.decoder(SHAPES)
    for raw in (encode(value), encode(value), *CODEC.many_encoder(SHAPES)([value, value])):
        assert raw.endswith(b".")
        assert same(decode(raw), value)
        assert same(decode(raw + b"behind"), value)
        assert all(same(found, value) for found in CODEC.many_decoder(SHAPES)([raw, raw + b"x"]))
    for before in ([None, None], [encode(value)] * 2, [encode(1), encode("a")], [encode(1)] * 2):
        after = stepper(CODEC)([value, value], list(before), lambda new, old: new)
        assert all(same(decode(raw), value) for raw in after if raw is not None)
    seen: list[Any] = []
    stepper(CODEC)([0, 1], [encode(value)] * 2, lambda new, old: seen.append(old))
    assert all(same(found, value) for found in seen)


@dataclass(eq=False)
class Shared:
    """A mutable number with a hash."""

    count: int

    def __float__(self) -> float:
        return float(self.count)


@pytest.mark.parametrize(
    "usual",
    [
        1,
        (1, 2.0),
        Plain(1, 2.0),
        (Plain(1, 2.0), 5),
        Frozen("a", Place(1)),
        (Boxed("a"), 5),
        Boxed(["a"]),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "other",
    [
        *(None, True, 2**70, "x", (1, True), (1, 2**70), (1.0, 2.0), (1, 2.0, 3), [1, 2.0]),
        *(Plain(1, True), Plain(2**70, 1.0), Plain([1], 0.5), (Plain(1, 2.0), 5, 6)),  # type: ignore[arg-type]
        *((Place(1), 5), (Plain(1, 2.0), Level.LOW), Boxed(Status.OPEN), (5, Plain(1, 2.0))),
        *((1, Shared(3)), Plain(1, Shared(3)), (Extra(3), 5), Extra(3), Boxed(0x93)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_is_stepped_together_stays_as_it_was(usual: Any, other: Any) -> None:
    """A value is stored as it was when the step returned it."""
    decode = CODEC.decoder(SHAPES)
    outcomes = [usual, usual, other, usual, other, other, usual]
    wanted = [None if value is None else decode(CODEC.encoder(SHAPES)(value)) for value in outcomes]
    for before in (usual, None):
        record = None if before is None else CODEC.encoder(SHAPES)(before)
        shown = [deepcopy(value) for value in outcomes]

        def step(at: int, old: Any, shown: list[Any] = shown) -> Any:
            spoil(shown[at - 1] if at else None)  # a later step changes what has been stored
            return shown[at]

        after = stepper(CODEC)(list(range(len(shown))), [record] * len(shown), step)
        for raw, value in zip(after, wanted, strict=True):
            assert raw is None if value is None else raw is not None and same(decode(raw), value)


def spoil(value: Any) -> None:
    """Change a value in place as far as possible."""
    for part in (value, *value) if isinstance(value, tuple) else (value,):
        if isinstance(part, list):
            part.append("spoilt")
        elif isinstance(part, (Plain, Shared, Boxed, Extra)):
            for name in vars(part):
                spoil(getattr(part, name))
                object.__setattr__(part, name, "spoilt")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((Plain(1, 2.0), 3), r"Plain \(at \[0\]\) is of a class of data that the program does"),
        ([1, {"x": Place(1)}], r"a .*Place \(at \[1\]\['x'\]\) is of a class of data that"),
        (defaultdict(lambda: 0), r"with the factory <lambda> is not plain data: .* int"),
        (Plain([1, object()], 1), r"a builtins.object \(at .count\[1\]\) is not plain"),  # type: ignore[arg-type]
        (Frozen("a", Place(print, 1)), r"function_or_method \(at .place.x\) is n"),  # type: ignore[arg-type]
    ],
    ids=["unnamed", "path", "factory", "field", "nested"],
)  # fmt: skip
def test_refused(value: Any, text: str) -> None:
    """Errors name the part and its place in the value; the encoder continues."""
    codec = DataValues() if "is of a class of data" in text else CODEC
    encode = codec.encoder(SHAPES)
    for _ in range(2):
        with pytest.raises(NotPlainError, match=text):
            encode(value)
        with pytest.raises(NotPlainError, match=text):
            codec.many_encoder(SHAPES)([value])
        with pytest.raises(NotPlainError, match=text):
            stepper(codec)([value], [None], lambda new, old: new)
        assert codec.decoder(SHAPES)(encode(("a", 1))) == ("a", 1)


def test_an_instance_in_itself_is_refused() -> None:
    """A cycle of instances is rejected."""
    circle = Boxed[Any](None)
    circle.inside = circle
    with pytest.raises(TypeError, match="an instance of a class of data in it refers to itself"):
        CODEC.encoder(SHAPES)(circle)


def test_unset_field_is_refused() -> None:
    """The error names a field that is not set."""
    unset = Slotted.__new__(Slotted)
    with pytest.raises(TypeError, match=r"field 'name' of a .*Slotted is not set"):
        CODEC.encoder(SHAPES)(unset)


def test_classes_that_hold_more_than_fields_are_no_data() -> None:
    """A dataclass that is also a dict or an exception would lose content."""

    @dataclass
    class Mapping(dict[str, int]):
        name: str = "x"

    named = Classes(named={(Mapping.__module__, Mapping.__qualname__): Mapping})
    with pytest.raises(
        NotPlainError, match="is not plain data, nor an instance of a class of data"
    ):
        DataValues(named and named).encoder(SHAPES)(Mapping())


def test_dataclass_that_was_sent_by_value() -> None:
    """A class with copied markers is stored, placed and compared by its fields."""

    @dataclass(frozen=True)
    class Sent:
        name: str
        count: int = 3

    whole = make_dataclass("Whole", ["name", "count"], frozen=True)
    for each in Sent.__dataclass_fields__.values():
        for mark in "_field_type", "default", "default_factory":
            setattr(each, mark, copy(getattr(each, mark)))
    assert dataclasses.fields(Sent) == ()
    classes = Classes(named={(Sent.__module__, Sent.__qualname__): Sent})
    values = DataValues(classes)
    encode, decode = values.encoder(SHAPES), values.decoder(SHAPES)
    assert decode(encode(Sent("a", 1))) == Sent("a", 1)
    assert fields_of(Sent) == {"name": False, "count": True}
    assert encode_key(Sent("a")) != encode_key(Sent("b"))
    assert decode_key(encode_key(Sent("a")), classes) == Sent("a")
    assert stable_hash(Sent("a")) == stable_hash(whole("a", 3))


def test_local_classes_are_found_by_their_name() -> None:
    """A local class is registered by itself; another with its name and fields may replace it."""

    def define() -> Any:
        @dataclass
        class Local:
            x: int

        return Local

    first, second = define(), define()
    codec = DataValues(Classes(named={(first.__module__, first.__qualname__): first}))
    found = codec.decoder(SHAPES)(codec.encoder(SHAPES)(second(1)))
    assert type(found) is first
    other = make_dataclass("Local", ["y"])
    other.__module__, other.__qualname__ = first.__module__, first.__qualname__
    with pytest.raises(NotPlainError, match="registered under the same name, with other fields"):
        codec.encoder(SHAPES)(other(1))


@pytest.fixture
def app() -> Iterator[Any]:
    """A module as a program, whose classes tests change as another release would."""
    module: Any = types.ModuleType("stored_app")
    sys.modules["stored_app"] = module
    yield module
    del sys.modules["stored_app"]


def define(app: Any, name: str, fields: list[Any], **options: Any) -> Any:
    kind = make_dataclass(name, fields, **options)
    kind.__module__ = "stored_app"
    setattr(app, name, kind)
    return kind


APP = Classes(frozenset({"stored_app"}))


def test_changed_fields(app: Any) -> None:
    """Fields are matched by name; a new one has its default, or an error names it."""
    was = define(app, "Session", ["a", ("b", int)])
    raws = [DataValues(APP).encoder(SHAPES)(value) for value in (was(1, "x"), [was(1, "x")])]

    def read(classes: Classes = APP) -> list[Any]:
        found = [DataValues(classes).decoder(SHAPES)(raw) for raw in raws]
        return [found[0], found[1][0]]

    now = define(app, "Session", ["b", "a"])
    assert read() == [now("x", 1)] * 2
    now = define(app, "Session", ["a", "b", ("c", list, field(default_factory=list))])
    assert read() == [now(1, "x", [])] * 2
    gone, new = "the field 'b' is gone", "the field '{}' is new and has no default"
    for fields, text in (
        (["a"], f"{gone}: it has a"),
        (["a", "renamed"], f"{gone}, {new.format('renamed')}: it has a, renamed"),
        (["a", "b", "c"], f"{new.format('c')}: it has a, b, c"),
    ):
        now = define(app, "Session", fields)
        with pytest.raises(
            StoredClassError,
            match=rf"stored dataclass stored_app.Session has the fields a, b, but {text} now; "
            r"restore the class as it was, give it a class method migrate\(old\), or pass a "
            r"function upgrade\(name, fields\)",
        ):
            read()
    define(app, "Session", ["a", "renamed"])
    calls: list[Any] = []

    def upgrade(name: str, fields: dict[str, Any]) -> Any:
        calls.append((name, fields))
        return app.Session(fields["a"], fields["b"])

    assert read(Classes(frozenset({"stored_app"}), upgrade=upgrade)) == [app.Session(1, "x")] * 2
    assert calls == [("stored_app.Session", {"a": 1, "b": "x"})] * 2


VERSIONS: list[tuple[int, list[Any], int, list[Any], bool, str]] = [
    # version and fields, before and now; is there migrate; the result or the error
    (1, ["a", "b"], 1, ["a", "b"], True, "Session(a=1, b=2)"),
    (1, ["a", "b"], 2, ["a", "b"], True, "{'a': 1, 'b': 2} of version 1"),
    (2, ["a", "b"], 2, ["a", "b"], False, "Session(a=1, b=2)"),
    (2, ["a", "b"], 3, ["b", "c"], True, "{'a': 1, 'b': 2} of version 2"),
    (1, ["a", "b"], 1, ["b", "c"], True, "{'a': 1, 'b': 2} of version 1"),
    (1, ["a", "b"], 1, ["a", "b", ("c", int, 5)], True, "Session(a=1, b=2, c=5)"),
    (1, ["a", "b"], 1, ["b"], False, "the field 'a' is gone"),
    (1, ["a", "b"], 2, ["a", "b"], False, "it was stored by version 1 of the class, which is 2"),
    (3, ["a", "b"], 2, ["a", "b"], True, "by version 3 of the class, which is 2.*deploy that"),
    (1, ["a", "b"], 0, ["a", "b"], False, "state_version of .* least 1, got 0"),
]


@pytest.mark.parametrize(("before", "fields", "now", "fields_now", "has_migrate", "text"), VERSIONS)
def test_versions(
    app: Any,
    before: int,
    fields: list[Any],
    now: int,
    fields_now: list[Any],
    has_migrate: bool,
    text: str,
) -> None:
    """``migrate`` gets what an earlier version stored, and what does not fit the fields."""

    def migrate(old: OldFields) -> str:
        return f"{dict(old)} of version {old.version}"

    def version(number: int, names: list[Any]) -> Any:
        more = {"migrate": staticmethod(migrate)} if has_migrate else {}
        numbered = {} if number == 1 else {"state_version": number}
        return define(app, "Session", names, namespace={**numbered, **more})

    shapes = Shapes()
    encode = DataValues(APP).encoder(shapes)
    was = version(before, fields)
    raws = [encode(was(1, 2)), encode({"nested": was(1, 2)})]
    version(now, fields_now)
    decode = DataValues(APP).decoder(shapes)
    if text[0] in "S{":
        assert [str(decode(raws[0])), str(decode(raws[1])["nested"])] == [text, text]
        return
    for raw in raws:
        with pytest.raises(StoredClassError, match=text):
            decode(raw)


def test_migrate_that_fails(app: Any) -> None:
    """The error names the class, the version, the fields and what happened."""
    was = define(app, "Session", ["a"])
    raw = DataValues(APP).encoder(SHAPES)(was(1))

    def migrate(kind: Any, old: OldFields) -> Any:
        return old["b"]

    define(app, "Session", ["c"], namespace={"migrate": classmethod(migrate)})
    with pytest.raises(
        StoredClassError,
        match=r"migrate of stored_app.Session failed for an instance of version 1 with the fields "
        r"a: KeyError: 'b'; let it accept these fields",
    ):
        DataValues(APP).decoder(SHAPES)(raw)


def test_methods_that_do_not_migrate(app: Any) -> None:
    """A method of instances has another purpose, and a field is not the version."""
    was = define(app, "Session", ["a", ("state_version", int, 7)])
    raw = DataValues(APP).encoder(SHAPES)(was(1))
    assert DataValues(APP).decoder(SHAPES)(raw) == was(1, 7)
    define(app, "Session", ["b"], namespace={"migrate": lambda self: self})
    with pytest.raises(StoredClassError, match="the field 'a' is gone"):
        DataValues(APP).decoder(SHAPES)(raw)


def test_classes_that_are_gone(app: Any) -> None:
    """Missing classes and members are errors, or passed to the upgrade function."""
    was = define(app, "Session", ["a"])
    app.Colour = Enum("Colour", "RED BLUE", module="stored_app")
    encode = DataValues(APP).encoder(SHAPES)
    raws = [encode(was(1)), encode(app.Colour.RED)]
    del app.Session
    with pytest.raises(
        StoredClassError, match=r"Session has the fields a, but the program registers no"
    ):
        DataValues(APP).decoder(SHAPES)(raws[0])
    app.Session = int
    with pytest.raises(StoredClassError, match=r"stored_app.Session is not a class of data now"):
        DataValues(APP).decoder(SHAPES)(raws[0])
    app.Colour = Enum("Colour", "BLUE", module="stored_app")
    with pytest.raises(
        StoredClassError,
        match=r"has the member .RED., which is not one of its members now \(BLUE\)",
    ):
        DataValues(APP).decoder(SHAPES)(raws[1])
    upgrading = Classes(frozenset({"stored_app"}), upgrade=lambda name, fields: (name, fields))
    found = list(map(DataValues(upgrading).decoder(SHAPES), raws))
    assert found == [("stored_app.Session", {"a": 1}), ("stored_app.Colour", {"name": "RED"})]


def test_reading_makes_no_class_that_is_not_named() -> None:
    """Bytes cannot select a class that is not registered."""
    raw = CODEC.encoder(SHAPES)(Plain(1, 2.0))
    with pytest.raises(StoredClassError, match="the program registers no such class"):
        DataValues().decoder(SHAPES)(raw)
    with pytest.raises(StoredClassError, match="the program registers no such class"):
        DataValues(Classes(frozenset({"json"}))).decoder(SHAPES)(raw)


def _persistent(*pid: Any) -> bytes:
    """Return the opcodes that push an instance."""
    return pickle.dumps(pid, 5)[2:-1].partition(b"\x95")[2][8:] + b"Q"


GUARDED = f"\x93d{__name__} Guarded value"


@pytest.mark.parametrize(
    "then",
    [b"}b", b"}\x8c\x01aK\x01s\x86b", b"N}\x8c\x05valueK\x02s\x86b", b"K\x01a", b"(K\x01e",
     b"K\x01K\x01s", b")R", b")\x81", b"(K\x01\x90"],
    ids=["build", "state", "slots", "append", "appends", "setitem", "call", "new", "add"],
)  # fmt: skip
def test_pickles_do_nothing_to_instances(then: bytes) -> None:
    """No opcode calls a method of an instance or its class."""
    whole = b"\x80\x05" + _persistent(GUARDED, 1)
    assert CODEC.decoder(SHAPES)(whole + b".") == Guarded(1)
    with pytest.raises(UndecodableValueError):
        CODEC.decoder(SHAPES)(whole + then + b".")


def _named(module: str, name: str) -> bytes:
    return (
        b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [("collections", "Counter"), ("collections", "OrderedDict"), ("datetime", "datetime"),
     ("decimal", "Decimal"), ("checkpoint.state_store.plain_pickles", "_fraction"),
     ("checkpoint.state_store.plain_pickles", "_defaultdict")],
)  # fmt: skip
def test_pickles_change_no_class(module: str, name: str) -> None:
    """A pickle cannot set attributes of the names that it may use."""
    known: Any = getattr(sys.modules[module], name)
    before = dict(vars(known)), getattr(known, "__defaults__", None)
    for attribute in ("__init__", "__defaults__", "__call__", "_call", "most_common"):
        for state in (b"N}%s)s\x86b", b"}%s)sb"):
            text = b"\x8c" + bytes([len(attribute)]) + attribute.encode()
            raw = b"\x80\x05" + _named(module, name) + state % text + b"."
            with pytest.raises(UndecodableValueError):
                CODEC.decoder(SHAPES)(raw)
    assert (dict(vars(known)), getattr(known, "__defaults__", None)) == before
    assert collections.Counter("aab") == {"a": 2, "b": 1}


def test_only_builtin_factories() -> None:
    """A defaultdict may only have a factory of a short list."""
    raw = CODEC.encoder(SHAPES)(defaultdict(int))
    for name in (b"set", b"xyz"):
        changed = raw.replace(b"\x8c\x03int", b"\x8c\x03" + name)
        if name == b"set":
            assert CODEC.decoder(SHAPES)(changed).default_factory is set
        else:
            with pytest.raises(UndecodableValueError, match=r".xyz. is not a factory"):
                CODEC.decoder(SHAPES)(changed)


def test_damaged_instances() -> None:
    """Each flipped bit gives another value or a documented error."""
    decode = CODEC.decoder(SHAPES)
    for value in (Plain(1, 2.0), (Child("c", ["x"]), 5), [Status.OPEN, Row(a=1)]):
        raw = CODEC.encoder(SHAPES)(value)
        for at in range(len(raw)):
            for bit in range(8):
                damaged = bytearray(raw)
                damaged[at] ^= 1 << bit
                with contextlib.suppress(UndecodableValueError, StoredClassError):
                    decode(bytes(damaged))


def test_records_of_instances_are_short() -> None:
    """A record has the digest of its schema, which is stored once."""
    shapes = Shapes()
    encode = CODEC.encoder(shapes)
    for plain, value in (((1, 2.0), Plain(1, 2.0)), (("x", 2.0, 5), (Plain("x", 2.0), 5))):  # type: ignore[arg-type]
        assert len(encode(value)) == len(encode(plain)) + 9
    again = Shapes({"values": "data-1", **shapes.to_codec()})
    assert again.to_codec() == shapes.to_codec()
    assert sorted(shapes.to_codec().values()) == [
        f"(d{__name__} Plain count total\n",
        f"d{__name__} Plain count total",
    ]
    assert CODEC.decoder(again)(encode(Plain(1, 2.0))) == Plain(1, 2.0)


def test_shapes_without_their_schema() -> None:
    """A record without its schema is rejected, never decoded as another class."""
    shapes = Shapes()
    raw = CODEC.encoder(shapes)(Plain(1, 2.0))
    [(name, schema)] = shapes.to_codec().items()
    for codec in ({}, {name: schema.replace("Plain", "Other")}, {name + "0": schema}):
        for decode in (
            CODEC.decoder(Shapes(codec)),
            lambda raw: list(CODEC.many_decoder(Shapes())([raw])),
        ):
            with pytest.raises(UndecodableValueError, match=f"schema of its {name} is not stored"):
                decode(raw)


def test_schemas_are_bounded() -> None:
    """With too many shapes, further values are pickled."""
    shapes = Shapes()
    encode, decode = CODEC.encoder(shapes), CODEC.decoder(shapes)
    for width in range(1, 31):
        for at in range(width):
            value = (*range(at), Plain(1, 2.0), *range(at, width))
            assert decode(encode(value)) == value
    assert 29_000 < sum(map(len, shapes.to_codec().values())) <= 30_000


@pytest.mark.usefixtures("no_sync")
def test_schemas_go_with_the_content(tmp_path: Path) -> None:
    """Changelogs and snapshots have the schemas of all records."""
    store, files = StoreId("stream-1", "classes", "default", 0, 1), open_files(tmp_path / "files")

    def host(name: str) -> StateStore:
        return StateStore(LmdbBackend(files, str(tmp_path / name)), CODEC)

    version_id = EMPTY
    for value in (Plain(1, 2.0), (Place(1), 5), 7):
        with host("first").writer(store, version_id) as writer:
            writer.put(repr(value), value)
            version_id = writer.commit().version_id
    for name in ("from changelogs", "from a snapshot"):
        with host(name).reader(store, version_id) as reader:
            assert [value for _, value in reader.items()] == [(Place(1), 5), 7, Plain(1, 2.0)]
        snapshot_if_due(
            LmdbBackend(files, str(tmp_path / name)), store, version_id, SnapshotRule(1, 1)
        )
        for changelog in (tmp_path / "files").rglob("*.changes"):
            changelog.unlink()


@pytest.mark.parametrize(
    "schema",
    [
        Schema("dataclass", "app", "Total", ("count", "total")),
        Schema("attrs", "app.states", "f.<locals>.Total", (), ("cached",)),
        Schema("row", "pyspark.sql.types", "Row", ("", "a b", '"', "\n", "\x85", "é", "\ud800")),
        Schema("dataclass", "app", "Empty", ()),
        Schema("dataclass", "app", "Total", ("count",), (), 12),
    ],
    ids=["fields", "others", "any text", "none", "version"],
)  # fmt: skip
def test_schema_is_words(schema: Schema) -> None:
    """A schema is a short text of kind, class and fields, whatever their names."""
    text = schema.to_text()
    assert schema_of_text(text) == schema
    assert text.isprintable()
    for wrong in ("x" + text[1:], text + " ", text + '  "', text[:1], text[:4] + "(" + text[5:]):
        with pytest.raises(ValueError, match=r"is not|Unterminated"):
            schema_of_text(wrong)

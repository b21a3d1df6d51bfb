"""Keys of every kind that a stream may have, importable by any process."""

# ruff: noqa: DTZ001 - moments without a zone are keys too

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

from dstreams.spark.stable_hash import stable_hash


class Colour(Enum):
    RED = 1
    GREEN = "green"


class Level(IntEnum):
    LOW = 1
    HIGH = 7


class Name(str, Enum):
    ANNA = "anna"


class Right(Flag):
    READ = 1
    WRITE = 2


class Holiday(date, Enum):
    NEW_YEAR = 2024, 1, 1


class Point(NamedTuple):
    x: float
    y: str


class Word(str):
    """Text of a kind of its own."""

    __slots__ = ()


class Caseless(str):
    """Text that equals itself in capitals."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caseless) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return len(self)


@dataclass(frozen=True)
class User:
    name: str
    number: int
    note: str = field(default="", compare=False)


class Admin(User):
    """Equal by the fields of its base."""


@dataclass(unsafe_hash=True)
class Device:
    name: str
    seen: int = field(default=0, hash=False)


@dataclass(frozen=True)
class Mail:
    """A frozen dataclass that says itself what is equal."""

    address: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mail) and self.address.lower() == other.address.lower()

    def __hash__(self) -> int:
        return len(self.address)


class Cell:
    """A class that hashes itself, by its value."""

    def __init__(self, row: int, column: int) -> None:
        self.place = (row, column)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.place == other.place

    def __hash__(self) -> int:
        return 31 * self.place[0] + self.place[1]


class Autumn(tzinfo):
    """UTC+2 until 3 o'clock of 2024-10-27, then UTC+1: the hour before 3 comes twice."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if moment is None:
            return None
        wall = moment.replace(tzinfo=None, fold=0)
        summer = wall < datetime(2024, 10, 27, 3 - moment.fold)
        return timedelta(hours=2 if summer else 1)

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return "Autumn"


AUTUMN = Autumn()
EAST = timezone(timedelta(hours=5, minutes=30))

SAMPLES: dict[str, Any] = {
    "none": None,
    "empty text": "",
    "text": "spark",
    "not ascii": "Zürich 東京",
    "lone surrogate": "\ud800",
    "str subclass": Word("spark"),
    "caseless": Caseless("Spark"),
    "bytes": b"spark",
    "zero": 0,
    "minus one": -1,
    "big": 1 << 70,
    "minus big": -(1 << 70),
    "true": True,
    "half": 0.5,
    "tenth": 0.1,
    "minus zero": -0.0,
    "infinity": float("inf"),
    "complex": 1.5 - 2j,
    "decimal": Decimal("2.50"),
    "fraction": Fraction(-22, 7),
    "empty tuple": (),
    "tuple": ("spark", 1, None),
    "nested": (("a", (1, 2.5)), frozenset({"x", "y", ("z", 1)})),
    "frozenset": frozenset({"a", "b", "c", 1, None}),
    "named tuple": Point(1.0, "y"),
    "uuid": UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0),
    "enum": Colour.GREEN,
    "int enum": Level.HIGH,
    "str enum": Name.ANNA,
    "flag": Right.READ,
    "flags": Right.READ | Right.WRITE,
    "date enum": Holiday.NEW_YEAR,
    "date": date(2024, 2, 29),
    "time": time(23, 59, 58, 7),
    "aware time": time(1, 30, tzinfo=EAST),
    "timedelta": timedelta(days=-3, microseconds=5),
    "datetime": datetime(2024, 2, 29, 12, 30, 15, 250),
    "aware datetime": datetime(2024, 2, 29, 12, 30, tzinfo=EAST),
    "first moment": datetime.min.replace(tzinfo=EAST),
    "last moment": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
    "hour that comes twice": datetime(2024, 10, 27, 2, 30, tzinfo=AUTUMN),
    "same hour again": datetime(2024, 10, 27, 2, 30, tzinfo=AUTUMN, fold=1),
    "frozen dataclass": User("anna", 7, "first"),
    "heir of a dataclass": Admin("anna", 7),
    "hashed dataclass": Device("door", 3),
    "dataclass with its own hash": Mail("anna@example.org"),
    "own hash": Cell(2, 3),
}


def print_hashes() -> None:
    """Print what each sample hashes to here."""
    for name, key in SAMPLES.items():
        sys.stdout.write(f"{name}: {stable_hash(key)}\n")

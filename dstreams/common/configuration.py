"""How settings and options are declared, read from text, and refused.

A setting is a field of a class derived from :class:`Configuration`: its key, the kind of its value,
and its default as a user would write it. An option of a source or a sink has a name and a kind.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from dstreams.common.durations import parse_duration_ms
from dstreams.errors import InvalidStreamError

C = TypeVar("C", bound="Configuration")


@dataclass(frozen=True)
class Kind:
    """A kind of values: the rule for messages, a test of values, and a parser of texts.

    A text stands for no value if *parse* raises a ValueError or returns one that is not allowed.
    Messages do not show a value that is secret. The unit is that of a bare number, for papers.
    """

    rule: str
    allows: Callable[[Any], bool]
    parse: Callable[[str], Any] = str
    is_secret: bool = False
    unit: str = ""

    def read(self, text: str, name: str) -> Any:
        """Return the value that the text of the setting or option *name* stands for."""
        try:
            value = self.parse(text)
        except ValueError:
            raise self._refused(text, name) from None
        if value is None or self.allows(value):
            return value
        raise self._refused(text, name)

    def require(self, value: Any, name: str) -> Any:
        """Return *value*, which a program gives for *name*."""
        if not self.allows(value):
            raise self._refused(value, name)
        return value

    def of(self, value: Any, name: str) -> Any:
        """Return *value*, or what it stands for where it is a text."""
        return self.read(value, name) if isinstance(value, str) else self.require(value, name)

    def _refused(self, value: object, name: str) -> InvalidStreamError:
        shown = "not allowed" if self.is_secret else repr(value)
        return InvalidStreamError(f"{name} is {shown}; use {self.rule}")


def choice(*allowed: str) -> Kind:
    """One of some words, which are found whatever the case of their letters."""
    found = {word.lower(): word for word in allowed}
    rule = f"one of {', '.join(allowed)}"
    return Kind(rule, allowed.__contains__, lambda text: found.get(text.strip().lower(), text))


def whole_number(least: int) -> Kind:
    """A whole number of at least *least*."""

    def allows(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Kind(f"a whole number of at least {least}", allows, int)


def amount(rule: str, allows: Callable[[float], bool]) -> Kind:
    """A finite number by a rule of its own."""

    def is_allowed(value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and allows(value)

    return Kind(rule, is_allowed, float)


def duration(default_unit: str = "", least_ms: int = 1) -> Kind:
    """A duration in milliseconds; as text in words, or a bare number of *default_unit*."""
    rule = f"a duration of at least {least_ms} ms, such as '10s' or '1 hour 30 minutes'"

    def parse(text: str) -> int:
        return parse_duration_ms(text, default_unit=default_unit)

    return Kind(rule, whole_number(least_ms).allows, parse, unit=default_unit)


def _rate(text: str) -> int | None:
    """Spark takes zero and less for no limit."""
    number = int(text)
    return number if number > 0 else None


COUNT = whole_number(1)
RATE = Kind(COUNT.rule, COUNT.allows, _rate, unit="records a second")
FLAG = Kind(
    "one of true, false",
    lambda value: isinstance(value, bool),
    lambda text: {"true": True, "false": False}.get(text.strip().lower(), text),
)
TEXT = Kind(
    "a text that is not empty", lambda value: isinstance(value, str) and bool(value.strip())
)
PATH = Kind("a path or a URL", TEXT.allows)
NAMES = Kind(
    "names separated by commas",
    lambda value: isinstance(value, tuple),
    lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
)


def setting(
    key: str, kind: Kind, default: str | None = None, also: str | None = None, unit: str = ""
) -> Any:
    """Return the field of a setting.

    *default* is as a user would write it; *also* is another key, which counts where *key* is not
    set; *unit* says what is counted. A secret is not printed with the settings.
    """
    value = None if default is None else kind.read(default, key)
    return dataclasses.field(
        default=value,
        repr=not kind.is_secret,
        metadata={
            "key": key,
            "kind": kind,
            "default": default,
            "also": also,
            "unit": unit or kind.unit,
        },
    )


@dataclass(frozen=True)
class Configuration:
    """Base of settings: frozen, checked, and read from the pairs of a SparkConf."""

    without_choice: ClassVar[Mapping[str, tuple[str | None, str]]] = {}
    """Keys that promise what is not there: the only value that can be, and why."""

    def __post_init__(self) -> None:
        for name, declared in self.declared().items():
            value = getattr(self, name)
            if value is not None or declared["default"] is not None:
                declared["kind"].require(value, name)

    @classmethod
    def declared(cls) -> dict[str, Mapping[str, Any]]:
        """Return what :func:`setting` was told of each field, by its name."""
        known = dataclasses.fields(cls)
        return {field.name: field.metadata for field in known if "key" in field.metadata}

    @classmethod
    def defaults(cls) -> dict[str, str | None]:
        """Return the defaults of the settings, as a user would write them, by key."""
        return {declared["key"]: declared["default"] for declared in cls.declared().values()}

    @classmethod
    def from_conf(cls: type[C], conf: Mapping[str, str]) -> C:
        """Read the settings from the pairs of a SparkConf; other keys are ignored."""
        for key, (only, why) in cls.without_choice.items():
            if key in conf and conf[key].strip() != only:
                raise InvalidStreamError(f"{key} is {conf[key]!r}, but {why}; remove the setting")
        values = {}
        for name, declared in cls.declared().items():
            key = declared["key"]
            text = conf.get(key, conf.get(declared["also"]))
            if text is not None:
                values[name] = declared["kind"].read(text, key)
        return cls(**values)

    def without_secrets(self: C) -> C:
        """Return these settings with none of their secrets, to be kept where others may look."""
        declared = self.declared().items()
        return self.replace(**{name: None for name, each in declared if each["kind"].is_secret})

    def replace(self: C, **changes: Any) -> C:
        """Return these settings with *changes*, by field name."""
        return dataclasses.replace(self, **changes)


def read_options(given: Mapping[str, Any], kinds: Mapping[str, Kind], what: str) -> dict[str, Any]:
    """Return the values of options by name; the case of the letters of a name does not matter.

    *kinds* has all options that there are; *what* has them, for messages.
    """
    names = {name.lower(): name for name in kinds}
    options = {}
    for key, value in given.items():
        name = names.get(key.lower()) if isinstance(key, str) else None
        if name is None:
            there_are = f"there are {', '.join(kinds)}"
            raise InvalidStreamError(
                f"{what} has no option {key!r}; {similar(key, kinds)}{there_are}"
            )
        if value is not None:
            text = os.fspath(value) if isinstance(value, os.PathLike) else value
            options[name] = kinds[name].of(text, f"{name} of {what}")
    return options


def similar(key: object, known: Iterable[str]) -> str:
    """Return ``did you mean ...? `` with the name that is nearest to *key*, or nothing."""
    near = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(key).lower(), near, 1, cutoff=0.8)
    return f"did you mean {near[found[0]]}? " if found else ""

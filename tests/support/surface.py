"""What a program could notice when one class stands in for another: names, kinds, parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def public(names: Any) -> list[str]:
    return sorted(name for name in names if not name.startswith("_"))


def kind(owner: type, name: str) -> str:
    """Return what is found under *name*: a class method, a property, a method."""
    return type(inspect.getattr_static(owner, name)).__name__


def parameters(function: Any) -> list[inspect.Parameter]:
    return [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]


def is_same(theirs: inspect.Parameter, ours: inspect.Parameter) -> bool:
    if theirs.default is inspect.Parameter.empty:
        ours = ours.replace(default=theirs.default)
    return ours == theirs


def call_differences(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Yield the parameters of *theirs* that *ours* has not, has elsewhere or with other defaults.

    What ours has more of is named as well, unless it is keyword-only.
    """
    expected, found = parameters(theirs), parameters(ours)
    for place, parameter in enumerate(expected):
        if place >= len(found) or not is_same(parameter, found[place]):
            yield f"{name}({parameter.name})"
    for parameter in found[len(expected) :]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            yield f"{name}({parameter.name}) more"


def class_differences(
    name: str, theirs: type, ours: type, *, is_made_by_programs: bool = True
) -> Iterator[str]:
    """Yield what differs in the public names of two classes, and in the making of an object."""
    if is_made_by_programs:
        yield from call_differences(name, theirs, ours)
    for member in public(dir(theirs)):
        full = f"{name}.{member}"
        if not hasattr(ours, member) or kind(theirs, member) != kind(ours, member):
            yield full
            continue
        expected, found = getattr(theirs, member), getattr(ours, member)
        if callable(expected) and expected is not found:
            yield from call_differences(full, expected, found)

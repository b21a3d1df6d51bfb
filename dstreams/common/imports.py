"""Imports of our own packages: public names loaded on first use, and user files that hide us.

A Python worker imports the packages that contain the module of its task. Importing all of their
public names too, which only drivers need, would dominate the start of a worker.

Python searches the directory of a program first, so a ``checkpoint.py`` or a package ``checkpoint``
there hides the installed one. A directory of that name without Python files, such as one that holds
a checkpoint, does not.

>>> from dstreams.common.imports import lazy_names
>>> load, names = lazy_names("json", {"JSONDecoder": "json.decoder"})
>>> load("JSONDecoder").__name__
'JSONDecoder'
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_HOME = str(Path(__file__).absolute().parents[2])

_PARTS = {"checkpoint": "state_store", "dstreams": "context"}
"""A module of each package of dstreams, by which it is recognized."""


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package; *homes* has the module of each name."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        vars(sys.modules[package])[name] = value
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names


def require_own_checkpoint() -> None:
    """Require that ``import checkpoint`` finds the package of dstreams, without importing it."""
    loaded = sys.modules.get("checkpoint")
    found = find_spec("checkpoint") if loaded is None else loaded.__spec__
    if found is not None and not _is_own(found):
        raise ImportError(_problem(found), name="checkpoint", path=_place(found))


def shadow_in(directory: str) -> str | None:
    """Return the problem with a directory that Python is about to search first, or None."""
    for name in _PARTS:
        found = PathFinder.find_spec(name, [os.path.abspath(directory)])
        if found is not None and found.origin is not None and not _is_own(found):
            return _problem(found)
    return None


def _is_own(found: ModuleSpec) -> bool:
    places = found.submodule_search_locations
    if places is None:
        return False
    if os.path.join(_HOME, found.name) in places:
        return True
    # The same files under another path, or another copy of them.
    return PathFinder.find_spec(f"{found.name}.{_PARTS[found.name]}", list(places)) is not None


def _problem(found: ModuleSpec) -> str:
    place, name = _place(found), found.name
    remedy = "rename it, and its imports"
    if found.submodule_search_locations is not None and found.origin is None:
        # Hides only an editable installation, which Python searches last.
        remedy = "rename it, or install dstreams without -e"
    return (
        f"{place} is imported instead of the package {name!r} of dstreams, because Python searches "
        f"{os.path.dirname(place)} first; {remedy}"
    )


def _place(found: ModuleSpec) -> str:
    if found.submodule_search_locations:
        return os.path.abspath(next(iter(found.submodule_search_locations)))
    return os.path.abspath(found.origin or found.name)

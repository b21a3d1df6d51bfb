"""Public names of a package whose modules are loaded when a name is first used.

A Python worker loads the packages around the one module that a task is of. Loading all that is
public, which only drivers need, would be most of a worker's start.

>>> from dstreams.common.lazy_names import lazy_names
>>> load, names = lazy_names("json", {"JSONDecoder": "json.decoder"})
>>> load("JSONDecoder").__name__
'JSONDecoder'
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


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

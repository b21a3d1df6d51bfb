"""Public names of a package whose modules are loaded when a name is first used.

Before a Python worker can load the one module that a task is of, it loads the packages around it.
If these loaded all that is public, each worker would load the whole front, which only drivers need:
most of a worker's start.

>>> from dstreams.lazy_names import lazy_names
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
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: name of the package.
        homes: the module of each name that it hands out.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        vars(sys.modules[package])[name] = value
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names

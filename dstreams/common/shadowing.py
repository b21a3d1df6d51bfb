"""Files of a user's own that Python takes for a package of dstreams, because they have its name.

Python searches the directory of a program first, so ``checkpoint.py`` beside it, or a package
``checkpoint``, stands before the installed one. A directory of that name without Python files, such
as one that holds a checkpoint, does not.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

_HOME = str(Path(__file__).absolute().parents[2])

_PARTS = {"checkpoint": "state_store", "dstreams": "context"}
"""What each package of dstreams has, and another one of its name has not."""


def require_own_checkpoint() -> None:
    """Require that ``import checkpoint`` finds the package of dstreams. Nothing is imported for it.

    Raises:
        ImportError: it finds something else.
    """
    loaded = sys.modules.get("checkpoint")
    found = find_spec("checkpoint") if loaded is None else loaded.__spec__
    if found is not None and not _is_own(found):
        raise ImportError(_problem(found), name="checkpoint", path=_place(found))


def shadow_in(directory: str) -> str | None:
    """Return what is wrong with a directory that Python is about to search first, or None."""
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
    # The same files by another path, or another copy of them.
    return PathFinder.find_spec(f"{found.name}.{_PARTS[found.name]}", list(places)) is not None


def _problem(found: ModuleSpec) -> str:
    place, name = _place(found), found.name
    remedy = "rename it, and what imports it"
    if found.submodule_search_locations is not None and found.origin is None:
        # Only before an installation for editing, which is searched last of all.
        remedy = "rename it, or install dstreams without -e"
    return (
        f"{place} is imported in the place of the package {name!r} of dstreams, because Python "
        f"searches {os.path.dirname(place)} first; {remedy}"
    )


def _place(found: ModuleSpec) -> str:
    if found.submodule_search_locations:
        return os.path.abspath(next(iter(found.submodule_search_locations)))
    return os.path.abspath(found.origin or found.name)

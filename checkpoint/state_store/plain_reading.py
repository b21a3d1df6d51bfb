"""Pickles of plain data and of classes of data, read: what they name is looked up in a list.

Instances of classes of data are persistent ids. They are made when the pickle has been read to its
end, so that no operation of a pickle meets one.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NoReturn

from checkpoint.state_store.classes import Classes
from checkpoint.state_store.making import Maker
from checkpoint.state_store.plain_pickles import plain_names
from checkpoint.state_store.schemas import schema_of_id

_MAX_KNOWN = 256
_NAMES = plain_names()


class Held:
    """An instance of a class of data in a pickle that is being read.

    Args:
        text: the schema of its class.
        values: its fields, which may be held as well.
    """

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: tuple[Any, ...]) -> None:
        self.text = text
        self.values = values

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("an instance of a class of data has no other state")


class _DataUnpickler(pickle.Unpickler):
    """Finds what is plain, and holds instances of classes of data."""

    held = False

    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not plain data")
        return found

    def persistent_load(self, pid: Any) -> Held:
        if type(pid) is not tuple or not pid or type(pid[0]) is not str:
            raise pickle.UnpicklingError(f"{pid!r:.80} is no instance of a class")
        self.held = True
        return Held(pid[0], pid[1:])


MakerOf = Callable[[str], Maker]


def maker_of(classes: Classes) -> MakerOf:
    """Return the function that returns how instances of a schema, as text, are made."""
    known: dict[str, Maker] = {}

    def find(text: str) -> Maker:
        make = known.get(text)
        if make is None:
            if len(known) >= _MAX_KNOWN:
                known.clear()
            make = known[text] = classes.maker(schema_of_id(text))
        return make

    return find


def careful_loads(file: Any, find: MakerOf) -> Any:
    """Read a pickle of plain data and of instances of classes of data.

    Args:
        file: where it is.
        find: says how instances are made.
    """
    unpickler = _DataUnpickler(file)
    value = unpickler.load()
    return _Making(find).of(value) if unpickler.held else value


class _Making:
    """Puts instances in the place of those that are held, in containers as they are.

    Args:
        find: says how instances are made.
    """

    def __init__(self, find: MakerOf) -> None:
        self._find = find
        self._done: dict[int, tuple[Any, Any]] = {}  # what was there is kept, or ids come again

    def of(self, value: Any) -> Any:
        """Return a value with its instances."""
        kind = type(value)
        if kind is Held:
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

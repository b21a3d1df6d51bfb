"""The state variables of a stateful processor, read and written from outside of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from checkpoint.state_store import StateReader, StateWriter
from dstreams.state.stateful_processor import (
    TIMERS,
    HandleState,
    ListState,
    MapState,
    StatefulProcessorHandle,
    StateVariable,
    TimeMode,
    ValueState,
)
from dstreams.state.transform_groups import TransformGroups

KINDS: Mapping[str, type[ValueState] | type[ListState] | type[MapState]] = {
    "value": ValueState,
    "list": ListState,
    "map": MapState,
}
"""The classes of state variables, by the kinds in their definitions."""


def group_of(key: Any) -> tuple[Any, ...]:
    """Return the key that a processor gets: a tuple is the whole key, another its only part."""
    return key if type(key) is tuple else (key,)


@dataclass(frozen=True)
class GroupOfPlace:
    """From the key of an entry of a query's processor to the key that its records are placed by.

    That key is followed by *behind* parts, by the name of the variable.
    """

    behind: Mapping[str, int]

    @classmethod
    def of_described(cls, facts: Mapping[str, Any]) -> GroupOfPlace:
        """Return it for a processor that a checkpoint describes."""
        behind = {TIMERS: 1}
        for name, one in facts["stateVariables"].items():
            keys = sum(column["is_key"] for column in one["columns"])
            behind[name] = 2 if one["kind"] == "list" else keys
        return cls(behind)

    def __call__(self, place: tuple[Any, ...]) -> tuple[Any, ...]:
        return place[1 : len(place) - self.behind[place[0]]]


def content_of(state: ValueState | ListState | MapState) -> Any:
    """Return the row of a value state, the rows of a list state, or those of a map state by key."""
    if isinstance(state, ValueState):
        return state.get()
    if isinstance(state, ListState):
        return list(state.get())
    return dict(state.iterator())


@dataclass(frozen=True)
class StateOfProcessor:
    """Reads the state of one key of a processor, with *are_pairs* over a stream of pairs."""

    timeMode: TimeMode
    variables: Mapping[str, StateVariable]
    are_pairs: bool = False

    @classmethod
    def of(cls, groups: TransformGroups) -> StateOfProcessor:
        return cls(groups.timeMode, groups.variables, groups.are_pairs)

    @classmethod
    def of_described(cls, facts: Mapping[str, Any], *, are_pairs: bool = False) -> StateOfProcessor:
        """Return the reader for a processor that a checkpoint describes."""
        variables = {
            name: StateVariable.of_described(name, one)
            for name, one in facts["stateVariables"].items()
        }
        return cls(TimeMode.of(facts["timeMode"]), variables, are_pairs)

    def key(self, given: Any) -> Any:
        """Return the key by which records are placed."""
        return given if self.are_pairs else group_of(given)

    def entry(self, key: Any, reader: StateReader) -> tuple[dict[str, Any], int | None] | None:
        """Return the contents of the variables of a key, and its earliest timer; None if empty.

        A TTL that expires later than the version does not hide a row.
        """
        store = cast(StateWriter, reader)  # state variables only read from it here
        handle = StatefulProcessorHandle("a look-up", self.timeMode, store, self.variables)
        parts = (key,) if self.are_pairs else key
        handle.state, handle.key = HandleState.INITIALIZED, parts
        states = {name: KINDS[one.kind](handle, one) for name, one in self.variables.items()}
        found = {name: content_of(state) for name, state in states.items() if state.exists()}
        timers = (place[-1] for place, _ in reader.prefix((TIMERS, *parts)))
        due_ms = next(timers, None)
        return (found, due_ms) if found or due_ms is not None else None

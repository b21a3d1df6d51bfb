"""Conformance of ``update``, the way to change many keys of a state store."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from checkpoint.state_store.store import StateStore
from checkpoint.state_store.writer import StateWriter
from checkpoint.stored_state import EMPTY
from checkpoint.testing.claims import require_equal
from checkpoint.testing.programs import ID, Model, commit, require_stored


def _check_update(store: StateStore) -> None:
    root = commit(store, EMPTY, lambda writer: writer.put("a", 1, timeout_ms=7))
    with store.writer(ID, root) as writer:
        pairs = [("a", 1), ("b", 2), ("a", 3), (1, 4), (1.0, 5), ("c", 0), ("d", 0), ("d", 6)]
        writer.update(pairs, lambda given, value: (value or 0) + given or None)
        require_equal(writer.count(), 4, "count after update")
        reference = writer.commit().reference
    model: Model = {"a": (5, None), "b": (2, None), 1: (9, None), "d": (6, None)}
    require_stored(store, reference, model)
    with store.writer(ID, reference) as writer:
        writer.update([(key, 0) for key in ("a", "b", "x", 1)], lambda given, value: None)
        require_equal(list(writer.items()), [("d", 6)], "items after update removed the others")


def _check_order_of_updates(store: StateStore) -> None:
    """Steps are made in the order given, and keep what they return as it was then."""
    seen: list[int] = []
    scratch: list[int] = []

    def count(given: int, value: Any) -> Any:
        seen.append(given)
        return (value or 0) + 1

    def share(given: int, value: Any) -> Any:
        scratch.append(given)
        return (given, scratch) if given % 2 else scratch

    with store.writer(ID, EMPTY) as writer:
        writer.update(((f"key {number % 3_000}", number) for number in range(5_000)), count)
        require_equal(seen, list(range(5_000)), "order of the steps of an update")
        writer.update([(f"key {number}", number) for number in (1, 0, 3)], share)
        wanted = {"key 1": (1, [1]), "key 0": [1, 0], "key 3": (3, [1, 0, 3]), "key 7": 2}
        for key, value in wanted.items():
            require_equal(writer.get(key), value, f"value of {key!r} after update")


def _check_numbers(store: StateStore) -> None:
    """Numbers keep their types, one by one and many at once."""
    numbers = [0, 1, -1, 1.0, True, False, -0.0, math.inf, 2**63 - 1, 2**63, -(2**63) - 1, 1j]
    values: list[Any] = [*numbers, *((number, 0.5) for number in numbers), (1,) * 40, ((1,), 2)]
    alike: list[Any] = [(number, -number / 3) for number in range(100)]

    def put_all(writer: StateWriter) -> None:
        for key, value in enumerate(values):
            writer.put(key, value)
        writer.update(enumerate(alike, len(values)), lambda given, value: given)
        writer.update([(key, None) for key in range(len(values))], lambda given, value: value)

    with store.reader(ID, commit(store, EMPTY, put_all)) as reader:
        for key, value in enumerate([*values, *alike]):
            require_equal(repr(reader.get(key)), repr(value), f"value {value!r:.60}, type and sign")
        found = [value for _, value in reader.items()]
        require_equal(list(map(repr, found)), list(map(repr, [*values, *alike])), "all numbers")


UPDATE_CHECKS: tuple[Callable[[StateStore], None], ...] = (
    _check_update,
    _check_order_of_updates,
    _check_numbers,
)

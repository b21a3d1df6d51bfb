"""Conformance of state stores: what readers and writers promise."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import count as numbers
from typing import Any

from checkpoint.log.batch_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.store import (
    StateReader,
    StateStore,
    StateStoreUseError,
    StateWriter,
)
from checkpoint.testing import expect, require_equal, require_raises

ID = StoreId("stream-1", "counts", "default", 0, 1)

Model = dict[Any, tuple[Any, "int | None"]]
"""Value and timeout of each key: what a store must agree with."""


def require_content(view: StateReader, model: Model, what: str) -> None:
    """Raise ``AssertionError`` unless a reader or writer shows what *model* holds."""
    require_equal(view.count(), len(model), f"count of {what}")
    pairs = list(view.items())
    require_equal(len(pairs), len(model), f"number of items of {what}")
    require_equal(
        dict(pairs), {key: value for key, (value, _) in model.items()}, f"items of {what}"
    )
    for key, (value, timeout_ms) in model.items():
        require_equal(view.get(key), value, f"get({key!r:.60}) of {what}")
        require_equal(view.timeout_ms(key), timeout_ms, f"timeout_ms({key!r:.60}) of {what}")


def draws(seed: int) -> Iterator[int]:
    """Yield numbers that look like chance and are the same at each call."""
    state = seed
    for _ in numbers():
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def change_anything(writer: StateWriter, model: Model, draw: Iterator[int]) -> None:
    """Do one thing, chosen by *draw*, to a writer and to the model of it."""
    kind, number = next(draw) % 8, next(draw) % 40
    key: Any = (f"key-{number}", number, ("t", number))[number % 3]
    if kind < 4:
        timeout_ms = (None, next(draw) % 100)[kind % 2]
        writer.put(key, number, timeout_ms)
        model[key] = (number, timeout_ms)
    elif kind == 4:
        writer.remove(key)
        model.pop(key, None)
    elif kind == 5:
        writer.update([(key, number)], lambda given, value: (given, value)[value is not None])
        model[key] = (model[key][0] if key in model else number, None)
    elif kind == 6:
        until_ms = next(draw) % 100
        found = {key: (value, timeout_ms) for key, value, timeout_ms in writer.due(until_ms)}
        wanted = {k: (v, t) for k, (v, t) in model.items() if t is not None and t < until_ms}
        require_equal(found, wanted, f"due({until_ms}) in a random program")
        for due in found:
            writer.remove(due)
            del model[due]
    else:
        require_equal(writer.get(key), model.get(key, (None,))[0], "get in a random program")


def commit(
    store: StateStore, version_id: VersionId, change: Callable[[StateWriter], object]
) -> VersionId:
    """Commit what *change* does to a writer of a version, and return the one after it."""
    with store.writer(ID, version_id) as writer:
        change(writer)
        committed = writer.commit()
    require_equal(committed.version_id.version, version_id.version + 1, "version after a commit")
    return committed.version_id


def require_stored(store: StateStore, version_id: VersionId, model: Model) -> None:
    """Raise ``AssertionError`` unless a version is what *model* holds."""
    reader = store.reader(ID, version_id)
    require_equal(reader.version_id, version_id, "reference of a reader")
    require_content(reader, model, f"a reader of {version_id}")
    reader.close()
    reader.close()


_EQUAL_KEYS: tuple[tuple[Any, ...], ...] = (
    (1, 1.0, True, Decimal(1), Fraction(1), 1 + 0j),
    (0, -0.0, False, Decimal("-0")),
    (0.5, Fraction(1, 2), Decimal("0.5")),
    (2**70, float(2**70), Decimal(2**70)),
    (("a", 1), ("a", True), ("a", 1.0)),
    (frozenset({1, "b"}), frozenset({"b", 1.0})),
)
_DIFFERENT_KEYS: tuple[Any, ...] = (
    None, "", b"", (), frozenset(), "1", b"1", 1, ("1",), (1,), ((1,),), ("a", "b"), ("a\0b",),
    ("ab",), ("a", ""), ("a",), "a\0", "a", 0.1, Decimal("0.1"), 2**63, 2**63 - 1, -(2**63),
    -(2**63) - 1, math.inf, -math.inf, "long" * 200, "long" * 200 + "!", "\ud800", (None,),
    ((), ()), ((), (), ()),
)  # fmt: skip


def check_state_store(make_store: Callable[[], StateStore]) -> None:
    """Check that a state store does what its protocol promises.

    Args:
        make_store: returns a new and empty store at each call; its values are plain data.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    for check in _CHECKS:
        check(make_store())


def _check_values(store: StateStore) -> None:
    values = [0, "", [], (), {}, False, 0.0, b"", {"a": [1, (2, {3})]}, "x" * 100_000, [None]]

    def put_all(writer: StateWriter) -> None:
        for key, value in enumerate(values):
            writer.put(key, value)
            require_equal(writer.get(key), value, "get after put")
        writer.remove("never there")
        require_equal(writer.get("never there"), None, "get of a key that is not there")
        require_equal(writer.count(), len(values), "count after puts")

    version_id = commit(store, EMPTY, put_all)
    require_stored(store, version_id, {key: (value, None) for key, value in enumerate(values)})
    with store.writer(ID, version_id) as writer:
        require_raises(ValueError, lambda: writer.put(0, None), "put of None")
        for key, value in enumerate(values):
            expect(type(writer.get(key)) is type(value), f"type of {value!r:.60} must come back")


def _check_copies(store: StateStore) -> None:
    """Nobody's later changes of a value reach the store."""
    value = [1]

    def put(writer: StateWriter) -> None:
        writer.put("a", value)
        value.append(2)
        got = writer.get("a")
        require_equal(got, [1], "value that was changed after it was put")
        got.append(3)
        require_equal(writer.get("a"), [1], "value that was changed after it was got")

    version_id = commit(store, EMPTY, put)
    with store.writer(ID, version_id) as writer:
        writer.get("a").append(4)
        require_equal(writer.get("a"), [1], "value that was got twice")


def _check_life(store: StateStore) -> None:
    def calls(view: Any) -> list[Callable[[], object]]:
        scans = [view.items, lambda: view.prefix("a"), lambda: view.range("a", None)]
        reads: list[Callable[[], object]] = [
            *(lambda scan=scan: list(scan()) for scan in (*scans, lambda: view.due(1))),
            *(lambda read=read: read("a") for read in (view.get, view.timeout_ms)),
            *(view.count, view.size_bytes),
        ]
        if not hasattr(view, "put"):
            return reads
        update = functools.partial(view.update, [("a", 1)], lambda given, value: given)
        put, remove = functools.partial(view.put, "a", 1), functools.partial(view.remove, "a")
        return [*reads, put, remove, update, view.commit]

    ends: list[tuple[Callable[[StateWriter], object], str]] = [
        (StateWriter.commit, "committed"),
        (StateWriter.abort, "aborted"),
    ]
    for end, state in ends:
        writer = store.writer(ID, EMPTY)
        require_equal(writer.ended, "", "end of a new writer")
        writer.put("a", 1)
        writer.put("b", 2)
        iterators = [writer.items(), writer.due(1), writer.items()]
        next(iterators[2])
        end(writer)
        require_equal(writer.ended, state, "end of a writer")
        for call in calls(writer):
            require_raises(StateStoreUseError, call, f"a writer that is {state}")
        for iterator in iterators:
            require_raises(StateStoreUseError, functools.partial(next, iterator), "an old iterator")
        writer.abort()
        require_equal(writer.ended, state, "end of a writer after abort at its end")
    reader = store.reader(ID, EMPTY)
    reader.close()
    for call in calls(reader):
        require_raises(StateStoreUseError, call, "a reader that is closed")


def _check_abort(store: StateStore) -> None:
    root = commit(store, EMPTY, lambda writer: writer.put("a", 1))
    with store.writer(ID, root) as writer:
        writer.put("b", 2)
        writer.remove("a")
    require_equal(writer.ended, "aborted", "end of a writer after its with block")
    try:
        with store.writer(ID, root) as writer:
            writer.put("b", 2)
            raise LookupError("user code")
    except LookupError:
        require_equal(writer.ended, "aborted", "end of a writer after an error")
    require_stored(store, root, {"a": (1, None)})


def _check_versions(store: StateStore) -> None:
    models: dict[VersionId, Model] = {EMPTY: {}}
    version_id = EMPTY
    for version in range(8):
        model = dict(models[version_id])
        model[f"key-{version}"] = (version, None)
        model["last"] = (version, version)
        model.pop(f"key-{version - 3}", None)

        def change(writer: StateWriter, version: int = version) -> None:
            writer.put(f"key-{version}", version)
            writer.put("last", version, timeout_ms=version)
            writer.remove(f"key-{version - 3}")

        twin = commit(store, version_id, lambda writer: writer.put("twin", 1))
        models[twin] = {**models[version_id], "twin": (1, None)}
        version_id = commit(store, version_id, change)
        models[version_id] = model
    for known, model in models.items():
        require_stored(store, known, model)


def _check_equal_keys(store: StateStore) -> None:
    for keys in _EQUAL_KEYS:
        for first in keys:
            with store.writer(ID, EMPTY) as writer:
                writer.put(first, "first")
                for other in keys:
                    writer.put(other, repr(other))
                    require_equal(
                        writer.get(first), repr(other), f"get({first!r}), put as {other!r}"
                    )
                    require_equal(writer.count(), 1, f"count after put of {first!r} and {other!r}")
                ((key, _),) = writer.items()
                require_equal(key, first, "key of the only item")
                writer.remove(first)
                require_equal(writer.count(), 0, f"count after {first!r} was removed")
    model: Model = {key: (repr(key), None) for key in _DIFFERENT_KEYS}

    def put_all(writer: StateWriter) -> None:
        for key in _DIFFERENT_KEYS:
            writer.put(key, repr(key))

    require_stored(store, commit(store, EMPTY, put_all), model)


def _check_refused_keys(store: StateStore) -> None:
    with store.writer(ID, EMPTY) as writer:
        for key in (math.nan, Decimal("nan"), (1, math.nan), [1], {}, ({1},), object()):
            for call in (writer.get, writer.remove, writer.timeout_ms, lambda k: writer.put(k, 1)):
                require_raises(TypeError, functools.partial(call, key), f"key {key!r:.40}")
        require_raises(ValueError, lambda: writer.put("x" * 100_000, 1), "a key of 100 kB")
        require_equal(writer.count(), 0, "count after keys were refused")


def _check_scans(store: StateStore) -> None:
    long = "z" * 500
    keys = [-5, -1, 0, 3, 2**65, "", "a", "a\0", "aa", "ab", "b", "\u00e9", "\uffff", "\U00010000",
            b"", b"a", b"b\xff", (), ("u", 1), ("u", 2, "x"), ("u", 10), ("u\0", 1), ("v",), 0.5,
            long + "1", long + "2", (long, 1), (long, 2)]  # fmt: skip

    def put_all(writer: StateWriter) -> None:
        for key in keys:
            writer.put(key, repr(key))

    with store.reader(ID, commit(store, EMPTY, put_all)) as reader:
        _require_prefixes(reader, keys, long)
        _require_ranges(reader, keys)
    with store.writer(ID, EMPTY) as writer:
        put_all(writer)
        _require_prefixes(writer, keys, long)
        _require_ranges(writer, keys)


def _require_prefixes(view: StateReader, keys: list[Any], long: str) -> None:
    prefixes: list[Any] = ["", "a", "a\0", "\uffff", "x", long, long + "1", b"", b"b", (), ("u",)]
    for prefix in (*prefixes, ("u", 1), (long,), (long, 1)):
        found = list(view.prefix(prefix))
        wanted = [k for k in keys if type(k) is type(prefix) and k[: len(prefix)] == prefix]
        _require_in_order(found, wanted, f"prefix({prefix!r:.40})")
    require_raises(TypeError, lambda: view.prefix(1), "prefix(1)")


def _require_ranges(view: StateReader, keys: list[Any]) -> None:
    for kind in (int, str, bytes, tuple):
        same: list[Any] = [key for key in keys if type(key) is kind]
        for start in (None, *same):
            for stop in (None, *same):
                if start is None and stop is None:
                    continue
                found = list(view.range(start, stop))
                after = [key for key in same if start is None or start <= key]
                wanted = [key for key in after if stop is None or key < stop]
                _require_in_order(found, wanted, f"range({start!r:.40}, {stop!r:.40})")
    refused: list[tuple[Any, Any]] = [(None, None), (1, "a"), (0.5, None), (None, frozenset())]
    for bounds in refused:
        require_raises(TypeError, functools.partial(view.range, *bounds), f"range of {bounds}")


def _require_in_order(found: list[tuple[Any, Any]], keys: list[Any], what: str) -> None:
    wanted = [(key, repr(key)) for key in sorted(keys)]
    # Of keys that agree in hundreds of bytes, nobody says which comes first.
    require_equal(sorted(found), wanted, what)
    short = [pair for pair in wanted if len(pair[1]) < 400]
    require_equal([pair for pair in found if len(pair[1]) < 400], short, what)


def _check_change_while_iterating(store: StateStore) -> None:
    def put_all(writer: StateWriter) -> None:
        for key in range(100):
            writer.put(key, key, timeout_ms=key)

    root = commit(store, EMPTY, put_all)
    with store.writer(ID, root) as writer:
        for key in range(100, 200):
            writer.put(key, key, timeout_ms=key)
        seen = []
        for key, value in writer.items():
            seen.append((key, value))
            writer.remove(key)
            writer.remove(key + 1)
            writer.put(key + 1000, 0)
        require_equal(seen, [(key, key) for key in range(200)], "items that are removed meanwhile")
        require_equal(writer.count(), 200, "count after that")
    with store.writer(ID, root) as writer:
        due = []
        for key, _, _ in writer.due(50):
            due.append(key)
            writer.remove(key)
            writer.remove(key + 1)
        require_equal(due, list(range(0, 50, 2)), "due keys, of which each removes the next")


def _check_timeouts(store: StateStore) -> None:
    def put_all(writer: StateWriter) -> None:
        for key, timeout_ms in (("a", 10), ("b", 20), ("c", 30), ("d", None), ("e", 0)):
            writer.put(key, key, timeout_ms=timeout_ms)
        wrongs: list[Any] = [-1, 1.5, True, 2**63]
        for wrong in wrongs:
            put = functools.partial(writer.put, "a", "a", timeout_ms=wrong)
            require_raises(ValueError, put, f"timeout {wrong!r}")

    version_id = commit(store, EMPTY, put_all)
    reader = store.reader(ID, version_id)
    for until_ms, wanted in (
        (0, ""),
        (1, "e"),
        (10, "e"),
        (11, "ea"),
        (31, "eabc"),
        (2**70, "eabc"),
    ):
        found = "".join(key for key, _, _ in reader.due(until_ms))
        require_equal(found, wanted, f"keys of due({until_ms})")
    require_equal(list(reader.due(5)), [("e", "e", 0)], "due(5)")
    require_equal(list(reader.due(-1)), [], "due(-1)")
    reader.close()

    def touch(writer: StateWriter) -> None:
        writer.put("a", 1, timeout_ms=40)  # later: stays where it is in the index
        writer.put("b", 1, timeout_ms=5)  # earlier
        writer.put("c", 1)  # none
        writer.remove("e")
        require_equal(sorted(key for key, _, _ in writer.due(31)), ["b"], "due after changes")
        require_equal(sorted(key for key, _, _ in writer.due(41)), ["a", "b"], "due later")

    touched = commit(store, version_id, touch)
    model: Model = {"a": (1, 40), "b": (1, 5), "c": (1, None), "d": ("d", None)}
    require_stored(store, touched, model)
    reader = store.reader(ID, touched)
    require_equal(list(reader.due(41)), [("b", 1, 5), ("a", 1, 40)], "due after a commit")
    reader.close()


def _check_update(store: StateStore) -> None:
    root = commit(store, EMPTY, lambda writer: writer.put("a", 1, timeout_ms=7))
    with store.writer(ID, root) as writer:
        pairs = [("a", 1), ("b", 2), ("a", 3), (1, 4), (1.0, 5), ("c", 0), ("d", 0), ("d", 6)]
        writer.update(pairs, lambda given, value: (value or 0) + given or None)
        require_equal(writer.count(), 4, "count after update")
        version_id = writer.commit().version_id
    model: Model = {"a": (5, None), "b": (2, None), 1: (9, None), "d": (6, None)}
    require_stored(store, version_id, model)
    with store.writer(ID, version_id) as writer:
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


def _check_random_program(store: StateStore) -> None:
    """Many versions of random changes, each compared with a dict, and read back later."""
    models: dict[VersionId, Model] = {EMPTY: {}}
    for seed in range(12):
        draw = draws(seed)
        version_id = list(models)[next(draw) % len(models)]
        model = dict(models[version_id])
        with store.writer(ID, version_id) as writer:
            for _ in range(next(draw) % 60):
                change_anything(writer, model, draw)
            require_content(writer, model, f"the writer of program {seed}")
            models[writer.commit().version_id] = model
    for version_id, model in models.items():
        require_stored(store, version_id, model)


_CHECKS: tuple[Callable[[StateStore], None], ...] = (
    _check_values, _check_copies, _check_life, _check_abort, _check_versions, _check_equal_keys,
    _check_refused_keys, _check_scans, _check_change_while_iterating, _check_timeouts,
    _check_update, _check_order_of_updates, _check_numbers, _check_random_program,
)  # fmt: skip

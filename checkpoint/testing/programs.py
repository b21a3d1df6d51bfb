"""Programs of changes that look like chance, and the dict that a store must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as numbers
from typing import Any

from checkpoint.log.version_records import StoreId, VersionId
from checkpoint.state_store.store import StateStore
from checkpoint.state_store.store_reader import StateReader
from checkpoint.state_store.store_writer import StateWriter
from checkpoint.testing.claims import require_equal

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

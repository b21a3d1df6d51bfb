"""The earliest timer of a store: what wakes a query up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from checkpoint import open_files
from checkpoint.state_store import EMPTY, LmdbBackend, StateStore, StoreId
from dstreams.state.flat_map_groups import earliest_timeout_ms

STORE = StoreId("stream", "groups", "default", 0, 1)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(LmdbBackend(open_files(tmp_path / "files"), str(tmp_path / "local")))


def test_none(store: StateStore) -> None:
    """Without timers there is nothing to wake up for."""
    with store.writer(STORE, EMPTY) as writer:
        writer.put("a", 1)
        assert earliest_timeout_ms(writer) == -1


def test_timer_that_was_put_off(store: StateStore) -> None:
    """A timer that was put off does not hide one that is earlier now."""
    with store.writer(STORE, EMPTY) as writer:
        writer.put("a", 1, 11_000)
        writer.put("b", 1, 15_000)
        assert earliest_timeout_ms(writer) == 11_000
        before = writer.commit().version_id
    with store.writer(STORE, before) as writer:
        writer.put("a", 2, 22_000)
        assert earliest_timeout_ms(writer) == 15_000
        writer.remove("b")
        assert earliest_timeout_ms(writer) == 22_000


def test_at_random(store: StateStore) -> None:
    """It is the smallest timer after any timers are set, moved and removed."""
    chance = random.Random(7)
    timers: dict[int, int] = {}
    before = EMPTY
    for _ in range(20):
        with store.writer(STORE, before) as writer:
            for _ in range(10):
                key = chance.randrange(15)
                if chance.random() < 0.3:
                    writer.remove(key)
                    timers.pop(key, None)
                else:
                    timers[key] = chance.randrange(1000)
                    writer.put(key, "state", timers[key])
            assert earliest_timeout_ms(writer) == min(timers.values(), default=-1)
            before = writer.commit().version_id

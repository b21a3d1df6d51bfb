"""The timeout index holds one entry for each key with a timeout, never too late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StoreId, VersionId
from checkpoint.state_store.records import (
    index_entry,
    index_stop,
    require_timeout_ms,
    require_timeouts_ms,
    split_entry,
)

ID = StoreId("stream-1", "sessions", "default", 0, 1)


def entries(backend: MemoryBackend, version_id: VersionId) -> list[tuple[int, bytes]]:
    return [split_entry(entry) for entry in backend.open(ID, version_id).scan_index()]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.binary(max_size=3))
def test_entries_are_in_the_order_of_time(first: int, second: int, key: bytes) -> None:
    """Entries sort by time, and a stop excludes later ones."""
    one, other = index_entry(first, key), index_entry(second, b"\xff")
    assert split_entry(one) == (first, key)
    if first != second:
        assert (one < other) == (first < second)
    assert (one < index_stop(second)) == (first < second)


@pytest.mark.parametrize("timeout_ms", [-1, 2**63, 1.0, True, "1"])
def test_no_timeouts(timeout_ms: object) -> None:
    """Invalid timeouts are rejected."""
    with pytest.raises(ValueError, match="must be an int from 0 to"):
        require_timeout_ms(timeout_ms)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be an int from 0 to"):
        require_timeouts_ms([5, timeout_ms])  # type: ignore[list-item]


def test_touch_does_not_move_a_key() -> None:
    """A later timeout changes no entry; reading the index moves it."""
    backend = MemoryBackend()
    store = StateStore(backend)
    version_id = EMPTY
    for timeout_ms in (10, 20, 30):
        with store.writer(ID, version_id) as writer:
            writer.put("a", timeout_ms, timeout_ms)
            version_id = writer.commit().version_id
        assert entries(backend, version_id) == [(10, b"sa")]
    with store.writer(ID, version_id) as writer:
        assert list(writer.due(15)) == []
        moved = writer.commit().version_id
    assert entries(backend, moved) == [(30, b"sa")]
    with store.reader(ID, version_id) as reader:
        assert (list(reader.due(15)), list(reader.due(31))) == ([], [("a", 30, 30)])


def test_earlier_timeout_moves_at_once() -> None:
    """A key that is due before its entry gets a new entry."""
    backend = MemoryBackend()
    store = StateStore(backend)
    with store.writer(ID, EMPTY) as writer:
        writer.put("a", 1, 20)
        writer.put("b", 1, 20)
        writer.put("c", 1, 20)
        version_id = writer.commit().version_id
    with store.writer(ID, version_id) as writer:
        writer.put("a", 1, 5)
        writer.put("b", 1)
        writer.remove("c")
        version_id = writer.commit().version_id
    assert entries(backend, version_id) == [(5, b"sa")]


def test_many_keys_leave_together() -> None:
    """Keys put together are due like keys put one by one."""
    backend = MemoryBackend()
    store = StateStore(backend)
    with store.writer(ID, EMPTY) as writer:
        writer.put_many({f"k{n:04}": n for n in range(1500)}, list(range(1500)))
        writer.put("k0003", 3, 700)  # is named at 3, and due at 700
        version_id = writer.commit().version_id
    assert len(entries(backend, version_id)) == 1500
    with store.writer(ID, version_id) as writer:
        writer.put_many({f"n{n:04}": n for n in range(1500)}, list(range(1500)))
        assert writer.has_many(["k0003", "k0600", "x", "n1499"]) == [True, True, False, True]
        assert writer.remove_due(601) == 2 * 601 - 1
        assert writer.has_many(["k0003", "k0600", "x", "n1499"]) == [True, False, False, True]
        assert writer.count() == 3000 - 2 * 601 + 1
        version_id = writer.commit().version_id
    with store.reader(ID, version_id) as reader:
        assert len(list(reader.items())) == reader.count() == 3000 - 2 * 601 + 1
        due = [key for key, _, _ in reader.due(701)]
    assert due.count("k0003") == 1
    assert len(due) == 201
    assert len(entries(backend, version_id)) == 3000 - 2 * 601 + 1


def test_due_keys_are_found_without_a_scan() -> None:
    """Only due entries are read."""
    backend = MemoryBackend()
    store = StateStore(backend)
    with store.writer(ID, EMPTY) as writer:
        for number in range(1_000):
            writer.put(number, number, timeout_ms=number)
        version_id = writer.commit().version_id
    looked = []
    with store.reader(ID, version_id) as reader:
        find = reader._get
        reader._get = lambda raw: looked.append(raw) or find(raw)  # type: ignore[func-returns-value]
        assert len(list(reader.due(10))) == 10
    assert len(looked) == 10


def test_move_between_get_and_put() -> None:
    """A key whose entry moves between get and put keeps one entry."""
    backend = MemoryBackend()
    store = StateStore(backend)
    with store.writer(ID, EMPTY) as writer:
        writer.put("a", 1, 5)
        writer.put("a", 1, 50)
        assert writer.get("a") == 1
        assert list(writer.due(10)) == []
        writer.put("a", 2, 60)
        version_id = writer.commit().version_id
    assert entries(backend, version_id) == [(50, b"sa")]
    with store.reader(ID, version_id) as reader:
        assert list(reader.due(61)) == [("a", 2, 60)]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9), st.integers(0, 9)),
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_index_belongs_to_the_records(
    steps: list[tuple[str, int | None, int]], commit_every: int
) -> None:
    """After any operations each key with a timeout has exactly one entry, not too late."""
    backend = MemoryBackend()
    store = StateStore(backend)
    version_id = EMPTY
    for at in range(0, len(steps), commit_every):
        with store.writer(ID, version_id) as writer:
            for key, timeout_ms, until_ms in steps[at : at + commit_every]:
                writer.put(key, 0, timeout_ms)
                for due, _, _ in writer.due(until_ms):
                    if until_ms % 2:
                        writer.remove(due)
            version_id = writer.commit().version_id
        with store.reader(ID, version_id) as reader:
            timeouts = {key: reader.timeout_ms(key) for key, _ in reader.items()}
        found = entries(backend, version_id)
        indexed = {raw[1:].decode(): time_ms for time_ms, raw in found}
        assert len(indexed) == len(found)
        assert indexed.keys() == {key for key, time_ms in timeouts.items() if time_ms is not None}
        assert all(time_ms <= (timeouts[key] or 0) for key, time_ms in indexed.items())

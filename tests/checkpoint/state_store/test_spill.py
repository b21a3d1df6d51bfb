"""Changes that are too many for memory go to disk, and nothing of them stays there."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import StorageRefusedError
from checkpoint.state_store import EMPTY, StateStore, StoreId
from checkpoint.state_store.spill import Runs
from checkpoint.testing.memory_bases import MemoryBases

ID = StoreId("stream-1", "counts", "default", 0, 1)

changes = st.dictionaries(
    st.binary(min_size=1, max_size=2), st.none() | st.binary(min_size=1, max_size=3)
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(changes, changes), max_size=18), st.binary(max_size=2))
def test_runs_are_layers(
    layers: list[tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]], start: bytes
) -> None:
    """Any number of runs show what the dicts in them show, one over the other."""
    runs = Runs()
    records: dict[bytes, bytes | None] = {}
    index: dict[bytes, bytes | None] = {}
    for changed, entries in layers:
        runs.add(changed, entries)
        records.update(changed)
        index.update(entries)
    for key in {*records, b"?"}:
        assert runs.get(key) == (records[key] or b"" if key in records else None)
    assert dict(runs.scan(start)) == {k: v for k, v in records.items() if k >= start}
    assert [key for key, _ in runs.scan(b"", b"a")] == sorted(k for k in records if k < b"a")
    assert list(runs.scan_index()) == sorted(index.items(), key=lambda pair: pair[0])
    runs.close()
    runs.close()
    assert len(runs) == 0


def test_files_have_no_name(tmp_path: Path) -> None:
    """While a run is in use its directory is empty: whatever happens, nothing is left."""
    runs = Runs(str(tmp_path))
    runs.add({b"a": b"1" * 100_000}, {})
    assert list(tmp_path.iterdir()) == []
    assert runs.get(b"a") == b"1" * 100_000
    runs.close()


def test_open_iterators_see_what_was_there(tmp_path: Path) -> None:
    """An iterator goes on over the runs it began with, while others are added."""
    store = StateStore(MemoryBases(), spill_bytes=2_000, spill_directory=str(tmp_path))
    with store.writer(ID, EMPTY) as writer:
        for number in range(50):
            writer.put(number, number)
        items = writer.items()
        assert next(items) == (0, 0)
        for number in range(100):
            writer.put(number, -1)
        assert list(items) == [(number, number) for number in range(1, 50)]
        assert writer.count() == 100


def test_runs_stay_few() -> None:
    """However many runs were added, a get asks a few, each of which holds each key once."""
    runs = Runs()
    for number in range(150):
        runs.add({b"same": b"%d" % number, b"key %d" % number: b"1"}, {b"entry %d" % number: b"+"})
    assert len(runs) <= 3 * 4
    assert runs.get(b"same") == b"149"
    assert len(list(runs.scan())) == 151
    assert len(list(runs.scan_index())) == 150
    runs.close()


def test_iterators_over_runs_that_are_merged() -> None:
    """Iterators go on over the runs they began with when those are merged into one."""
    runs = Runs()
    runs.add({b"%d" % number: b"old" for number in range(9)}, {b"entry": b"+", b"other": b"+"})
    items, entries = runs.scan(), runs.scan_index()
    assert next(items) == (b"0", b"old")
    assert next(entries) == (b"entry", b"+")
    for number in range(20):
        runs.add({b"%d" % number: b"new"}, {b"other": None})
    assert list(items) == [(b"%d" % number, b"old") for number in range(1, 9)]
    assert list(entries) == [(b"other", b"+")]
    runs.close()


@pytest.mark.parametrize("missing", [True, False], ids=["directory missing", "disk full"])
def test_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    """A spill that cannot be written says where and what to do; the writer can be aborted."""
    directory = tmp_path / "missing" if missing else tmp_path
    if not missing:

        def full(*arguments: Any, **options: Any) -> None:
            raise lmdb.Error(os.strerror(errno.ENOSPC))

        monkeypatch.setattr("checkpoint.state_store.spill.lmdb.open", full)
    store = StateStore(MemoryBases(), spill_bytes=100, spill_directory=str(directory))
    refused = pytest.raises(StorageRefusedError, match=r"cannot be spilled to .*; make room there")
    with store.writer(ID, EMPTY) as writer, refused:
        writer.put("a", "x" * 1_000)
    assert list(tmp_path.iterdir()) == []


def test_map_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run larger than was reckoned with gets more room."""
    monkeypatch.setattr("checkpoint.state_store.spill._SPARE_BYTES", 1 << 14)
    monkeypatch.setattr("checkpoint.state_store.spill._PAIR_BYTES", 0)
    runs = Runs()
    # Records of two pages and a byte each take three.
    runs.add({b"%04d" % number: b"x" * 2_100 for number in range(300)}, {})
    assert len(list(runs.scan())) == 300
    runs.close()


def test_memory_is_bounded() -> None:
    """Many changes take the memory that the store was given for them, and not much more."""
    store = StateStore(MemoryBases(), spill_bytes=1_000_000)
    with store.writer(ID, EMPTY) as writer:
        tracemalloc.start()
        for number in range(20_000):
            writer.put(number, "x" * 100)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 3_000_000
        assert writer.count() == 20_000
        assert writer.get(7) == "x" * 100
        assert sum(1 for _ in writer.items()) == 20_000

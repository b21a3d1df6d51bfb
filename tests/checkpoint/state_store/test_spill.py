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
from checkpoint.state_store.spill import Spill
from tests.support.memory_backend import MemoryBackend

ID = StoreId("stream-1", "counts", "default", 0, 1)

changes = st.dictionaries(
    st.binary(min_size=1, max_size=2), st.none() | st.binary(min_size=1, max_size=3)
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(changes, changes), max_size=18), st.binary(max_size=2))
def test_later_changes_count(
    layers: list[tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]], start: bytes
) -> None:
    """A spill shows what dicts show that are put one over the other."""
    spill = Spill()
    records: dict[bytes, bytes | None] = {}
    index: dict[bytes, bytes | None] = {}
    for changed, entries in layers:
        spill.add(changed, entries)
        records.update(changed)
        index.update(entries)
    for key in {*records, b"?"}:
        assert spill.get(key) == (records[key] or b"" if key in records else None)
    assert dict(spill.scan(start)) == {k: v for k, v in records.items() if k >= start}
    assert [key for key, _ in spill.scan(b"", b"a")] == sorted(k for k in records if k < b"a")
    assert list(spill.scan_index()) == sorted(index.items(), key=lambda pair: pair[0])
    spill.close()
    spill.close()
    assert not spill


def test_files_have_no_name(tmp_path: Path) -> None:
    """While a spill is in use its directory is empty: whatever happens, nothing is left."""
    spill = Spill(str(tmp_path))
    spill.add({b"a": b"1" * 100_000}, {})
    assert list(tmp_path.iterdir()) == []
    assert spill.get(b"a") == b"1" * 100_000
    spill.close()


def test_open_iterators_see_what_was_there(tmp_path: Path) -> None:
    """An iterator shows what was there when it began, while more is spilled."""
    store = StateStore(MemoryBackend(), spill_bytes=2_000, spill_directory=str(tmp_path))
    with store.writer(ID, EMPTY) as writer:
        for number in range(50):
            writer.put(number, number)
        items = writer.items()
        assert next(items) == (0, 0)
        for number in range(100):
            writer.put(number, -1)
        assert list(items) == [(number, number) for number in range(1, 50)]
        assert writer.count() == 100


def test_iterators_go_on_in_what_they_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is added meanwhile, also when the file has to grow for it."""
    monkeypatch.setattr("checkpoint.state_store.spill._FIRST_MAP_BYTES", 1 << 17)
    spill = Spill()
    spill.add({b"%d" % number: b"old" for number in range(9)}, {b"entry": b"+", b"other": b"+"})
    items, entries = spill.scan(), spill.scan_index()
    assert next(items) == (b"0", b"old")
    assert next(entries) == (b"entry", b"+")
    for number in range(20):
        spill.add({b"%d" % number: b"new" * 10_000}, {b"other": None})
    assert list(items) == [(b"%d" % number, b"old") for number in range(1, 9)]
    assert list(entries) == [(b"other", b"+")]
    spill.close()


@pytest.mark.parametrize("missing", [True, False], ids=["directory missing", "disk full"])
def test_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    """A spill that cannot be written says where and what to do; the writer can be aborted."""
    directory = tmp_path / "missing" if missing else tmp_path
    if not missing:

        def full(*arguments: Any, **options: Any) -> None:
            raise lmdb.Error(os.strerror(errno.ENOSPC))

        monkeypatch.setattr("checkpoint.state_store.spill.lmdb.open", full)
    store = StateStore(MemoryBackend(), spill_bytes=100, spill_directory=str(directory))
    refused = pytest.raises(StorageRefusedError, match=r"cannot spill changes .*; free space there")
    with store.writer(ID, EMPTY) as writer, refused:
        writer.put("a", "x" * 1_000)
    assert list(tmp_path.iterdir()) == []


def test_file_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is full is followed by a larger one that holds the same."""
    monkeypatch.setattr("checkpoint.state_store.spill._FIRST_MAP_BYTES", 1 << 16)
    monkeypatch.setattr("checkpoint.state_store.spill._CHUNK_PAIRS", 7)
    spill = Spill()
    for start in (0, 300):
        # Records of two pages and a byte each take three.
        keys = [b"%04d" % number for number in range(start, start + 300)]
        spill.add(dict.fromkeys(keys, b"x" * 2_100), {b"entry" + keys[0]: b"+"})
    assert list(spill.scan()) == [(b"%04d" % number, b"x" * 2_100) for number in range(600)]
    assert len(list(spill.scan_index())) == 2
    spill.close()


def test_memory_is_bounded() -> None:
    """Many changes take the memory that the store was given for them, and not much more."""
    store = StateStore(MemoryBackend(), spill_bytes=1_000_000)
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

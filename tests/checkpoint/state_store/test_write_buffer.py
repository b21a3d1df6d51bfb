"""The layers of the write buffer: merging, bulk changes, spilling, and parts for a commit."""

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
from checkpoint.state_store import EMPTY, MemoryBackend, StateStore, StoreId, write_buffer
from checkpoint.state_store.write_buffer import ChangeLayer, KeyList, Spill, overlaid

layers = st.dictionaries(st.binary(max_size=2), st.none() | st.integers())
keys = st.sets(st.binary(min_size=1, max_size=2), max_size=4)
STEPS = ("put", "put_many", "put_in_order", "add_many", "remove_many")


@given(layers, layers, layers)
def test_overlaid(
    lowest: dict[bytes, int | None], middle: dict[bytes, int | None], upper: dict[bytes, int | None]
) -> None:
    """Merging sorted layers gives what updating dicts gives."""
    below = overlaid(iter(sorted(lowest.items())), iter(sorted(middle.items())))
    found = list(overlaid(below, iter(sorted(upper.items()))))
    assert found == sorted({**lowest, **middle, **upper}.items(), key=lambda pair: pair[0])


@given(st.lists(st.sets(st.binary(max_size=2), min_size=1), max_size=4), st.binary(max_size=2))
def test_key_list(parts: list[set[bytes]], bound: bytes) -> None:
    """Keys are yielded in order, whatever order they were added in, and bounds find them."""
    seen: set[bytes] = set()
    listed = KeyList()
    for part in parts:
        listed.add(list(part - seen))
        seen |= part
    assert bool(listed) == bool(seen)
    assert listed.bounds.meets(b"", None) == bool(seen)
    if any(key >= bound for key in seen):
        assert listed.bounds.meets(bound, None)
    if any(key < bound for key in seen):
        assert listed.bounds.meets(b"", bound)
    assert [key for keys in listed.parts() for key in keys] == sorted(seen)
    changed: dict[bytes, bytes | None] = {}
    listed.move_to(changed, None)
    assert changed == dict.fromkeys(seen)
    assert not listed
    assert list(listed.parts()) == []


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), keys)),
    st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.booleans(),
)
def test_change_layer(
    steps: list[tuple[str, set[bytes]]], start: bytes, stop: bytes | None, looks_up: bool
) -> None:
    """A layer has the content of a dict, however changes are made and read."""
    layer, wanted = ChangeLayer(b"+"), dict[bytes, bytes | None]()
    for number, (step, some) in enumerate(steps):
        value = b"%d" % number
        if step == "put":
            for key in some:
                layer.put(key, None if number % 2 else value)
                wanted[key] = None if number % 2 else value
        elif step == "put_many":
            layer.put_many(list(some), [value] * len(some))
            wanted.update(dict.fromkeys(some, value))
        elif step == "put_in_order":
            last = max(wanted, default=b"")
            after = [last + key for key in sorted(some)]
            layer.put_many(after, [value] * len(after))
            wanted.update(dict.fromkeys(after, value))
        elif step == "add_many":
            new = {key for key in some if wanted.get(key) is None}
            layer.add_many(list(new))
            wanted.update(dict.fromkeys(new, b"+"))
        else:
            there = {key for key in some if key not in wanted or wanted[key] is not None}
            may_contain = layer.remove_many(list(there))
            assert may_contain or there.isdisjoint(wanted)
            wanted.update(dict.fromkeys(there))
        if looks_up:
            assert layer.by_key() == wanted
    inside = {k: v for k, v in wanted.items() if start <= k and (stop is None or k < stop)}
    assert layer.meets(start, stop) or not inside
    puts: list[tuple[bytes, bytes]] = []
    removed: list[bytes] = []
    for some_keys, values, gone in layer.parts():
        puts += zip(some_keys, values, strict=True)
        removed += gone
    assert puts == sorted((k, v) for k, v in wanted.items() if v is not None)
    assert removed == sorted(k for k, v in wanted.items() if v is None)
    scanned = layer.scan(start, stop)
    layer.clear()
    assert list(scanned) == sorted(inside.items(), key=lambda pair: pair[0])
    assert not layer.meets(b"", None)


ID = StoreId("stream-1", "counts", "default", 0, 1)

changes = st.dictionaries(
    st.binary(min_size=1, max_size=2), st.none() | st.binary(min_size=1, max_size=3)
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(changes, changes), max_size=18), st.binary(max_size=2))
def test_later_changes_count(
    layers: list[tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]], start: bytes
) -> None:
    """A spill has the content of updated dicts."""
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


def test_many_short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are complete while keys are added, changed and removed, however many there are."""
    monkeypatch.setattr(write_buffer, "_MOST_UNSORTED", 4)
    layer = ChangeLayer()
    expected: dict[bytes, bytes | None] = {}
    for number in range(200):
        key = b"%03d" % (number * 77 % 101)
        value = None if number % 7 == 0 else b"%d" % number
        layer.put(key, value)
        expected[key] = value
        start, stop = b"%03d" % (number % 90), b"%03d" % (number % 90 + 9)
        inside = [pair for pair in sorted(expected.items()) if start <= pair[0] < stop]
        assert list(layer.scan(start, stop)) == inside
        after = [pair for pair in sorted(expected.items()) if start <= pair[0]]
        assert list(layer.scan(start)) == after
    layer.clear()
    layer.put(b"050", b"x")
    assert list(layer.scan(b"000", b"090")) == [(b"050", b"x")]


def test_files_have_no_name(tmp_path: Path) -> None:
    """The directory is empty while a spill is in use, so nothing is left behind."""
    spill = Spill(str(tmp_path))
    spill.add({b"a": b"1" * 100_000}, {})
    assert list(tmp_path.iterdir()) == []
    assert spill.get(b"a") == b"1" * 100_000
    spill.close()


def test_open_iterators_see_what_was_there(tmp_path: Path) -> None:
    """An iterator returns the content from when it began."""
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
    """Also if the file has to grow in the meantime."""
    monkeypatch.setattr("checkpoint.state_store.write_buffer._FIRST_MAP_BYTES", 1 << 17)
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
    """The error has the directory and a remedy; the writer can be aborted."""
    directory = tmp_path / "missing" if missing else tmp_path
    if not missing:

        def full(*arguments: Any, **options: Any) -> None:
            raise lmdb.Error(os.strerror(errno.ENOSPC))

        monkeypatch.setattr("checkpoint.state_store.write_buffer.lmdb.open", full)
    store = StateStore(MemoryBackend(), spill_bytes=100, spill_directory=str(directory))
    refused = pytest.raises(StorageRefusedError, match=r"cannot spill changes .*; free space there")
    with store.writer(ID, EMPTY) as writer, refused:
        writer.put("a", "x" * 1_000)
    assert list(tmp_path.iterdir()) == []


def test_file_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full file is replaced by a larger one with the same content."""
    monkeypatch.setattr("checkpoint.state_store.write_buffer._FIRST_MAP_BYTES", 1 << 16)
    monkeypatch.setattr("checkpoint.state_store.write_buffer._CHUNK_PAIRS", 7)
    spill = Spill()
    for start in (0, 300):
        # Records of two pages and a byte each take three.
        keys = [b"%04d" % number for number in range(start, start + 300)]
        spill.add(dict.fromkeys(keys, b"x" * 2_100), {b"entry" + keys[0]: b"+"})
    assert list(spill.scan()) == [(b"%04d" % number, b"x" * 2_100) for number in range(600)]
    assert len(list(spill.scan_index())) == 2
    spill.close()


def test_memory_is_bounded() -> None:
    """Many changes take about the configured memory."""
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

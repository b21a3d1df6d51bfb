"""Changelogs and snapshots: whole and the right one, or refused by name."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint import CorruptCheckpointError, Files, StorageRefusedError, open_files
from checkpoint.log.version_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.change_blocks import Compression, encode_changes
from checkpoint.state_store.store_files import (
    StoredKind,
    epoch_of,
    file_name,
    list_snapshots,
    new_uid,
    open_stored,
    read_changelog,
    read_parent,
    read_state_snapshot,
    write_changelog,
    write_state_snapshot,
)
from checkpoint.storage.framing import FileKind, FileRef, write_frames
from checkpoint.storage.json_records import decode
from tests.support.memory_backend import MemoryBackend
from tests.support.stores import changes, commit_up_to, content, store_of

STORE = store_of()

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(tmp_path / "files")


def write(
    files: Files, compression: Compression = Compression.NONE, store: StoreId = STORE
) -> VersionId:
    done = write_changelog(files, store, EMPTY, new_uid(3), changes(1), {"keys": "k"}, compression)
    return done.version_id


@pytest.mark.parametrize("compression", Compression)
def test_a_changelog_says_what_it_is_and_what_changed(
    files: Files, compression: Compression
) -> None:
    """Changes, base, codec and epoch come back, and the task can say what it wrote."""
    uid = new_uid(3)
    done = write_changelog(files, STORE, EMPTY, uid, changes(1), {"keys": "k"}, compression)
    stored = read_changelog(files, STORE, done.version_id)
    parts = list(stored.parts)
    assert stored.header.parent == read_parent(files, STORE, done.version_id) == EMPTY
    assert stored.header.codec == {"keys": "k"}
    assert epoch_of(stored.header.version_id.uid) == 3
    assert {key: record for part in parts for key, record in part.puts} == content(1)[0]
    assert done.version_id == VersionId(1, uid)
    name = file_name(STORE, done.version_id, StoredKind.CHANGES)
    assert done.file == FileRef.of(name, stored.totals)
    assert done.count == parts[-1].count == len(content(1)[0])
    assert len(files.read(name)) == done.size_bytes


def test_a_commit_without_a_part_is_refused(files: Files) -> None:
    """Nobody could say how many keys there are then; nothing is written."""
    with pytest.raises(ValueError, match="at least one part"):
        write_changelog(files, STORE, EMPTY, new_uid(1), [], {})
    with pytest.raises(LookupError):
        write_changelog(files, STORE, EMPTY, new_uid(1), _failing(), {})
    assert files.list("") == []


def _failing() -> list[Changes]:
    class Failing(list[Changes]):
        def __iter__(self) -> object:  # type: ignore[override]
            yield changes(1)[0]
            raise LookupError("user code")

    return Failing()


@pytest.mark.parametrize("compression", Compression)
def test_a_snapshot_holds_a_whole_content(files: Files, compression: Compression) -> None:
    """Keys and index in order; a second writer of the same finds that it is there."""
    backend = MemoryBackend()
    version_id = commit_up_to(backend, STORE, 6)[6]
    base = backend.open(STORE, version_id)
    size_bytes = write_state_snapshot(files, STORE, base, {"keys": "k"}, compression)
    assert write_state_snapshot(files, STORE, base, {"keys": "k"}, compression) is None
    assert list_snapshots(files, STORE) == {version_id}
    stored = read_state_snapshot(files, STORE, version_id)
    parts = list(stored.parts)
    records, index = content(6)
    assert [put for part in parts for put in part.puts] == sorted(records.items())
    assert [entry for part in parts for entry in part.index_puts] == sorted(index)
    assert {part.count for part in parts} == {len(records)}
    assert stored.totals.size_bytes == size_bytes
    assert stored.header.codec == {"keys": "k"}


def test_a_missing_file_is_named(files: Files) -> None:
    """With the version and the store that need it, and what can be done."""
    version_id = VersionId(7, new_uid(1))
    for read in (read_changelog, read_state_snapshot, read_parent):
        with pytest.raises(CorruptCheckpointError, match=r"is missing.*version 7") as error:
            read(files, STORE, version_id)
        assert error.value.remedy.startswith("restore the file from a copy")


FIELDS = [
    ("stream_id", "stream-2", "of stream 'stream-2'"),
    ("operator_uid", "sums", "of operator 'sums'"),
    ("store", "other", "of store 'other'"),
    ("partition", 1, "is of partition 1 of 2"),
    ("partition_count", 3, "partition 0 of 3"),
]


@pytest.mark.parametrize(("field", "value", "found"), FIELDS, ids=[field[0] for field in FIELDS])
def test_a_file_of_another_store_is_refused(
    files: Files, field: str, value: str | int, found: str
) -> None:
    """Put in the place of ours, under our name, it says that it is not."""
    ours = store_of(0, 2)
    theirs = dataclasses.replace(ours, **{field: value})  # type: ignore[arg-type]
    version_id = write(files, store=theirs)
    data = files.read(file_name(theirs, version_id, StoredKind.CHANGES))
    name = file_name(ours, version_id, StoredKind.CHANGES)
    if not files.exists(name):
        files.create(name, [data])
    with pytest.raises(CorruptCheckpointError, match=re.escape(found)) as error:
        read_changelog(files, ours, version_id)
    assert error.value.file.endswith(name)


def test_a_file_of_another_version_or_attempt_is_refused(files: Files) -> None:
    """Also where somebody renamed it."""
    version_id = write(files)
    data = files.read(file_name(STORE, version_id, StoredKind.CHANGES))
    for other in (VersionId(1, new_uid(3)), VersionId(2, version_id.uid)):
        files.create(file_name(STORE, other, StoredKind.CHANGES), [data])
        with pytest.raises(CorruptCheckpointError, match=f"is of version 1, .*{version_id.uid}"):
            read_changelog(files, STORE, other)


def test_a_changelog_is_no_snapshot(files: Files) -> None:
    """The kind of a file is part of what is checked."""
    version_id = write(files)
    data = files.read(file_name(STORE, version_id, StoredKind.CHANGES))
    files.create(file_name(STORE, version_id, StoredKind.SNAPSHOT), [data])
    with pytest.raises(CorruptCheckpointError, match="is of kind b'CHNG'"):
        read_state_snapshot(files, STORE, version_id)


def header(**other: object) -> dict[str, object]:
    """The header of a good changelog, and what to put in it instead."""
    return {
        "layout": 1,
        "kind": "changes",
        "store": IDS,
        "version_id": {"version": 3, "uid": "ab" * 12},
        "parent": {"version": 2, "uid": "cd" * 12},
        "codec": {},
        "compression": "none",
        "writer": {},
        **other,
    }


IDS: dict[str, object] = {
    "stream_id": "stream-1",
    "operator_uid": "counts",
    "store": "default",
    "partition": 0,
    "partition_count": 1,
}
GOOD = b"".join(block for block, _ in encode_changes(changes(1)[0], Compression.NONE))


@pytest.mark.parametrize(
    ("wrong", "payload", "records", "message"),
    [
        ({"layout": 2}, GOOD, 1, "is written in layout 2; expected layout 1; read this"),
        ({"layout": None}, GOOD, 1, "is written in layout None; expected layout 1"),
        (
            {"version_id": {"version": "3", "uid": ""}},
            GOOD,
            1,
            "`$.version_id.version`",
        ),
        ({"version_id": {"version": 3, "uid": "../x"}}, GOOD, 1, "uid '../x' of version 3"),
        (
            {"parent": {"version": 1, "uid": "cd" * 12}},
            GOOD,
            1,
            "version 1; expected version 2",
        ),
        ({"parent": {}}, GOOD, 1, "missing required field `version` - at `$.parent`"),
        ({"store": {**IDS, "partition": 1}}, GOOD, 1, "partition 1 of store 'default' must be 0"),
        ({"store": {**IDS, "store": ""}}, GOOD, 1, "store of a state store is empty"),
        ({"store": 1}, GOOD, 1, "Expected `object`, got `int` - at `$.store`"),
        ({"kind": "snapshot"}, GOOD, 1, "is snapshot by its header; expected changes"),
        ({"epoch": 1}, GOOD, 1, "unknown field `epoch`"),
        ({"codec": {"keys": 1}}, GOOD, 1, "Expected `str`, got `int` - at `$.codec"),
        ({"compression": "lzma"}, GOOD, 1, "Invalid enum value 'lzma' - at `$.compression`"),
        ({}, b"", 0, "has no block of changes as block 0"),
        ({}, b"x" * 100, 1, "has no block of changes as block 0"),
        ({}, GOOD + b"x", 5, "1 bytes are left"),
        ({}, GOOD, 1000, "changes in block 0; expected 1000"),
        ({"compression": "zstd"}, GOOD, 1, "has no block of changes as block 0"),
    ],
)
def test_a_file_with_right_checksums_and_wrong_content_is_refused(
    files: Files, wrong: dict[str, object], payload: bytes, records: int, message: str
) -> None:
    """Nothing that a file says is taken for true because its checksum is right."""
    version_id = VersionId(3, "ab" * 12)
    frames = write_frames(FileKind.CHANGES, header(**wrong), [(payload, records)])
    files.create(file_name(STORE, version_id, StoredKind.CHANGES), frames)
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        list(read_changelog(files, STORE, version_id).parts)


def test_a_file_without_blocks_is_refused(files: Files) -> None:
    """It could not say how many keys there are."""
    version_id = VersionId(3, "ab" * 12)
    name = file_name(STORE, version_id, StoredKind.CHANGES)
    files.create(name, write_frames(FileKind.CHANGES, header(), []))
    with pytest.raises(CorruptCheckpointError, match="has no blocks"):
        list(read_changelog(files, STORE, version_id).parts)


class OneFile:
    """Files that hold one file, under every name."""

    url = "file:///one"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_chunks(self, name: str, chunk_bytes: int) -> object:
        yield self.data


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return *data* with one damage of the kinds that disks, networks and people do."""
    at, length = rng.randrange(len(data)), rng.randint(1, 200)
    before, there, after = data[:at], data[at : at + length], data[at + length :]
    damages = [
        before + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        before,
        before + after,
        before + there + there + after,
        before + bytes(len(there)) + after,
        data + rng.randbytes(length),
        before + rng.randbytes(length) + after,
    ]
    return rng.choice(damages)


def good_files(files: Files) -> list[tuple[bytes, StoredKind, VersionId]]:
    good = []
    for compression in Compression:
        backend = MemoryBackend()
        base = backend.open(STORE, commit_up_to(backend, STORE, 4)[4])
        write_state_snapshot(files, STORE, base, {}, compression)
        version_id = write(files, compression)
        for kind, ref in ((StoredKind.CHANGES, version_id), (StoredKind.SNAPSHOT, base.version_id)):
            good.append((files.read(file_name(STORE, ref, kind)), kind, ref))
    return good


def require_refused(files: Files, count: int, seed: int) -> None:
    """Assert that of so many damaged files none is read to its end."""
    rng = random.Random(seed)
    good = good_files(files)
    for number in range(count):
        data, kind, version_id = good[number % len(good)]
        damaged = mutate(data, rng)
        if damaged == data:
            continue
        try:
            stored = open_stored(OneFile(damaged), STORE, version_id, kind)  # type: ignore[arg-type]
            parts = list(stored.parts)
        except CorruptCheckpointError:
            continue
        raise AssertionError(f"damage {number} of seed {seed} was not noticed: {parts}")


def test_a_damaged_file_is_refused(files: Files) -> None:
    """Thousands of damages of seven kinds: the documented error, each time, and nothing else."""
    require_refused(files, 4000, seed=11)


@pytest.mark.slow
def test_a_million_damaged_files_are_refused(files: Files) -> None:
    """The same at length."""
    require_refused(files, 1_000_000, seed=12)


def with_right_checksums(data: bytes, kind: FileKind, rng: random.Random) -> bytes:
    """A file whose header and payload were changed by somebody who knows how to sign it."""
    start = data.index(b"{")
    end = data.index(b"BLCK") - 4
    fields = bytearray(data[start:end])
    payload = bytearray(data[end + 4 + 20 : -40])
    for target in (fields, payload):
        for _ in range(rng.randint(0, 2)):
            target[rng.randrange(len(target))] = rng.choice([0, 1, 255, rng.randrange(256)])
    try:
        decoded = decode(bytes(fields), dict, "file", "a header")
    except CorruptCheckpointError:
        decoded = {}
    return b"".join(write_frames(kind, decoded, [(bytes(payload), rng.randrange(20))]))


def test_a_forged_file_is_refused_or_read(files: Files) -> None:
    """Past the checksums too there is one error only, no hang, and no memory that grows."""
    rng = random.Random(3)
    kinds = {StoredKind.CHANGES: FileKind.CHANGES, StoredKind.SNAPSHOT: FileKind.SNAPSHOT}
    refused = 0
    good = good_files(files)
    for number in range(3000):
        data, kind, version_id = good[number % len(good)]
        forged = with_right_checksums(data, kinds[kind], rng)
        try:
            stored = open_stored(OneFile(forged), STORE, version_id, kind)  # type: ignore[arg-type]
            list(stored.parts)
        except CorruptCheckpointError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize("read", [read_changelog, read_state_snapshot])
def test_a_directory_in_place_of_a_file_is_refused(
    tmp_path: Path, files: Files, read: Callable[..., object]
) -> None:
    """As everything that is no regular file."""
    version_id = VersionId(1, new_uid(1))
    kind = StoredKind.CHANGES if read is read_changelog else StoredKind.SNAPSHOT
    (tmp_path / "files" / file_name(STORE, version_id, kind)).mkdir(parents=True)
    with pytest.raises((CorruptCheckpointError, StorageRefusedError), match="directory"):
        read(files, STORE, version_id)

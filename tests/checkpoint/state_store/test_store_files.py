"""Files of stores: names, blocks and columns of changes, changelogs, snapshots, and chains."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from checkpoint import CorruptCheckpointError, Files, StorageRefusedError, open_files
from checkpoint.log.batch_records import EMPTY, StoreId, VersionId
from checkpoint.state_store import MemoryBackend
from checkpoint.state_store.backend import Changes
from checkpoint.state_store.store_files import (
    BLOCK_BYTES,
    MAX_KEY_BYTES,
    MAX_RECORD_BYTES,
    Column,
    Compression,
    Pairs,
    ReplayPlan,
    StoredKind,
    decode_changes,
    directory_of,
    encode_changes,
    epoch_of,
    file_name,
    list_snapshots,
    new_uid,
    open_stored,
    parse_file_name,
    plan_catch_up,
    plan_rebuilds,
    read_changelog,
    read_parent,
    read_state_snapshot,
    walk_back,
    write_changelog,
    write_state_snapshot,
)
from checkpoint.storage.framing import FileKind, FileRef, write_frames
from checkpoint.storage.json_records import decode
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
    """Changes, parent, codec and epoch are read back."""
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
    """The number of keys would be unknown; nothing is written."""
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
    """Keys and index are in order; a second writer finds the file."""
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
    """The error has the version, the store and a remedy."""
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
    """A file of another store under this name is rejected."""
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
    """A renamed file is rejected."""
    version_id = write(files)
    data = files.read(file_name(STORE, version_id, StoredKind.CHANGES))
    for other in (VersionId(1, new_uid(3)), VersionId(2, version_id.uid)):
        files.create(file_name(STORE, other, StoredKind.CHANGES), [data])
        with pytest.raises(CorruptCheckpointError, match=f"is of version 1, .*{version_id.uid}"):
            read_changelog(files, STORE, other)


def test_a_changelog_is_no_snapshot(files: Files) -> None:
    """The kind of a file is checked."""
    version_id = write(files)
    data = files.read(file_name(STORE, version_id, StoredKind.CHANGES))
    files.create(file_name(STORE, version_id, StoredKind.SNAPSHOT), [data])
    with pytest.raises(CorruptCheckpointError, match="is of kind b'CHNG'"):
        read_state_snapshot(files, STORE, version_id)


def header(**other: object) -> dict[str, object]:
    """Return the header of a good changelog with changed fields."""
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
    """Content is checked even if the checksums are correct."""
    version_id = VersionId(3, "ab" * 12)
    frames = write_frames(FileKind.CHANGES, header(**wrong), [(payload, records)])
    files.create(file_name(STORE, version_id, StoredKind.CHANGES), frames)
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        list(read_changelog(files, STORE, version_id).parts)


def test_a_file_without_blocks_is_refused(files: Files) -> None:
    """The number of keys would be unknown."""
    version_id = VersionId(3, "ab" * 12)
    name = file_name(STORE, version_id, StoredKind.CHANGES)
    files.create(name, write_frames(FileKind.CHANGES, header(), []))
    with pytest.raises(CorruptCheckpointError, match="has no blocks"):
        list(read_changelog(files, STORE, version_id).parts)


class OneFile:
    """Files with one file under every name."""

    url = "file:///one"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_chunks(self, name: str, chunk_bytes: int) -> object:
        yield self.data


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return *data* with one kind of damage."""
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
    """Assert that none of many damaged files is read to its end."""
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
    """Thousands of damages of seven kinds raise the documented error."""
    require_refused(files, 4000, seed=11)


@pytest.mark.slow
def test_a_million_damaged_files_are_refused(files: Files) -> None:
    """The same with more damages."""
    require_refused(files, 1_000_000, seed=12)


def with_right_checksums(data: bytes, kind: FileKind, rng: random.Random) -> bytes:
    """Return a file with changed header and payload and correct checksums."""
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
    """With correct checksums, a file is read or raises one error, in bounded memory."""
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
    """A directory is rejected, as everything but a regular file."""
    version_id = VersionId(1, new_uid(1))
    kind = StoredKind.CHANGES if read is read_changelog else StoredKind.SNAPSHOT
    (tmp_path / "files" / file_name(STORE, version_id, kind)).mkdir(parents=True)
    with pytest.raises((CorruptCheckpointError, StorageRefusedError), match="directory"):
        read(files, STORE, version_id)


COUNTS = StoreId("stream-1", "Counts per user", "default", 3, 8)


def test_a_uid_is_new_and_tells_its_epoch() -> None:
    """Uids are unique and contain the epoch."""
    uids = {new_uid(epoch) for epoch in (0, 7, 7, 16**8 - 1)}
    assert len(uids) == 4
    assert sorted(epoch_of(uid) or 0 for uid in uids) == [0, 7, 7, 16**8 - 1]
    assert epoch_of("0123456789abcdef") is None


@pytest.mark.parametrize("epoch", [-1, 16**8])
def test_an_epoch_that_no_uid_can_tell_is_refused(epoch: int) -> None:
    """The error has the range of epochs."""
    with pytest.raises(ValueError, match="must be 0 to 4294967295"):
        new_uid(epoch)


@pytest.mark.parametrize("kind", StoredKind)
def test_a_name_follows_from_the_version_and_back(kind: StoredKind) -> None:
    """Names are converted to versions and back."""
    version_id = VersionId(12, new_uid(1))
    name = file_name(COUNTS, version_id, kind)
    assert name.startswith(directory_of(COUNTS))
    assert parse_file_name(name) == (directory_of(COUNTS), version_id, kind)


@pytest.mark.parametrize(
    "name",
    [
        "state/counts/0000000000001000-p00000-e1-ab.state",
        "stores/a/b/p00000/0000000000000001-zz.changes",
        "stores/a/b/p00000/0000000000000000-0123456789abcdef01234567.changes",
        "stores/a/b/p00000/0000000000000001-0123456789abcdef01234567.changes.tmp",
        "stores/a/b/0000000000000001-0123456789abcdef01234567.changes",
    ],
)
def test_other_names_are_no_files_of_stores(name: str) -> None:
    """Other names are ignored."""
    assert parse_file_name(name) is None


@pytest.mark.parametrize(
    ("version", "uid"), [(-1, ""), (0, "0" * 24), (1, ""), (1, "XYZ"), (1, "a/b")]
)
def test_impossible_versions_are_refused(version: int, uid: str) -> None:
    """Version 0 has no uid, every other one has."""
    with pytest.raises(ValueError, match="version"):
        VersionId(version, uid)
    assert VersionId(0, "") == EMPTY


CHAIN = [EMPTY, *(VersionId(version, f"{version:08x}") for version in range(1, 9))]
OTHER = [*CHAIN[:4], *(VersionId(version, f"{version:08x}aa") for version in range(4, 7))]
BASES = {newer: older for chain in (CHAIN, OTHER) for older, newer in itertools.pairwise(chain)}


def base_of(version_id: VersionId) -> VersionId:
    return BASES[version_id]


def test_a_walk_ends_with_the_empty_content() -> None:
    """A walk yields every version of the chain, newest first."""
    assert list(walk_back(CHAIN[3], base_of)) == [CHAIN[3], CHAIN[2], CHAIN[1], EMPTY]
    assert list(walk_back(EMPTY, base_of)) == [EMPTY]


@pytest.mark.parametrize(
    ("local", "wanted", "most", "plan"),
    [
        (CHAIN[5], CHAIN[5], 0, ReplayPlan(CHAIN[5], ())),
        (CHAIN[4], CHAIN[5], 1, ReplayPlan(CHAIN[4], (CHAIN[5],))),
        (CHAIN[2], CHAIN[5], 9, ReplayPlan(CHAIN[2], tuple(CHAIN[3:6]))),
        (EMPTY, CHAIN[2], 9, ReplayPlan(EMPTY, tuple(CHAIN[1:3]))),
        (CHAIN[2], CHAIN[5], 2, None),  # too far behind
        (CHAIN[6], CHAIN[5], 9, None),  # ahead
        (OTHER[4], CHAIN[5], 9, None),  # on another chain
        (OTHER[5], CHAIN[5], 9, None),  # the same version of another chain
        (OTHER[3], CHAIN[5], 9, ReplayPlan(CHAIN[3], tuple(CHAIN[4:6]))),  # before they part
    ],
)
def test_a_replica_catches_up_only_along_its_own_chain(
    local: VersionId, wanted: VersionId, most: int, plan: ReplayPlan | None
) -> None:
    """The plan has the changelogs to the version, or is None."""
    assert plan_catch_up(local, wanted, base_of, most) == plan


def test_rebuilds_begin_with_the_newest_snapshot_of_the_chain() -> None:
    """Each further plan has an older start, the last one the empty store."""
    snapshots = frozenset({CHAIN[2], CHAIN[5], OTHER[6], CHAIN[8]})
    assert list(plan_rebuilds(CHAIN[7], snapshots, base_of)) == [
        ReplayPlan(CHAIN[5], tuple(CHAIN[6:8])),
        ReplayPlan(CHAIN[2], tuple(CHAIN[3:8])),
        ReplayPlan(EMPTY, tuple(CHAIN[1:8])),
    ]


def test_a_snapshot_of_the_content_itself_needs_no_changelog() -> None:
    """No earlier file of the chain is read."""
    plans = plan_rebuilds(CHAIN[8], frozenset({CHAIN[8]}), {}.__getitem__)
    assert next(plans) == ReplayPlan(CHAIN[8], ())


ITEMS = [b"a", b"", b"ccc", b"dd", *(bytes(number % 7) for number in range(1000))]
SAME = [b"%03d" % number for number in range(600)]


@pytest.mark.parametrize("items", [ITEMS, SAME, [b"one"], []], ids=["some", "same", "one", "none"])
def test_a_column_is_a_sequence(items: list[bytes]) -> None:
    """Items are accessed in order, by index and by slice, repeatedly."""
    column = Column.of(items)
    assert [list(column), list(column)] == [items, items]
    assert len(column) == len(items)
    assert [column[at] for at in range(-len(items), len(items))] == items * 2
    assert column[1:5] == items[1:5]
    assert column == items
    assert bytes(column.whole()) == b"".join(items)
    assert column.size_bytes == len(b"".join(items))


def test_a_column_in_the_middle_of_bytes() -> None:
    """A column and its parts may begin anywhere."""
    column = Column([1, 3, 2], b"--abbbcc--", at=2)
    assert list(column) == [b"a", b"bbb", b"cc"]
    assert bytes(column.whole()) == b"abbbcc"
    assert list(column.part(1, 3)) == [b"bbb", b"cc"]
    assert bytes(column.part(1, 2).whole()) == b"bbb"
    assert repr(column) == "[b'a', b'bbb', b'cc']"
    assert column != [b"a"]


def test_columns_are_joined() -> None:
    """A joined column has the items of all, also of parts."""
    whole = Column.of(ITEMS)
    parts = [whole.part(0, 3), whole.part(3, 400), whole.part(400, len(ITEMS))]
    assert list(Column.joined(parts)) == ITEMS
    assert Column.joined(parts[:1]) is parts[0]


def test_a_column_that_ends_too_early() -> None:
    """Lengths beyond the bytes are rejected."""
    with pytest.raises(ValueError, match="a column of 2 items is 3 bytes too short"):
        Column([2, 4], b"abc")


SOME = Changes(
    [(b"a", b"1"), (b"b", b""), (b"c" * 503, b"x" * 70_000)],
    [b"d", b"e"],
    [b"00000001a"],
    [b"00000000b"],
    7,
)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(
    "changes",
    [SOME, Changes([], [], [], [], 0), Changes([(b"k", b"v")] * 3, [], [], [], 1 << 40)],
    ids=["some", "none", "equal"],
)
def test_what_is_encoded_is_decoded(changes: Changes, compression: Compression) -> None:
    """Puts, removes, index entries and count are read back."""
    [(block, operations)] = encode_changes(changes, compression)
    found = decode_changes(block, compression)
    assert list(found.puts) == list(changes.puts)
    assert list(found.removes) == changes.removes
    assert list(found.index_puts) == changes.index_puts
    assert list(found.index_removes) == changes.index_removes
    assert found.count == changes.count
    items = (changes.puts, changes.removes, changes.index_puts, changes.index_removes)
    assert operations == sum(map(len, items))


def test_large_changes_are_cut_into_blocks() -> None:
    """Blocks have a bounded size, and are in key order."""
    puts = [(b"%06d" % number, b"x" * 100) for number in range(50_000)]
    blocks = list(encode_changes(Changes(puts, [b"~"], [], [], 50_000), Compression.NONE))
    assert len(blocks) > 4
    assert all(len(block) < 1.2 * BLOCK_BYTES for block, _ in blocks)
    parts = [decode_changes(block, Compression.NONE) for block, _ in blocks]
    assert sorted(put for part in parts for put in part.puts) == puts
    assert sum(operations for _, operations in blocks) == 50_001
    assert {part.count for part in parts} == {50_000}


def test_pairs_are_a_sequence() -> None:
    """Columns read as pairs, by position and by range."""
    pairs = Pairs((b"a", b"b", b"c"), (b"1", b"2", b"3"))
    assert list(pairs) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert pairs[1] == (b"b", b"2")
    assert pairs[1:] == [(b"b", b"2"), (b"c", b"3")]
    assert pairs != [(b"a", b"1")]
    assert len(pairs) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes([(b"", b"v")], [], [], [], 1), "key of 0 bytes"),
        (Changes([(b"k" * (MAX_KEY_BYTES + 1), b"v")], [], [], [], 1), "key of 504 bytes"),
        (Changes([], [b"k" * 600], [], [], 1), "key of 600 bytes"),
        (Changes([], [], [b"x" * 512], [], 1), "index entry of 512 bytes"),
        (Changes([(b"k", b"v" * (MAX_RECORD_BYTES + 1))], [], [], [], 1), "record of"),
    ],
)
def test_what_no_store_can_hold_is_refused_before_it_is_written(
    changes: Changes, message: str
) -> None:
    """The error has the size, the limit and a remedy."""
    with pytest.raises(ValueError, match=message) as error:
        list(encode_changes(changes, Compression.NONE))
    assert "split them over several keys" in str(error.value)


def test_a_block_that_grows_without_end_is_not_decompressed() -> None:
    """A frame must state the length of the block, which is bounded."""
    bomb = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    for stated in (100, 64 << 20, 100 << 20):
        with pytest.raises(ValueError, match="states a size of"):
            decode_changes(struct.pack("<I", stated) + bomb, Compression.ZSTD)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(ValueError, match="states a size of"):
        decode_changes(struct.pack("<I", 1000) + silent, Compression.ZSTD)


@pytest.mark.parametrize("compression", Compression)
def test_damaged_blocks_are_errors_and_nothing_else(compression: Compression) -> None:
    """Changed bytes give a block or a ValueError."""
    rng = random.Random(5)
    [(block, _)] = encode_changes(SOME, compression)
    small = Changes(SOME.puts[:2], SOME.removes, SOME.index_puts, SOME.index_removes, 4)
    [(little, _)] = encode_changes(small, compression)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(rng.choice([block, little, little, little]))
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 255, rng.randrange(256)])
        cut = damaged[: rng.choice([len(damaged), rng.randrange(len(damaged) + 1)])]
        try:
            decode_changes(bytes(cut), compression)
        except ValueError:
            refused += 1
    assert refused > 1000

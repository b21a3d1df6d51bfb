"""State files: the partition that was asked for, whole, or an error that names the file."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from checkpoint import (
    AlreadyExistsError,
    CorruptCheckpointError,
    FileRef,
    LocalFiles,
    StateFileId,
    StatePartition,
    new_attempt,
    read_state_file,
    write_state_file,
)
from checkpoint.storage.files import is_name
from checkpoint.storage.framing import FileKind, write_frames
from checkpoint.storage.json_records import convert, decode, encode

ID = StateFileId("stream-1", "counts", 2000, 0, 2, "stable", 7, "0a1b")
BLOCKS = [(b"one" * 100, 3), (b"two" * 100, 4)]
PAYLOADS = [payload for payload, _ in BLOCKS]


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


def test_a_file_reads_back_and_its_reference_tells_the_truth(
    files: LocalFiles, tmp_path: Path
) -> None:
    """Payloads come back in order; size and records are those of the file."""
    ref = write_state_file(files, ID, iter(BLOCKS))
    assert list(read_state_file(files, ref, ID)) == PAYLOADS
    assert (ref.name, ref.records) == (ID.name, 7)
    assert ref.size_bytes == (tmp_path / ref.name).stat().st_size


def test_an_empty_partition_is_a_file_too(files: LocalFiles) -> None:
    """No keys means no blocks, and still a file that proves it."""
    ref = write_state_file(files, ID, [])
    assert list(read_state_file(files, ref, ID)) == []
    assert ref.records == 0


def test_names_are_unique_to_the_attempt_and_sort_by_time() -> None:
    """Two attempts never share a name, and a listing is in order of batches."""
    assert ID.name == "state/counts/0000000000002000-p00000-e7-0a1b.state"
    others = [
        dataclasses.replace(ID, **change)
        for change in (
            {"operator_uid": "Counts"},
            {"batch_time_ms": 10_000},
            {"partition": 1},
            {"epoch": 8},
            {"attempt": "0a1c"},
        )
    ]
    names = [ID.name, *(other.name for other in others)]
    assert len({name.lower() for name in names}) == len(names)
    assert all(is_name(name) for name in names)
    assert others[1].name > ID.name


def test_attempts_are_names_that_were_never_seen() -> None:
    """Attempts are random and fit into file names."""
    attempts = {new_attempt() for _ in range(100)}
    assert len(attempts) == 100
    assert all(dataclasses.replace(ID, attempt=attempt).name for attempt in attempts)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stream_id": ""}, "stream_id of a state file is empty"),
        ({"operator_uid": ""}, "operator_uid of a state file is empty"),
        ({"partitioner": ""}, "partitioner of a state file is empty"),
        ({"batch_time_ms": -1}, "batch time of -1 ms"),
        ({"partition": 2}, "partition 2 of 'counts' must be 0 to 1, as it has 2"),
        ({"partition": -1}, "partition -1"),
        ({"epoch": -1}, "epoch -1"),
        ({"attempt": ""}, "attempt ''"),
        ({"attempt": "../x"}, "attempt '../x' must be"),
        ({"attempt": "x\n"}, "attempt"),
    ],
)
def test_an_impossible_id_is_a_value_error(change: dict[str, object], said: str) -> None:
    """What could not be a file is refused where it is made."""
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(ID, **change)  # type: ignore[arg-type]


def test_two_attempts_leave_two_files_and_one_attempt_writes_once(files: LocalFiles) -> None:
    """A twin does not touch the other's file, and no attempt can write twice."""
    ref = write_state_file(files, ID, BLOCKS)
    twin = write_state_file(files, dataclasses.replace(ID, attempt="twin"), [(b"other", 1)])
    assert twin.name != ref.name
    with pytest.raises(AlreadyExistsError):
        write_state_file(files, ID, [(b"other", 1)])
    assert list(read_state_file(files, ref, ID)) == PAYLOADS


def test_an_error_of_the_blocks_leaves_no_file(files: LocalFiles) -> None:
    """A user function that fails half way leaves nothing that could be taken for a state."""

    def blocks() -> Iterator[tuple[bytes, int]]:
        yield from BLOCKS
        raise LookupError("user code")

    with pytest.raises(LookupError, match="user code"):
        write_state_file(files, ID, blocks())
    assert files.list("") == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream_id", "stream-2"),
        ("operator_uid", "sums"),
        ("batch_time_ms", 3000),
        ("partition", 1),
        ("partition_count", 3),
        ("partitioner", "portable_hash"),
    ],
)
def test_the_state_of_something_else_is_refused_by_name(
    files: LocalFiles, field: str, value: str | int
) -> None:
    """A file is opened only as the state that it says it holds."""
    ref = write_state_file(files, ID, BLOCKS)
    wanted = dataclasses.replace(ID, **{field: value})  # type: ignore[arg-type]
    said = f"{ref.name} is of {field} {getattr(ID, field)!r}; expected {field} {value!r}"
    with pytest.raises(CorruptCheckpointError) as raised:
        read_state_file(files, ref, wanted)
    assert said in str(raised.value)


def test_swapped_partitions_are_refused(files: LocalFiles, tmp_path: Path) -> None:
    """Two files that took each other's place are both found out before any block."""
    ids = [dataclasses.replace(ID, partition=number) for number in range(2)]
    refs = [write_state_file(files, file_id, BLOCKS) for file_id in ids]
    one, two = (tmp_path / ref.name for ref in refs)
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    for file_id, ref in zip(ids, refs, strict=True):
        with pytest.raises(CorruptCheckpointError, match=f"{ref.name} is of partition"):
            read_state_file(files, ref, file_id)


def test_a_copy_of_another_attempt_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    """A file holds its own name: the same state under the name of a twin is another file."""
    ref = write_state_file(files, ID, BLOCKS)
    twin = write_state_file(files, dataclasses.replace(ID, attempt="twin"), BLOCKS)
    shutil.copy(tmp_path / twin.name, tmp_path / ref.name)
    with pytest.raises(CorruptCheckpointError, match=f"was written as {twin.name}"):
        read_state_file(files, ref, ID)


def test_other_content_under_the_same_header_is_found_by_its_digest(
    files: LocalFiles, tmp_path: Path
) -> None:
    """A good file that is not the one that was committed is refused when it ends."""
    ref = write_state_file(files, ID, BLOCKS)
    (tmp_path / ref.name).unlink()
    other = write_state_file(files, ID, [(b"six" * 100, 3), BLOCKS[1]])
    assert (other.size_bytes, other.records) == (ref.size_bytes, ref.records)
    with pytest.raises(CorruptCheckpointError, match=f"has {other.digest} as its digest"):
        list(read_state_file(files, ref, ID))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size_bytes": 1}, "bytes; expected 1, as the record says"),
        ({"records": 8}, "has 7 records; expected 8"),
        ({"digest": "0" * 32}, "as its digest; expected 00000000"),
    ],
)
def test_a_reference_that_does_not_fit_is_an_error(
    files: LocalFiles, change: dict[str, object], said: str
) -> None:
    """Size, records and digest are compared with what the commit record says."""
    ref = write_state_file(files, ID, BLOCKS)
    with pytest.raises(CorruptCheckpointError, match=said):
        list(read_state_file(files, replace(ref, **change), ID))


def pull(files: LocalFiles, ref: FileRef, seen: list[bytes]) -> None:
    for payload in read_state_file(files, ref, ID):
        seen.append(payload)


def test_damage_hands_out_only_blocks_that_were_good(files: LocalFiles, tmp_path: Path) -> None:
    """A byte changed anywhere is found, and no changed payload is ever seen."""
    ref = write_state_file(files, ID, BLOCKS)
    good = (tmp_path / ref.name).read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        (tmp_path / ref.name).write_bytes(bad)
        seen: list[bytes] = []
        with pytest.raises(CorruptCheckpointError, match=ref.name):
            pull(files, ref, seen)
        assert seen == PAYLOADS[: len(seen)]


def test_a_missing_file_is_named_with_what_it_held(files: LocalFiles) -> None:
    """A file that a commit record names, and that is gone, is damage and not an empty state."""
    ref = write_state_file(files, ID, BLOCKS)
    files.delete(ref.name)
    with pytest.raises(CorruptCheckpointError, match=r"is missing; expected .* 7 records; restore"):
        read_state_file(files, ref, ID)


def test_a_file_of_another_kind_is_refused(files: LocalFiles) -> None:
    """A commit record in the place of a state file is not read as state."""
    ref = write_state_file(files, ID, BLOCKS)
    files.delete(ref.name)
    files.create(ref.name, write_frames(FileKind.COMMIT, dataclasses.asdict(ID), BLOCKS))
    with pytest.raises(CorruptCheckpointError, match="is of kind"):
        read_state_file(files, ref, ID)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(StateFileId)])
def test_a_header_that_lacks_a_field_is_refused(files: LocalFiles, field: str) -> None:
    """A file that does not say what it is cannot be the one."""
    ref = write_state_file(files, ID, BLOCKS)
    files.delete(ref.name)
    header = dataclasses.asdict(ID)
    del header[field]
    files.create(ref.name, write_frames(FileKind.STATE, header, BLOCKS))
    with pytest.raises(
        CorruptCheckpointError, match=f"is of {field}|missing required field `{field}`"
    ):
        read_state_file(files, ref, ID)


def test_references_go_through_json_and_pickle() -> None:
    """A reference comes back equal from a commit record and from a task."""
    ref = FileRef("state/a", 100, "0" * 32, 5)
    assert decode(encode(ref), FileRef, "file", "a reference") == ref
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert pickle.loads(pickle.dumps(ID)) == ID


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": 5},
        {"size_bytes": -1},
        {"records": "0"},
        {"size_bytes": 1.5},
        {"records": None},
        {"records": True},
        {"blocks": 2},
        {"digest": "zz"},
        {"digest": "0" * 31},
    ],
)
def test_json_that_is_no_reference_is_refused(change: dict[str, object]) -> None:
    """Names that leave the root and fields of other types do not get past the record."""
    data = asdict(FileRef("state/a", 100, "0" * 32, 5)) | change
    with pytest.raises(CorruptCheckpointError, match=r"file says: .*; expected the JSON of"):
        convert(data, FileRef, "file", "a reference")


def test_a_reader_needs_no_attempt() -> None:
    """A file id is also the partition that it holds."""
    assert isinstance(ID, StatePartition)

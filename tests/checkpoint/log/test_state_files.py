"""State files: identity, totals, and the layout of their blocks."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from checkpoint import (
    AlreadyExistsError,
    CorruptCheckpointError,
    FileRef,
    LocalFiles,
    PairBlock,
    PairForm,
    StateFileId,
    StatePartition,
    new_attempt,
    pair_header,
    read_state_file,
    rows_of_fields,
    with_origin,
    write_state_file,
)
from checkpoint.cli.plain import NotShown, pairs_of
from checkpoint.log.state_files import (
    arrow_metadata,
    arrow_pairs,
    arrow_side,
    is_arrow_block,
    write_arrow,
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
    """Payloads are read in order; size and records are those of the file."""
    ref = write_state_file(files, ID, iter(BLOCKS))
    assert list(read_state_file(files, ref, ID)) == PAYLOADS
    assert (ref.name, ref.records) == (ID.name, 7)
    assert ref.size_bytes == (tmp_path / ref.name).stat().st_size


def test_an_empty_partition_is_a_file_too(files: LocalFiles) -> None:
    """A partition without keys has a file without blocks."""
    ref = write_state_file(files, ID, [])
    assert list(read_state_file(files, ref, ID)) == []
    assert ref.records == 0


def test_names_are_unique_to_the_attempt_and_sort_by_time() -> None:
    """Attempts never share a name, and names sort by batch."""
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
    """Attempts are random, and valid in file names."""
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
    """Invalid ids are rejected when they are created."""
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(ID, **change)  # type: ignore[arg-type]


def test_two_attempts_leave_two_files_and_one_attempt_writes_once(files: LocalFiles) -> None:
    """Attempts do not affect each other, and none can write twice."""
    ref = write_state_file(files, ID, BLOCKS)
    twin = write_state_file(files, dataclasses.replace(ID, attempt="twin"), [(b"other", 1)])
    assert twin.name != ref.name
    with pytest.raises(AlreadyExistsError):
        write_state_file(files, ID, [(b"other", 1)])
    assert list(read_state_file(files, ref, ID)) == PAYLOADS


def test_an_error_of_the_blocks_leaves_no_file(files: LocalFiles) -> None:
    """If the blocks raise an error, no file is created."""

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
    """A file is opened only as the state that its header states."""
    ref = write_state_file(files, ID, BLOCKS)
    wanted = dataclasses.replace(ID, **{field: value})  # type: ignore[arg-type]
    said = f"{ref.name} is of {field} {getattr(ID, field)!r}; expected {field} {value!r}"
    with pytest.raises(CorruptCheckpointError) as raised:
        read_state_file(files, ref, wanted)
    assert said in str(raised.value)


def test_swapped_partitions_are_refused(files: LocalFiles, tmp_path: Path) -> None:
    """Two swapped files are detected before any block is returned."""
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
    """A file contains its own name, so it is rejected under another one."""
    ref = write_state_file(files, ID, BLOCKS)
    twin = write_state_file(files, dataclasses.replace(ID, attempt="twin"), BLOCKS)
    shutil.copy(tmp_path / twin.name, tmp_path / ref.name)
    with pytest.raises(CorruptCheckpointError, match=f"was written as {twin.name}"):
        read_state_file(files, ref, ID)


def test_other_content_under_the_same_header_is_found_by_its_digest(
    files: LocalFiles, tmp_path: Path
) -> None:
    """An intact file other than the committed one is rejected at its end."""
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
    """Size, records and digest are compared with the commit record."""
    ref = write_state_file(files, ID, BLOCKS)
    with pytest.raises(CorruptCheckpointError, match=said):
        list(read_state_file(files, replace(ref, **change), ID))


def pull(files: LocalFiles, ref: FileRef, seen: list[bytes]) -> None:
    for payload in read_state_file(files, ref, ID):
        seen.append(payload)


def test_damage_hands_out_only_blocks_that_were_good(files: LocalFiles, tmp_path: Path) -> None:
    """Every changed byte is detected, and no damaged payload is returned."""
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
    """A missing file is damage, not an empty state."""
    ref = write_state_file(files, ID, BLOCKS)
    files.delete(ref.name)
    with pytest.raises(CorruptCheckpointError, match=r"is missing; expected .* 7 records; restore"):
        read_state_file(files, ref, ID)


def test_a_file_of_another_kind_is_refused(files: LocalFiles) -> None:
    """A commit record is not read as a state file."""
    ref = write_state_file(files, ID, BLOCKS)
    files.delete(ref.name)
    files.create(ref.name, write_frames(FileKind.COMMIT, dataclasses.asdict(ID), BLOCKS))
    with pytest.raises(CorruptCheckpointError, match="is of kind"):
        read_state_file(files, ref, ID)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(StateFileId)])
def test_a_header_that_lacks_a_field_is_refused(files: LocalFiles, field: str) -> None:
    """A file with an incomplete header is rejected."""
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
    """References survive commit records and tasks."""
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
    """Names outside the root and fields of other types are rejected."""
    data = asdict(FileRef("state/a", 100, "0" * 32, 5)) | change
    with pytest.raises(CorruptCheckpointError, match=r"file says: .*; expected the JSON of"):
        convert(data, FileRef, "file", "a reference")


def test_a_reader_needs_no_attempt() -> None:
    """A file id also identifies its partition."""
    assert isinstance(ID, StatePartition)


@pytest.mark.parametrize("form", PairForm)
def test_the_parts_of_a_block(form: PairForm) -> None:
    """A block is read as it was written, also with an origin."""
    data = pair_header(1, form, 3, 4) + b"keys" + b"values"
    block = PairBlock(data)
    assert (block.side_number, block.form, block.rows, block.origin) == (1, form, 3, (-1, -1))
    assert (bytes(block.key_column), bytes(block.value_column)) == (b"keys", b"values")
    assert (block.data, block.size) == (data, len(data))
    moved = PairBlock(memoryview(with_origin(data, 7, 9)))
    assert (moved.side_number, moved.form, moved.rows, moved.origin) == (1, form, 3, (7, 9))
    assert bytes(moved.key_column) == b"keys"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 9,
        pair_header(2, PairForm.COMMON, 0, 0),
        pair_header(0, PairForm.COMMON, 1, 5) + b"keys",
        b"\x00\x03" + bytes(8),
        pickle.dumps([("a", 1)], 5),
    ],
)
def test_what_is_no_block_is_refused(data: bytes) -> None:
    """Invalid headers are rejected."""
    with pytest.raises(ValueError, match=r"block|not a valid PairForm"):
        PairBlock(data)


def test_columns_of_fields_are_rows_again() -> None:
    """Columns are converted to rows, also if a field is a tuple."""
    assert rows_of_fields([1, 2]) == [1, 2]
    assert rows_of_fields(([1, 2], (["a", "b"], [3, 4]))) == [(1, ("a", 3)), (2, ("b", 4))]


pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")


def payload_of(side: str, keys: tuple[str, ...], **columns: Any) -> bytes:
    block = pa.record_batch(columns).replace_schema_metadata(arrow_metadata(side, keys))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    data: bytes = sink.getvalue().to_pybytes()
    return data


ONE = payload_of("STATE", ("word",), word=["a", None], total=[1, 2])
TWO = payload_of("STATE", ("word", "day"), word=["a"], day=[3], total=[1])
SAID = payload_of("OUTPUT", (), word=["a"])


def test_keys_and_states() -> None:
    """A key of one column is its value, of several a tuple; blocks without state are skipped."""
    assert list(arrow_pairs(ONE)) == [("a", {"total": 1}), (None, {"total": 2})]
    assert list(arrow_pairs(TWO)) == [(("a", 3), {"total": 1})]
    assert list(arrow_pairs(SAID)) == []
    assert list(pairs_of(ONE, repr)) == list(arrow_pairs(ONE))
    assert not is_arrow_block(b"\x01\x00")
    assert arrow_side(None) is None


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the package to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    [(shown, _)] = pairs_of(ONE, repr)
    assert isinstance(shown, NotShown)
    assert "pyarrow cannot be imported here" in shown.reason
    assert "pip install 'dstreams[arrow]'" in shown.reason


def test_a_file_of_arrow(tmp_path: Path) -> None:
    """The file has all blocks of the state, and only those."""
    path = str(tmp_path / "state.arrow")
    assert write_arrow([ONE, SAID, ONE], path) == 4
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        assert reader.read_all().column("total").to_pylist() == [1, 2, 1, 2]
    with pytest.raises(FileExistsError):
        write_arrow([ONE], path)
    with pytest.raises(ValueError, match="the state is in pairs"):
        write_arrow([b"\x01\x00"], str(tmp_path / "other"))
    with pytest.raises(ValueError, match="the state has no key"):
        write_arrow([SAID], str(tmp_path / "other"))

"""Record files: one name per record, created once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import (
    BeginRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    RecordId,
    StorageRefusedError,
    open_files,
)
from checkpoint.errors import AlreadyExistsError, NotDurableError, StorageUncertainError
from checkpoint.log.fencing import Claim, Takeover
from checkpoint.log.record_files import create_once, read_record, record_frames, record_ids
from checkpoint.storage.framing import FileKind
from checkpoint.storage.json_records import JsonRecord, convert, decode, encode
from tests.support.faults import FaultyFiles


@given(st.integers(0, 10**18), st.integers(0, 10**6))
def test_a_name_means_one_record(time_ms: int, epoch: int) -> None:
    """Ids are converted to names and JSON and back."""
    record_id = RecordId(time_ms, epoch)
    assert RecordId.parse(f"a/{record_id.stem}.b", "a/", ".b") == record_id
    assert encode(record_id) == f"[{time_ms},{epoch}]".encode()
    assert convert([time_ms, epoch], RecordId, "file", "an id") == record_id


@pytest.mark.parametrize(
    "name",
    [
        "a/0000000000001000-e01.b",
        "a/00000000000001000-e1.b",
        "a/1000-e1.b",
        "a/0000000000001000.b",
        "a/0000000000001000-e1.c",
        "a/x/0000000000001000-e1.b",
        "a/0000000000001000-e1.b~",
        "a/000000000000100\u0660-e1.b",
    ],
)
def test_other_names_are_no_records(name: str) -> None:
    """Similar names are rejected, so no two names mean one record."""
    assert RecordId.parse(name, "a/", ".b") is None
    assert record_ids([name], "a/", ".b") == []


@pytest.mark.parametrize("value", [[1], [1, 2, 3], "12", [1, True], [1.0, 2], [-1, 2], None])
def test_other_json_is_no_record(value: object) -> None:
    """Other JSON is rejected."""
    with pytest.raises(CorruptCheckpointError, match=r"file says: Expected .* the JSON of an id"):
        convert(value, RecordId, "file", "an id")


@pytest.mark.usefixtures("no_sync")
def test_a_file_is_created_once(tmp_path: Path) -> None:
    """The same content again is allowed; other content comes from another writer."""
    files = open_files(tmp_path)

    def taken() -> Exception:
        return ConcurrentWriterError("taken", 1, 2)

    def create(content: bytes, at: int = 0, error: type[Exception] = Exception) -> None:
        effect = "before" if error is StorageRefusedError else "after"
        faulty = FaultyFiles(files, at, effect, error)  # type: ignore[arg-type]
        create_once(faulty, "a", [content], taken, "a may be there")

    with pytest.raises(StorageRefusedError):
        create(b"one", 1, StorageRefusedError)
    create(b"one", 1, StorageUncertainError)
    create(b"one")
    with pytest.raises(ConcurrentWriterError) as raised:
        create(b"two")
    assert isinstance(raised.value.__cause__, AlreadyExistsError)
    with pytest.raises(StorageUncertainError, match=r"a may be there: .* and reading back"):
        create(b"one", 2, StorageRefusedError)
    files.delete("a")
    with pytest.raises(NotDurableError):
        create(b"one", 1, NotDurableError)


RECORDS = {
    "claim": (
        b'{"driver":{"facts":{"python":"3.11"},"host":"h","pid":7,"process":"b:1",'
        b'"started_ms":9},"epoch":2,"stream_id":"s","token":"t"}'
    ),
    "takeover": (
        b'{"begins":[[4000,1]],"epoch":2,"parent":1,"parent_token":"p","reason":"start",'
        b'"stream_id":"s","token":"t","upto_ms":3000}'
    ),
    "begin": (
        b'{"batch_id":3,"batch_time_ms":4000,"beginning":"b","epoch":2,"facts":{"f":[1]},'
        b'"graph":[0,1],"inputs":{"i":{"n":2}},"inputs_snapshot":[3000,1],"previous":[3000,1],'
        b'"stream_id":"s","watermarks":{"w":-1}}'
    ),
}
MEANT: dict[str, JsonRecord] = {
    "claim": Claim("s", 2, DriverProcess("h", 7, "b:1", 9, {"python": "3.11"}), "t"),
    "takeover": Takeover("s", 2, 1, 3000, (RecordId(4000, 1),), "start", "t", "p"),
    "begin": BeginRecord(
        "s",
        3,
        4000,
        2,
        {"i": {"n": 2}},
        {"w": -1},
        {"f": [1]},
        inputs_snapshot=RecordId(3000, 1),
        graph=RecordId(0, 1),
        previous=RecordId(3000, 1),
        beginning="b",
    ),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_the_json_of_a_record_never_changes(kind: str) -> None:
    """Records on disk outlive releases, so their JSON is fixed."""
    meant = MEANT[kind]
    assert decode(RECORDS[kind], type(meant), "file", "a record") == meant
    assert encode(meant) == RECORDS[kind]


def test_a_record_of_a_later_format_is_not_half_understood(tmp_path: Path) -> None:
    """A newer format is rejected with a remedy."""
    files = open_files(tmp_path)
    files.create("a", record_frames(FileKind.BEGIN, {"format": 2}, {}))
    with pytest.raises(CorruptCheckpointError, match=r"is a record in format 2; .* newer one"):
        read_record(files, "a", FileKind.BEGIN, {}, dict, "a record")

"""Record files: names that mean one record, and content that is written once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import ConcurrentWriterError, RecordId, StorageRefusedError, open_files
from checkpoint.errors import AlreadyExistsError, NotDurableError, StorageUncertainError
from checkpoint.record_files import create_once, record_ids
from checkpoint.testing import FaultyFiles


@given(st.integers(0, 10**18), st.integers(0, 10**6))
def test_a_name_means_one_record(time_ms: int, epoch: int) -> None:
    """From the record to its name and back; the same in JSON."""
    record_id = RecordId(time_ms, epoch)
    assert RecordId.parse(f"a/{record_id.stem}.b", "a/", ".b") == record_id
    assert RecordId.from_json(record_id.to_json()) == record_id


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
    """Also those that only look like one: two names never mean one record."""
    assert RecordId.parse(name, "a/", ".b") is None
    assert record_ids([name], "a/", ".b") == []


@pytest.mark.parametrize("value", [[1], [1, 2, 3], "12", [1, True], [1.0, 2], [-1, 2], None])
def test_other_json_is_no_record(value: object) -> None:
    """It is refused, not guessed at."""
    with pytest.raises(ValueError, match="must"):
        RecordId.from_json(value)


@pytest.mark.usefixtures("no_sync")
def test_a_file_is_created_once(tmp_path: Path) -> None:
    """The same content again is fine, other content is another writer's."""
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

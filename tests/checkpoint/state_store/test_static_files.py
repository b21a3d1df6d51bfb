"""Files of static data: written, read, damaged, and kept as long as a begin record of their run."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import BeginRecord, CorruptCheckpointError, Files, RecordId, open_files
from checkpoint.state_store import STATIC, DataValues, PickleValues, read_static, write_static
from checkpoint.state_store.static_files import static_of_no_batch, verify_static

VALUES = [[(None, ("a", 1))], [(5, {"b": 2.5})]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(str(tmp_path))


def begun(files: Files, *, uid: str = "users") -> BeginRecord:
    """Return the record of a batch that reads static data, which is written."""
    ref = write_static(files, "stream", uid, 7, 1, DataValues(), VALUES)
    fact = {"read_ms": 7, "file": ref}
    return BeginRecord("stream", 0, 10, 1, {}, facts={STATIC: {uid: fact, "large": {"file": None}}})


def test_values_come_back(files: Files) -> None:
    """Each value is a block of its own; a value that the codec refuses leaves no file."""
    record = begun(files)
    assert list(read_static(files, record, "users", DataValues())) == VALUES
    verify_static(files, record)
    names = files.list("")
    with pytest.raises(TypeError):
        write_static(files, "stream", "users", 8, 1, DataValues(), [object()])
    assert files.list("") == names


def test_another_codec_is_an_error(files: Files) -> None:
    """A pickle is never read from a file of plain values, and the reverse."""
    record = begun(files)
    with pytest.raises(CorruptCheckpointError, match="was written as 'data-1'"):
        list(read_static(files, record, "users", PickleValues()))


def test_a_missing_file_is_an_error(files: Files) -> None:
    """The error names it."""
    record = begun(files)
    (name,) = files.list("")
    files.delete(name)
    with pytest.raises(CorruptCheckpointError, match="missing"):
        verify_static(files, record)


def test_files_of_no_batch(files: Files) -> None:
    """Those of earlier epochs without begin records go; the newest epoch has not begun yet."""
    begun(files)
    names = files.list("")
    assert list(static_of_no_batch(names, [RecordId(10, 1)], 3)) == []
    assert list(static_of_no_batch(names, [RecordId(10, 2)], 1)) == []
    assert list(static_of_no_batch(names, [RecordId(10, 2)], 3)) == names

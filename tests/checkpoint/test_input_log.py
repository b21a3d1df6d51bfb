"""Input log: of a number that several drivers have written, one value counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import (
    BeginRecord,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    Files,
    InputLog,
    Owner,
    open_files,
    take_over,
)
from checkpoint.state_store import retire_batches

STREAM = "stream-1"


pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(tmp_path)


def claimed(files: Files) -> InputLog:
    """Take the stream over, and return the log of the new epoch."""
    epoch = take_over(files, STREAM, Owner.of_this_process(0)).epoch
    return InputLog(files, STREAM, "lines", epoch)


def test_values(files: Files) -> None:
    """Values come back by number, up to the one that is asked for; of each input its own."""
    log = claimed(files)
    for number in (1, 2, 10):
        log.write(number, {"n": number})
    InputLog(files, STREAM, "Other lines", log.epoch).write(1, {"n": None})
    assert list(log.read(10).items()) == [(1, {"n": 1}), (2, {"n": 2}), (10, {"n": 10})]
    assert list(log.read(2)) == [1, 2]
    assert log.read(0) == {}


def test_written_once(files: Files) -> None:
    """The same value again is fine, and another one is refused."""
    log = claimed(files)
    log.write(1, {"files": ["a"]})
    log.write(1, {"files": ["a"]})
    with pytest.raises(ConcurrentWriterError, match="is another value"):
        log.write(1, {"files": ["b"]})
    assert log.read(1) == {1: {"files": ["a"]}}


def test_of_two_drivers(files: Files) -> None:
    """An older driver that writes on changes nothing of what the newer one has written."""
    older = claimed(files)
    older.write(1, {"by": "older"})
    newer = claimed(files)
    newer.write(2, {"by": "newer"})
    older.write(2, {"by": "older"})
    older.write(3, {"by": "older"})
    assert newer.read(2) == {1: {"by": "older"}, 2: {"by": "newer"}}
    assert claimed(files).read(2) == {1: {"by": "older"}, 2: {"by": "newer"}}


def test_of_a_driver_that_never_took_over(files: Files) -> None:
    """What an epoch without a base has written does not count."""
    first = claimed(files)
    first.write(1, {"by": "first"})
    InputLog(files, STREAM, "lines", 7).write(1, {"by": "nobody"})
    assert first.read(1) == {1: {"by": "first"}}


def test_of_many_drivers(files: Files) -> None:
    """What the first one has written counts when retention has left nothing else of it."""
    for number in range(1, 6):
        tenure = take_over(files, STREAM, Owner.of_this_process(0))
        log = InputLog(files, STREAM, "lines", tenure.epoch)
        assert list(log.read(number)) == list(range(1, number))
        log.write(number, {})
        time_ms = 1000 * number
        begun = BeginRecord(STREAM, number - 1, time_ms, tenure.epoch, {"lines": number})
        tenure.batch_log().begin(begun)
        commits = tenure.commit_log()
        commits.commit(CommitRecord(STREAM, number - 1, time_ms, tenure.epoch, {}, {}))
        assert retire_batches(commits, tenure.epoch, time_ms) == []
        assert commits.times() == [time_ms]


@pytest.mark.parametrize("place", [20, 60, 150, -30])
def test_damage(files: Files, place: int) -> None:
    """A value that is damaged is refused."""
    log = claimed(files)
    log.write(1, {"files": ["a", "b"]})
    (name,) = files.list("inputs/")
    content = bytearray(files.read(name))
    content[place] ^= 1
    files.delete(name)
    files.create(name, [bytes(content)])
    with pytest.raises(CorruptCheckpointError):
        log.read(1)


def test_another_value(files: Files) -> None:
    """A file that was renamed is refused."""
    log = claimed(files)
    log.write(1, {})
    (name,) = files.list("inputs/")
    files.create(name.replace("1-e", "2-e"), [files.read(name)])
    with pytest.raises(CorruptCheckpointError, match="is 1 ms of epoch 1"):
        log.read(2)


@pytest.mark.parametrize(("stream", "uid", "epoch"), [("", "a", 1), ("s", "", 1), ("s", "a", -1)])
def test_whose(files: Files, stream: str, uid: str, epoch: int) -> None:
    """A log is of an input of a stream."""
    with pytest.raises(ValueError, match="needs the ids"):
        InputLog(files, stream, uid, epoch)

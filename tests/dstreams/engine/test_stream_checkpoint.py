"""The transaction of a batch: what its records say, who may write them, and at which steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CommitLog, ConcurrentWriterError, open_files
from checkpoint.log.batch_records import BatchLog
from dstreams.common import faults
from dstreams.engine.inputs import InputOffsets
from dstreams.engine.stream_checkpoint import StreamCheckpoint


def taken_over(directory: Path) -> StreamCheckpoint:
    return StreamCheckpoint.take_over(open_files(directory), "stream-1", now_ms=5)


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """The steps that the driver reaches."""
    steps: list[str] = []
    end = faults.watch(steps.append)
    yield steps
    end()


class Numbers:
    """A reader that depends on what batches have read: the number of the last of them."""

    def __init__(self) -> None:
        self.retired: int = 0

    def snapshot_size(self) -> int:
        return 1000

    def snapshot(self, end: Any) -> Mapping[str, object]:
        return {"upto": end}

    def retire(self, end: Any) -> None:
        self.retired = end


def test_the_steps_of_a_batch(tmp_path: Path, seen: list[str]) -> None:
    """A drill finds each step, and the records describe the batch."""
    log = taken_over(tmp_path)
    begun = log.begin(0, 1000, {"lines": {"end": 3}}, facts={"a": 1})
    log.require_newest()
    log.commit(0, 1000, watermarks={"query": 7})
    assert seen == ["rec.fence", "begin.start", "begin.done", "commit.start", "commit.done"]
    assert BatchLog(log.files).read(1000) == begun
    assert (begun.epoch, begun.inputs, begun.facts) == (1, {"lines": {"end": 3}}, {"a": 1})
    committed = CommitLog(log.files).read(1000)
    assert (committed.batch_id, committed.watermarks) == (0, {"query": 7})


def test_a_batch_that_is_begun_again(tmp_path: Path) -> None:
    """It has a token of its own, which it keeps when it begins again."""
    log = taken_over(tmp_path)
    first = log.begin(0, 1000, {})
    other = log.begin(1, 2000, {})
    assert first.beginning
    assert first.beginning != other.beginning
    again = taken_over(tmp_path)
    assert [begun.beginning for begun in again.plan.in_flight] == [
        first.beginning,
        other.beginning,
    ]
    assert again.begin(0, 1000, {"more": {}}, token=first.beginning).beginning == (first.beginning)
    assert again.begin(1, 2001, {}, token="").beginning == ""


def test_the_newest_batch(tmp_path: Path) -> None:
    """It is known after a restart; a clock that is set back makes no earlier batch."""
    log = taken_over(tmp_path)
    assert (log.newest_id, log.newest_ms, log.time_of_next(0)) == (-1, 0, 1)
    log.begin(4, 5000, {})
    assert (log.newest_id, log.time_of_next(3000), log.time_of_next(9000)) == (4, 5001, 9000)
    again = taken_over(tmp_path)
    assert (again.newest_id, again.newest_ms) == (4, 5000)


def test_an_older_driver(tmp_path: Path) -> None:
    """After a newer driver took over, it runs no output, commits nothing and deletes nothing."""
    log = taken_over(tmp_path)
    log.begin(0, 1000, {})
    newer = taken_over(tmp_path)
    log.commit(0, 1000)
    for act in (
        log.require_newest,
        log.fence.wait,
        lambda: log.retire(1000, InputOffsets({}, {}, 0)),
    ):
        with pytest.raises(ConcurrentWriterError, match="has taken over"):
            act()
    log.release()
    newer.require_newest()


def test_failed_outputs(tmp_path: Path) -> None:
    """The record and a message name them, with the way to run them again."""
    log = taken_over(tmp_path)
    said = []
    for number, failed in ((0, ["print-0"]), (1, ["save-1", "save-2"]), (2, [])):
        log.begin(number, 1000 * number + 1000, {})
        said.append(log.commit(number, 1000 * number + 1000, failed_outputs=failed))
    first, second, third = said
    assert third == ""
    assert "outputs print-0 of the batch at 1000 ms failed" in first
    assert "it is the first batch" in first
    assert "outputs save-1, save-2 of the batch at 2000 ms" in second
    assert f"dstreams checkpoint rewind {log.files.url} --to 1000" in second
    assert CommitLog(log.files).read(2000).failed_outputs == ("save-1", "save-2")


def test_what_inputs_have_read(tmp_path: Path) -> None:
    """A snapshot replaces deleted begin records, and a restart restores it."""
    reader: Any = Numbers()
    ends = InputOffsets({"numbers": reader}, {}, 0)
    taken_over(tmp_path).begin_inputs(ends, 10)
    log = taken_over(tmp_path)
    assert log.past("numbers").facts == {"upto": None}
    for number in range(30):
        log.begin(number, 1000 + number, {"numbers": {"end": number}})
        ends.begun(1000 + number, {"numbers": number})
        log.commit(number, 1000 + number)
    log.retire(1025, ends)
    assert 10 < reader.retired <= 25
    past = taken_over(tmp_path).past("numbers")
    assert past.facts == {"upto": reader.retired}
    assert max(past.batches) == 1029
    assert min(past.batches) == 1000 + reader.retired + 1

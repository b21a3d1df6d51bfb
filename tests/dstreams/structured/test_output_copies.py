"""A checkpoint and its copies write to one directory: one of them continues, the others fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstreams.errors import OutputConflictError
from dstreams.sinks.output_batch import OutputBatch
from dstreams.structured.sources.committed_files import (
    CommittedFiles,
    VisibleFiles,
    committed_files,
)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a power loss."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class Copy:
    """A checkpoint: the beginnings of the batches that it has begun."""

    def __init__(self, name: str, begun: dict[int, str] | None = None) -> None:
        self.name = name
        self.begun = dict(begun or {})

    def copied(self, name: str) -> Copy:
        return Copy(name, self.begun)

    def start(self, directory: Path) -> CommittedFiles:
        return CommittedFiles(str(directory), "query")

    def batch(self, batch_id: int) -> OutputBatch:
        """Begin a batch, unless it was begun."""
        beginning = self.begun.setdefault(batch_id, f"{self.name}-{batch_id}")
        return OutputBatch("query", batch_id, 0, beginning, newest=max(self.begun))

    def write(self, committed: CommittedFiles, batch_id: int) -> None:
        """Write a batch as a sink does, if it is not there."""
        batch = self.batch(batch_id)
        if not committed.has(batch):
            committed.add(batch, [f"part-{self.name}-{batch_id}"])


def test_restarts(tmp_path: Path) -> None:
    """A run continues after the previous one, whether its last batch was written or not."""
    one = Copy("one")
    for batch_id in range(4):
        committed = one.start(tmp_path)
        one.write(committed, max(batch_id - 1, 0))  # again
        one.write(committed, batch_id)
    assert list(committed_files(str(tmp_path))) == [0, 1, 2, 3]


def test_moved(tmp_path: Path) -> None:
    """A copy of a checkpoint may continue if the original does not."""
    one = Copy("one")
    one.write(one.start(tmp_path), 0)
    two = one.copied("two")
    two.write(two.start(tmp_path), 1)
    assert list(committed_files(str(tmp_path))) == [0, 1]


def test_copy_that_runs_beside_its_original(tmp_path: Path) -> None:
    """The first to write a batch continues; the other fails there, and at each start."""
    one = Copy("one")
    original = one.start(tmp_path)
    one.write(original, 0)
    two = one.copied("two")
    copy = two.start(tmp_path)
    two.write(copy, 1)
    for run in (original, one.start(tmp_path)):
        with pytest.raises(
            OutputConflictError, match="has batch 1 of query with token two-1; this"
        ):
            one.write(run, 1)
    two.write(two.start(tmp_path), 2)
    assert committed_files(str(tmp_path)) == {
        0: ["part-one-0"],
        1: ["part-two-1"],
        2: ["part-two-2"],
    }


@pytest.mark.parametrize("last", [1, 40], ids=["next", "long after"])
def test_older_copy(tmp_path: Path, last: int) -> None:
    """Later output of the original is not accepted as the copy's, and stops only the copy.

    The same holds if a manifest was deleted because newer ones list its batch.
    """
    one = Copy("one")
    original = one.start(tmp_path)
    one.write(original, 0)
    two = one.copied("two")
    early = two.start(tmp_path)
    for batch_id in range(1, last):
        one.write(original, batch_id)
    one.write(original, last)
    before = committed_files(str(tmp_path))
    for run in (early, two.start(tmp_path)):
        with pytest.raises(OutputConflictError, match=r"older copy .* or write to a new directory"):
            two.write(run, 1)
    one.write(original, last + 1)
    assert committed_files(str(tmp_path)) == {**before, last + 1: [f"part-one-{last + 1}"]}


def test_batch_that_comes_in_between(tmp_path: Path) -> None:
    """Output of the original is never accepted as the copy's while both write."""
    for later in (1, 40):
        directory = tmp_path / str(later)
        one = Copy("one")
        original = one.start(directory)
        one.write(original, 0)
        two = one.copied("two")
        copy = two.start(directory)
        batch = two.batch(1)
        assert not copy.has(batch)
        for batch_id in range(1, later + 1):
            one.write(original, batch_id)
        with pytest.raises(
            OutputConflictError, match=r"with token one-\d+; this is batch 1 with token"
        ):
            copy.add(batch, ["part-two-1"])
        assert committed_files(str(directory))[1] == ["part-one-1"]


def part(batch_id: int, attempt: int) -> str:
    return f"part-{batch_id:010d}-00000-{attempt:016x}.txt"


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def test_files_of_lost_attempts(tmp_path: Path) -> None:
    """They go when their batch has a record; what may still count stays, and what is not ours."""
    one = Copy("one")
    committed = one.start(tmp_path)
    others = ["notes.txt", "part-0.txt", "part-0000000000-00000.txt"]
    lost, named = [part(0, 7), part(1, 8)], [part(0, 1), part(1, 2)]
    for name in [*others, *lost, *named, part(2, 3), part(2, 4)]:
        (tmp_path / name).write_text("line\n")
    for batch_id, name in enumerate(named):
        committed.add(one.batch(batch_id), [name])
    one.start(tmp_path)
    assert files(tmp_path) == sorted([*others, *named, part(2, 3), part(2, 4)])
    one.start(tmp_path).add(one.batch(2), [part(2, 4)])
    one.start(tmp_path)
    assert files(tmp_path) == sorted([*others, *named, part(2, 4)])


def test_files_of_lost_attempts_of_a_long_run(tmp_path: Path) -> None:
    """Superseded files are deleted during a run, whenever manifests are merged."""
    one = Copy("one")
    committed = one.start(tmp_path)
    for batch_id in range(25):
        for attempt in (1, 2):
            (tmp_path / part(batch_id, attempt)).write_text("line\n")
        committed.add(one.batch(batch_id), [part(batch_id, 2)])
    assert len([name for name in files(tmp_path) if name.endswith("1.txt")]) < 20
    assert {part(number, 2) for number in range(25)} <= set(files(tmp_path))


def test_sink_that_begins_while_a_reader_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a sink writes right after its first begin is not read before it is committed."""
    (tmp_path / "before.txt").write_text("line\n")
    visible = VisibleFiles(f"file:{tmp_path}", spark=None)  # type: ignore[arg-type]
    looked = visible._committed

    def begins_then() -> list[str] | None:
        found = looked()
        monkeypatch.setattr(visible, "_committed", looked)
        Copy("one").start(tmp_path)
        (tmp_path / part(0, 1)).write_text("not committed\n")
        return found

    monkeypatch.setattr(visible, "_committed", begins_then)
    assert visible.files() == []

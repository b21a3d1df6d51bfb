"""A checkpoint and its copies write to one directory: one of them goes on, the others are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstreams.errors import RestartError
from dstreams.structured.committed_files import CommittedFiles, VisibleFiles, committed_files
from dstreams.structured.sinks.base import Writer


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a power loss."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class Copy:
    """A checkpoint: the runs that it knows, by epoch, and how far it has come."""

    def __init__(self, name: str, runs: dict[int, str] | None = None, begun: int = -1) -> None:
        self.name = name
        self.runs = dict(runs or {})
        self.begun = begun

    def copied(self, name: str) -> Copy:
        return Copy(name, self.runs, self.begun)

    def start(self, directory: Path) -> CommittedFiles:
        epoch = max(self.runs, default=0) + 1
        self.runs[epoch] = f"{self.name}-{epoch}"
        known = dict(self.runs)

        def follows(number: int, run: str) -> bool:
            return known.get(number) == run

        writer = Writer(self.runs[epoch], epoch, f"/{self.name}", self.begun, follows)
        return CommittedFiles(str(directory), "query", writer)

    def write(self, committed: CommittedFiles, batch_id: int) -> None:
        """Write a batch as a sink does, if it is not there."""
        self.begun = batch_id
        if not committed.has(batch_id):
            committed.add(batch_id, [f"part-{self.name}-{batch_id}"], 1)


def runs(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "_committed").glob("run-*"))


def test_restarts(tmp_path: Path) -> None:
    """A run goes on from the one before, also in a batch that this had written or had not."""
    one = Copy("one")
    for batch_id in range(4):
        committed = one.start(tmp_path)
        one.write(committed, max(batch_id - 1, 0))  # again
        one.write(committed, batch_id)
    assert list(committed_files(str(tmp_path))) == [0, 1, 2, 3]
    assert runs(tmp_path) == ["run-0000000004"]


def test_moved(tmp_path: Path) -> None:
    """A checkpoint may go on as a copy of it, when the original does not."""
    one = Copy("one")
    one.write(one.start(tmp_path), 0)
    two = one.copied("two")
    two.write(two.start(tmp_path), 1)
    assert list(committed_files(str(tmp_path))) == [0, 1]


def test_copy_that_starts_beside_its_original(tmp_path: Path) -> None:
    """The original ends at its next batch, and cannot start again; the message names the copy."""
    one = Copy("one")
    original = one.start(tmp_path)
    one.write(original, 0)
    two = one.copied("two")
    copy = two.start(tmp_path)
    taken = "was taken over by run two-2 of query query, epoch 2 of the checkpoint /two; this is"
    with pytest.raises(RestartError, match=f"{taken} run one-1, epoch 1 of /one: only one of"):
        one.write(original, 1)
    two.write(copy, 1)
    for _ in range(3):
        with pytest.raises(RestartError, match="is written by run two-2 of query query, epoch 2 o"):
            one.start(tmp_path)
    two.write(two.start(tmp_path), 2)
    assert committed_files(str(tmp_path)) == {
        0: ["part-one-0"],
        1: ["part-two-1"],
        2: ["part-two-2"],
    }


def test_older_copy(tmp_path: Path) -> None:
    """A copy that knows less than what was written is refused, and stops nobody."""
    one = Copy("one")
    original = one.start(tmp_path)
    one.write(original, 0)
    two = one.copied("two")
    one.write(original, 1)
    message = "up to 1, its checkpoint /two none after 0: that is an older copy, or was rewound"
    with pytest.raises(RestartError, match=message):
        two.start(tmp_path)
    one.write(original, 2)
    assert list(committed_files(str(tmp_path))) == [0, 1, 2]


def test_batch_that_comes_in_between(tmp_path: Path) -> None:
    """What the original writes while a copy takes over is never taken for a batch of the copy."""
    one = Copy("one")
    original = one.start(tmp_path)
    one.write(original, 0)
    two = one.copied("two")
    assert not original.has(1)
    copy = two.start(tmp_path)
    original.add(1, ["part-one-1"], 1)
    for _ in range(2):
        with pytest.raises(
            RestartError, match=r"batch 1 of .* was written by run one-1 of epoch 1"
        ):
            two.write(copy, 1)
    with pytest.raises(RestartError, match=r"batch 1 of .* was written by run one-1 of ep"):
        copy.add(1, ["part-two-1"], 1)
    assert committed_files(str(tmp_path)) == {0: ["part-one-0"], 1: ["part-one-1"]}


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
        committed.add(batch_id, [name], 1)
    one.begun = 2
    one.start(tmp_path)
    assert files(tmp_path) == sorted([*others, *named, part(2, 3), part(2, 4)])
    one.start(tmp_path).add(2, [part(2, 4)], 1)
    one.start(tmp_path)
    assert files(tmp_path) == sorted([*others, *named, part(2, 4)])


def test_files_of_lost_attempts_of_a_long_run(tmp_path: Path) -> None:
    """They go while a run goes on, too: as often as records are put together."""
    one = Copy("one")
    committed = one.start(tmp_path)
    for batch_id in range(25):
        for attempt in (1, 2):
            (tmp_path / part(batch_id, attempt)).write_text("line\n")
        committed.add(batch_id, [part(batch_id, 2)], 1)
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
    assert visible.paths() == []

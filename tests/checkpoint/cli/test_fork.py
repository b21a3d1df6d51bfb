"""Forks: a copy of a stream runs again from an earlier batch, the original stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import CommitLog, open_files, read_plan
from checkpoint.cli import UsageError, fork_stream
from tests.support.stream_model import STREAM, Driver, World, require_right


def content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_fork_runs_again_from_a_batch(
    url: Path, world: World, is_linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches after it run again with the same input; on other disks files are copied."""
    if not is_linked:
        monkeypatch.setattr("os.link", _refuse)
        monkeypatch.setattr("checkpoint.storage.local_files._link", _rename)
    before = content(url)
    into = open_files(tmp_path / "fork" / STREAM)
    fork = fork_stream(open_files(url / STREAM), into, 5000)
    assert (fork.after_ms, fork.again_ms) == (4000, (5000, 6000, 7000))
    assert max(fork.original) == 7000
    CommitLog(into).read_record(fork.original[7000])  # also what does not count there any more
    world.committed = {known for known in world.committed if known <= 4000}
    driver = Driver(into, world)
    driver.run(9000)
    require_right(world, driver)
    assert content(url) == before
    commit = next(name for name in into.list("commits/"))
    links = (tmp_path / "fork" / STREAM / commit).stat().st_nlink
    assert (links > 1) is is_linked


def _refuse(*_: object, **__: object) -> None:
    raise OSError("another disk")


def _rename(temp: str, path: str) -> bool:
    Path(temp).rename(path)
    return True


def test_the_oldest_batch_that_can_run_again(url: Path, tmp_path: Path) -> None:
    """By default the batches after the oldest state from which a restart is possible run again."""
    files = open_files(url / STREAM)
    begun = list(read_plan(files).begins)
    fork = fork_stream(files, open_files(tmp_path / "oldest"))
    left = [time_ms for time_ms in begun if time_ms not in fork.again_ms]
    assert left, "clean-up has left records of batches without the state before them"
    kept = rf"those from .*\({fork.again_ms[0]} ms\) to .*\({begun[-1]} ms\) can run again"
    for time_ms in left:
        with pytest.raises(UsageError, match=rf"does not keep what the batch at .*{kept}"):
            fork_stream(files, open_files(tmp_path / str(time_ms)), time_ms)
    for time_ms in fork.again_ms:
        again_ms = fork_stream(files, open_files(tmp_path / str(time_ms)), time_ms).again_ms
        assert again_ms == tuple(one for one in begun if one >= time_ms)


def test_up_to_a_batch(url: Path, tmp_path: Path) -> None:
    """Batches after the last one that is wanted have not begun in the copy."""
    files, into = open_files(url / STREAM), open_files(tmp_path / "fork")
    assert fork_stream(files, into, 5000, last_ms=6000).again_ms == (5000, 6000)
    assert [begun.batch_time_ms for begun in read_plan(into).in_flight] == [5000, 6000]
    with pytest.raises(UsageError, match=r"no batch up to .*4000 ms.* those from .* can run again"):
        fork_stream(files, open_files(tmp_path / "none"), 5000, last_ms=4000)


def test_from_the_first_batch(tmp_path: Path, world: World) -> None:
    """While all records of a stream are there, it can run again from its start."""
    files = open_files(tmp_path / "short")
    Driver(files, world).run(2000)
    into = open_files(tmp_path / "fork")
    fork = fork_stream(files, into)
    assert (fork.after_ms, fork.again_ms) == (None, (1000, 2000))
    world.committed.clear()
    driver = Driver(into, world)
    driver.run(4000)
    require_right(world, driver)


def test_a_batch_that_is_not_kept(url: Path, tmp_path: Path) -> None:
    """The error names the nearest batches."""
    files = open_files(url / STREAM)
    with pytest.raises(UsageError, match=r"does not keep the batch at .*5500 ms.*nearest are"):
        fork_stream(files, open_files(tmp_path / "fork"), 5500)


def test_after_a_batch(url: Path, tmp_path: Path) -> None:
    """The state after the last batch can be had as well, though nothing runs again."""
    files = open_files(url / STREAM)
    fork = fork_stream(files, open_files(tmp_path / "last"), after_ms=7000)
    assert (fork.after_ms, fork.again_ms) == (7000, ())
    with pytest.raises(UsageError, match=r"keeps no state of .*7500 ms.*nearest are"):
        fork_stream(files, open_files(tmp_path / "fork"), after_ms=7500)

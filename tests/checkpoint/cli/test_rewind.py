"""rewind: return to an earlier batch, and undo that, safely."""

from __future__ import annotations

import shlex
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random

import pytest

from checkpoint import (
    CommitLog,
    DriverProcess,
    GraphSnapshot,
    InputSnapshots,
    ReceivedBlocks,
    RecordId,
    open_files,
    read_plan,
    take_over,
    write_graph,
)
from checkpoint.cli.common import UsageError
from checkpoint.cli.rewind import _require_snapshots, plan_rewind, rewind
from checkpoint.log.input_offsets import blocks_of
from checkpoint.log.lineage import Lineage, read_lineage
from tests.checkpoint.cli.conftest import Run
from tests.support.faults import SimulatedCrash
from tests.support.simulated_disk import SimulatedDisk
from tests.support.stream_model import STREAM, Driver, World, require_right


def forget_after(world: World, time_ms: int) -> None:
    """Reset the expected outputs to those up to a batch."""
    world.committed = {known for known in world.committed if known <= time_ms}


def test_a_stream_goes_back_and_on_from_there(run: Run, url: Path, world: World) -> None:
    """Later batches run again with the same input, and have the same result."""
    status, data, _ = run("rewind", url, "--to", 4000)
    assert status == 0
    assert (data["from_ms"], data["to_ms"]) == (7000, 4000)
    assert data["runs_again_ms"] == [5000, 6000, 7000]
    files = open_files(url / STREAM)
    plan = read_plan(files)
    assert plan.last_ms == 4000
    assert [begun.batch_time_ms for begun in plan.in_flight] == [5000, 6000, 7000]
    forget_after(world, 4000)
    driver = Driver(files, world)
    driver.run(9000)
    require_right(world, driver)
    assert all(len(told) == 2 for time_ms, told in world.told.items() if 4000 < time_ms <= 7000)
    assert run("verify", url)[1]["problems"] == []


def test_a_rewind_is_undone_by_another(run: Run, url: Path, world: World) -> None:
    """A rewind can be undone, since it deletes nothing."""
    before = {path for path in (url / STREAM).rglob("*.*") if "epochs" not in str(path)}
    _, lines, _ = run("rewind", url, "--to", 5000, as_json=False)
    undo = (
        f"before the stream runs again: python -m checkpoint rewind {url} --to 1970-01-01T00:00:07Z"
    )
    assert lines[-1].startswith(f"to undo this, {undo}")
    assert CommitLog(open_files(url / STREAM)).times()[-1] == 5000
    assert run("rewind", url, "--to", 7000)[0] == 0
    assert {path for path in (url / STREAM).rglob("*.*") if "epochs" not in str(path)} == before
    driver = Driver(open_files(url / STREAM), world)
    assert driver.time_ms == 7000
    driver.run(8000)
    require_right(world, driver)


def undo_of(lines: list[str]) -> list[str]:
    """Return the words of the command that undoes a rewind."""
    before, _, command = lines[-1].partition("to undo this, before the stream runs again: ")
    assert before == ""
    return shlex.split(command.removeprefix("python -m checkpoint "))


def test_a_rewind_forth_is_undone_by_the_command_that_it_names(
    run: Run, url: Path, world: World
) -> None:
    """The printed command also works if two epochs have a batch of that time."""
    assert run("rewind", url, "--to", 5000)[0] == 0
    forget_after(world, 5000)
    files = open_files(url / STREAM)
    Driver(files, world).run(7000)
    here = CommitLog(files).latest()
    assert here is not None
    assert here.record_id == RecordId(7000, 4)
    for time_ms in (6000, 7000):
        status, lines, error = run("rewind", url, "--to", time_ms, "--epoch", 2, as_json=False)
        assert status == 0, error
        there = CommitLog(files).latest()
        assert there is not None
        assert there.record_id == RecordId(time_ms, 2)
        assert run(*undo_of(lines))[0] == 0
        assert CommitLog(files).latest() == here
    status, _, error = run("rewind", url, "--to", 7000, "--epoch", 3)
    assert status == 2
    assert "(7000 ms) is committed in epoch 3; the nearest are" in error


def test_a_rewind_to_the_last_batch_has_nothing_to_undo(run: Run, url: Path) -> None:
    """Also if it became the last batch by the loss of a takeover record."""
    lines = run("rewind", url, "--to", 7000, as_json=False)[1]
    assert lines[-1] == "it is the last batch already; there is nothing to undo"
    for epoch in (2, 3):
        (url / STREAM / f"epochs/{epoch:010d}.takeover").unlink()
    lines = run("rewind", url, "--to", 5000, as_json=False)[1]
    assert lines[-1] == "it is the last batch already; there is nothing to undo"


def test_a_dry_run_changes_nothing(run: Run, url: Path) -> None:
    """--dry-run only shows what would happen."""
    before = sorted(url.rglob("*"))
    status, data, _ = run("rewind", url, "--to", 5000, "--dry-run")
    assert (status, data["done"], data["runs_again_ms"]) == (0, False, [6000, 7000])
    assert sorted(url.rglob("*")) == before


def test_a_stream_in_use_is_refused(run: Run, url: Path) -> None:
    """rewind and gc name the running driver."""
    take_over(open_files(url / STREAM), STREAM, DriverProcess.of_this_process(0))
    for command in (["rewind", url, "--to", 5000], ["gc", url]):
        status, _, error = run(*command)
        assert status == 4
        assert run(*command, "--driver-gone")[0] == 4
        assert "has claimed epoch 3" in error
        assert "is running; stop it first" in error


def test_a_driver_on_another_host_may_be_running(run: Run, url: Path) -> None:
    """A driver on another host counts as running, a dead one on this host does not."""
    files = open_files(url / STREAM)
    take_over(files, STREAM, DriverProcess("elsewhere", 1, "", 0, {}))
    status, _, error = run("rewind", url, "--to", 5000)
    assert status == 4
    assert "process 1 on host elsewhere" in error
    assert "is not visible from this host or container; stop it first, or, if it is" in error
    assert run("rewind", url, "--to", 5000, "--driver-gone", "--dry-run")[0] == 0
    assert run("gc", url, "--driver-gone", "--dry-run")[0] == 0
    driver = DriverProcess.of_this_process(0)
    take_over(files, STREAM, DriverProcess(driver.host, driver.pid, "an earlier boot:1", 0, {}))
    assert run("rewind", url, "--to", 5000)[0] == 0


def test_a_batch_that_cannot_be_gone_back_to_is_refused(run: Run, url: Path) -> None:
    """A rewind is refused if a restart there is not possible; nothing is changed."""
    status, _, error = run("rewind", url, "--to", 1000)
    assert status == 2
    assert "(1000 ms) is committed; the nearest are 1970-01-01T00:00:03Z, 1970-" in error
    before = sorted(url.rglob("*"))
    status, _, error = run("rewind", url, "--to", 3000)
    assert status == 2
    assert "a restart is not possible at 1970-01-01T00:00:03Z (3000 ms)" in error
    (path,) = (url / STREAM).glob("state/sums/0000000000004000-p00000-*")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    status, _, error = run("rewind", url, "--to", 5000)
    assert status == 1
    assert str(path) in error
    assert sorted(url.rglob("*")) == before


def test_a_stream_with_a_store_goes_back(run: Run, stored: Path) -> None:
    """A rewind returns to an earlier version of a store."""
    assert run("rewind", stored, "--to", 2000)[0] == 0
    _, data, _ = run("show", stored)
    assert data["stores"][0]["version"] == 2
    assert data["in_flight_ms"] == [3000, 4000, 5000]
    assert run("verify", stored)[1]["problems"] == []


@pytest.mark.parametrize("lost", ["3000", "4000"])
def test_a_begin_record_is_missing(run: Run, stored: Path, lost: str) -> None:
    """The stream returns to the batch before the missing record, and no later one runs as begun."""
    (path,) = stored.glob(f"batches/*{lost}-*")
    path.unlink()
    assert run("rewind", stored, "--to", 2000)[0] == 0
    in_flight = run("show", stored)[1]["in_flight_ms"]
    assert in_flight == [time_ms for time_ms in (3000, 4000, 5000) if time_ms < int(lost)]
    assert run("verify", stored)[1]["problems"] == []


@pytest.mark.parametrize(("states", "is_there"), [(("sessions",), True), (("sums",), False)])
def test_a_store_needs_no_snapshot_in_records(
    run: Run, stored: Path, states: tuple[str, ...], is_there: bool
) -> None:
    """With a damaged newest record and lost first batches, stores do not prevent a rewind."""
    owned = take_over(open_files(stored), STREAM, DriverProcess.of_this_process(0))
    graph = GraphSnapshot(STREAM, 4000, owned.epoch, {"operators": {}}, b"", states)
    write_graph(owned.lease, graph)
    files = owned.lease.files
    record = CommitLog(files).read_record(RecordId(3000, 1))
    owned.lease.release()
    (newest,) = stored.glob("commits/*4000-*")
    newest.write_bytes(newest.read_bytes()[:-1])
    (first,) = stored.glob("batches/*1000-*")
    first.unlink()
    wanted = nullcontext() if is_there else pytest.raises(UsageError, match="sums had no snap")
    with wanted:
        _require_snapshots(files, record, read_lineage(files))


def test_received_blocks_that_were_released(run: Run, stored: Path) -> None:
    """A rewind is refused only if its restart would read deleted blocks."""
    owned = take_over(open_files(stored), STREAM, DriverProcess.of_this_process(0))
    blocks = ReceivedBlocks(owned.lease.files, STREAM, "socket", owned.epoch)
    released = blocks.names()[:4]
    inputs = InputSnapshots(owned, STREAM)
    inputs.write(4000, {"lines": {"files": []}, "socket": {"blocks": released}})
    blocks.delete(released)
    owned.lease.release()
    status, _, error = run("rewind", stored, "--to", 3000)
    assert status == 2
    assert "(4000 ms) again, and 0 of its 1 blocks received by socket exist" in error
    assert run("rewind", stored, "--to", 4000)[0] == 0
    assert run("verify", stored)[1]["problems"] == []


def test_received_blocks_that_are_there_again(run: Run, stored: Path) -> None:
    """After a rewind each batch has its blocks, and none of them is unassigned."""
    files = open_files(stored)
    before = list(blocks_of(files, read_plan(files)))
    assert run("rewind", stored, "--to", 3000)[0] == 0
    assert list(blocks_of(files, read_plan(files))) == before
    blocks = ReceivedBlocks(files, STREAM, "socket", 1)
    assert blocks.read_others({ref.name for _, _, ref in before}) == []


def test_what_was_taken_back_does_not_count(
    run: Run, url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Void records would count without the rule of lineages."""
    assert run("rewind", url, "--to", 5000)[0] == 0
    log = CommitLog(open_files(url / STREAM))
    assert log.times()[-1] == 5000
    real = Lineage.commits
    monkeypatch.setattr(Lineage, "commits", lambda self, ids: real(Lineage((), False), ids))
    assert log.times()[-1] == 7000


def test_a_rewind_that_was_cut_off_is_done_or_not(world: World) -> None:
    """A rewind is atomic under crashes and power loss at every step."""
    found = set()
    for at in range(1, 40):
        disk = SimulatedDisk()
        Driver(disk, world).run(7000)
        forget_after(world, 0)
        crashing = disk.restart()
        crashing._crash_at = at
        with suppress(SimulatedCrash):
            rewind(crashing, plan_rewind(disk, 5000))
        for after in (crashing.restart(), crashing.power_loss(Random(at).randrange)):
            plan = read_plan(after)
            assert plan.last_ms in (5000, 7000)
            assert len(plan.in_flight) == (2 if plan.last_ms == 5000 else 0)
            found.add(plan.last_ms)
        if not crashing.has_crashed:
            break
    assert found == {5000, 7000}
    assert at < 39

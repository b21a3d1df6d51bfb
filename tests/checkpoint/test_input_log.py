"""Input log: of a number that several drivers have written, one value counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoint import (
    BeginRecord,
    CheckpointError,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    Files,
    InputLog,
    Owner,
    RecordId,
    open_files,
    take_over,
)
from checkpoint.fencing import claim_epoch
from checkpoint.lineage import Base, Lineage, read_lineage, write_base
from checkpoint.state_store import Retention
from checkpoint.testing import Effect, FaultyFiles, SimulatedCrash
from tests.support.faults import FAULTS, Interrupted, fault_ids

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


@pytest.mark.parametrize("lives", [5, 40])
def test_of_many_drivers(files: Files, lives: int) -> None:
    """What the first one has written counts when retention has left nothing else of it."""
    for number in range(1, lives + 1):
        tenure = take_over(files, STREAM, Owner.of_this_process(0))
        log = InputLog(files, STREAM, "lines", tenure.epoch)
        assert list(log.read(number)) == list(range(1, number))
        log.write(number, {})
        time_ms = 1000 * number
        begun = BeginRecord(STREAM, number - 1, time_ms, tenure.epoch, {"lines": number})
        tenure.begins.begin(begun)
        commits = tenure.commits
        commits.commit(CommitRecord(STREAM, number - 1, time_ms, tenure.epoch, {}, {}))
        assert Retention(tenure).retire(time_ms) == []
        assert commits.times() == [time_ms]
        log.compact()
    assert len(files.list("epochs/")) < 2 * lives or lives < 10


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_value_that_is_lost_is_missed(files: Files, is_packed: bool) -> None:
    """Also where an epoch before had written that number, for a batch that was never begun."""
    older = claimed(files)
    for number in (1, 2, 3):
        older.write(number, value(number, 1))
    begun_with = {"inputs/lines": RecordId(2, 1)}
    epoch = take_over(files, STREAM, Owner.of_this_process(0)).epoch
    newer = InputLog(files, STREAM, "lines", epoch, begun_with)
    newer.read(2)
    for number in (3, 4):
        newer.write(number, value(number, 2))
    again = InputLog(files, STREAM, "lines", epoch, newer.newest_records)
    assert again.read(4)[3] == value(3, 2)
    (lost,) = [name for name in files.list("inputs/") if "3-e2" in name]
    if is_packed:
        written(newer, 5, 50)
        again = InputLog(files, STREAM, "lines", epoch, newer.newest_records)
        assert again.read(50)[3] == value(3, 2)
        (lost,) = [name for name in files.list("inputs/") if name.endswith(".pack")]
    files.delete(lost)
    with pytest.raises(CorruptCheckpointError, match=r"-e2\.input is missing; .*restore the file"):
        again.read(50)


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


# Packs --------------------------------------------------------------------------------------------


def value(number: int, epoch: int = 1) -> dict[str, object]:
    """What the driver of an epoch writes for a number."""
    return {"files": [f"/in/{number}-{epoch}"]}


def written(log: InputLog, first: int, last: int) -> None:
    """Write numbers, and pack where it is due."""
    for number in range(first, last + 1):
        log.write(number, value(number, log.epoch))
        log.compact()


def in_order(first: int, last: int, epoch: int = 1) -> dict[int, dict[str, object]]:
    return {number: value(number, epoch) for number in range(first, last + 1)}


def test_a_restart_reads_few_files_however_many_values_there_are() -> None:
    """With packs, the files of a long-lived input are bounded; all values are there."""
    files = open_files("memory://packs")
    log = claimed(files)
    most = 0
    for number in range(1, 1501):
        written(log, number, number)
        most = max(most, len(files.list("inputs/")))
    assert most <= 101
    watched = FaultyFiles(files, at=-1)
    assert InputLog(watched, STREAM, "lines", 2).read(1500) == in_order(1, 1500)
    assert sum(call.startswith("read inputs/") for call in watched.calls) <= 101
    assert log.read(17) == in_order(1, 17)


def test_a_few_values_are_left_alone(files: Files) -> None:
    """Under ten values there is no pack; then one, in place of them."""
    log = claimed(files)
    written(log, 1, 9)
    assert len(files.list("inputs/")) == 9
    written(log, 10, 10)
    assert files.list("inputs/") == ["inputs/lines/0000000000000010-e1.pack"]
    log.compact()
    assert log.read(10) == in_order(1, 10)


def test_the_newest_epoch_counts_in_packs_too(files: Files) -> None:
    """What an older driver wrote and packed after it was replaced changes nothing."""
    older = claimed(files)
    written(older, 1, 12)
    newer = claimed(files)
    written(newer, 10, 14)  # 10 is in the pack of the older one
    older.write(15, value(15))
    with pytest.raises(ConcurrentWriterError):
        written(older, 16, 30)
    wanted = {**in_order(1, 9), **in_order(10, 14, 2)}
    assert newer.read(14) == wanted
    written(newer, 15, 40)
    assert newer.read(14) == wanted
    assert newer.read(40) == {**wanted, **in_order(15, 40, 2)}
    assert claimed(files).read(40) == newer.read(40)


def test_what_was_void_can_count_again(files: Files) -> None:
    """Another branch of epochs packs what it finds; each branch finds the values that are its."""
    written(claimed(files), 1, 12)
    second = claimed(files)
    written(second, 13, 15)
    third = claimed(files)
    written(third, 16, 25)
    void = read_lineage(files)
    guard = claim_epoch(files, STREAM, Owner.of_this_process(0))
    write_base(guard, Base(STREAM, guard.epoch, 1, 12))
    fourth = InputLog(files, STREAM, "lines", guard.epoch)
    written(fourth, 13, 60)
    assert third.read(25, void) == {
        **in_order(1, 12),
        **in_order(13, 15, 2),
        **in_order(16, 25, 3),
    }
    # The same when only the newest base of that branch is still there.
    assert third.read(25, Lineage(void.bases[:1])) == third.read(25, void)
    assert fourth.read(60) == {**in_order(1, 12), **in_order(13, 60, 4)}
    assert len(files.list("inputs/")) < 12


def test_what_a_branch_began_with_is_found_in_the_pack_of_another(files: Files) -> None:
    """The base of a branch names the epoch before it, whose own base may be forgotten."""
    written(claimed(files), 1, 12)
    second = claimed(files)
    branch = read_lineage(files)
    guard = claim_epoch(files, STREAM, Owner.of_this_process(0))
    write_base(guard, Base(STREAM, guard.epoch, 1, 12))
    written(InputLog(files, STREAM, "lines", guard.epoch), 13, 40)
    assert second.read(12, Lineage(branch.bases[:1])) == in_order(1, 12)


def test_one_old_value_does_not_keep_all_epochs(files: Files) -> None:
    """A value of a driver of long ago is packed by a newer one, so that epochs can be forgotten."""
    claimed(files).write(0, value(0))
    for _ in range(24):
        claimed(files).compact()
    assert files.list("inputs/") == ["inputs/lines/0000000000000000-e21.pack"]
    assert claimed(files).read(0) == {0: value(0)}


def directories(tmp_path: Path) -> Iterator[tuple[int, Files]]:
    """New files for each operation at which something is to happen."""
    for at in itertools.count(1):
        yield at, open_files(tmp_path / str(at))


@pytest.mark.parametrize(("effect", "error"), FAULTS, ids=fault_ids(FAULTS))
def test_a_fault_at_any_operation_of_packing_loses_nothing(
    tmp_path: Path, effect: Effect, error: type[BaseException]
) -> None:
    """After any fault every value is there, also after another one, and the next driver packs."""
    for at, files in directories(tmp_path):
        written(claimed(files), 1, 15)
        log = claimed(files)
        log.write(16, value(16, 2))
        for number in range(17, 21):
            log.write(number, value(number, 2))
        faulty = FaultyFiles(files, at, effect, error)
        with suppress(SimulatedCrash, CheckpointError):
            InputLog(faulty, STREAM, "lines", 2).compact()
        wanted = {**in_order(1, 15), **in_order(16, 20, 2)}
        assert log.read(20) == wanted
        later = claimed(files)
        written(later, 21, 45)
        assert later.read(45) == {**wanted, **in_order(21, 45, 3)}
        assert len(files.list("inputs/")) < 15
        if not faulty.fired:
            break
    assert at > 18


def test_an_older_driver_that_packs_on_damages_nothing(tmp_path: Path) -> None:
    """Whenever in its packing it is replaced and the newer driver packs, everything is there."""
    for at, files in directories(tmp_path):
        older = claimed(files)
        written(older, 1, 10)
        for number in range(11, 22):
            older.write(number, value(number))

        def newer(files: Files = files) -> None:
            log = claimed(files)
            written(log, 21, 52)

        interrupted = Interrupted(files, at, newer)
        with suppress(ConcurrentWriterError):
            InputLog(interrupted, STREAM, "lines", 1).compact()
        if not interrupted.fired:
            break
        wanted = {**in_order(1, 20), **in_order(21, 52, 2)}
        assert older.read(52) == wanted
        last = claimed(files)
        written(last, 53, 90)
        assert last.read(90) == {**wanted, **in_order(53, 90, 3)}
    assert at > 18


def test_who_reads_while_a_driver_packs_misses_nothing(tmp_path: Path) -> None:
    """Whatever is packed and deleted between two operations of a reader, it finds the values."""
    for at, files in directories(tmp_path):
        log = claimed(files)
        written(log, 1, 19)
        interrupted = Interrupted(files, at, lambda log=log: written(log, 20, 31))  # type: ignore
        assert InputLog(interrupted, STREAM, "lines", 1).read(19) == in_order(1, 19)
        if not interrupted.fired:
            break
    assert at > 10


def test_a_listing_that_misses_what_moved_is_made_again(files: Files) -> None:
    """A listing that went on while a driver packed, and saw neither files nor pack, is no proof."""
    log = claimed(files)
    for number in range(1, 11):
        log.write(number, value(number))
    torn = FaultyFiles(files, at=-1)
    listings = iter([[], None, None, None])

    def listed(prefix: str) -> list[str]:
        if prefix.startswith("inputs/") and (names := next(listings)) is not None:
            log.compact()
            return names
        return files.list(prefix)

    torn.list = listed  # type: ignore[method-assign]
    assert InputLog(torn, STREAM, "lines", 1).read(10) == in_order(1, 10)


@pytest.mark.parametrize("place", [20, 60, 150, -30])
def test_damage_of_a_pack(files: Files, place: int) -> None:
    """A pack that is damaged is refused, and one that was renamed."""
    log = claimed(files)
    written(log, 1, 10)
    (name,) = files.list("inputs/")
    content = bytearray(files.read(name))
    files.create(name.replace("10-e", "20-e"), [bytes(content)])
    with pytest.raises(CorruptCheckpointError, match="is 10 ms of epoch 1"):
        log.read(10)
    files.delete(name.replace("10-e", "20-e"))
    content[place] ^= 1
    files.delete(name)
    files.create(name, [bytes(content)])
    with pytest.raises(CorruptCheckpointError):
        log.read(10)

"""Received blocks on disk, and the records of which batch has which."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from checkpoint import (
    AlreadyExistsError,
    BeginRecord,
    BlockLog,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    FileRef,
    Files,
    Owner,
    RecordId,
    open_files,
    take_over,
)
from checkpoint.testing import Effect, FaultyFiles, SimulatedCrash
from tests.support.faults import FAULTS, fault_ids

pytestmark = pytest.mark.usefixtures("no_sync")


def payload(sequence: int) -> bytes:
    return f"block {sequence}".encode() * 100


def log_of(files: Files, input_uid: str = "receiver-0", epoch: int = 1) -> BlockLog:
    return BlockLog(files, "stream-1", input_uid, epoch)


@pytest.fixture
def log(tmp_path: Path) -> BlockLog:
    return log_of(open_files(tmp_path))


def write(log: BlockLog, *sequences: int) -> list[FileRef]:
    return [log.write(sequence, payload(sequence), 10) for sequence in sequences]


def test_what_an_older_driver_allocates_after_it_was_replaced_does_not_count(
    tmp_path: Path,
) -> None:
    """Its blocks are in no batch, and it cannot delete any."""
    files = open_files(tmp_path)
    first = take_over(files, "stream-1", Owner.of_this_process(0))
    older = log_of(files, epoch=1)
    refs = write(older, 0, 1, 2)
    older.allocate(1000, refs[:1])
    first.begins.begin(BeginRecord("stream-1", 0, 1000, 1, {}))
    older.allocate(2000, refs[1:2])
    take_over(files, "stream-1", Owner.of_this_process(0))
    older.allocate(3000, refs[2:])
    newer = log_of(files, epoch=2)
    assert newer.allocated() == {1000: tuple(refs[:1])}
    assert newer.unallocated() == refs[1:]
    with pytest.raises(ConcurrentWriterError, match="so nothing is deleted"):
        older.release(3000)
    newer.release(1000)
    assert newer.blocks() == [ref.name for ref in refs[1:]]


# Blocks and batches ------------------------------------------------------------------------------


def test_a_block_is_read_as_it_was_written(log: BlockLog) -> None:
    """The reference says how many records there are; the payload is not looked at."""
    (ref,) = write(log, 7)
    assert (sequence_of(ref), ref.records) == (7, 10)
    assert log.read(ref) == payload(7)


def test_batches_name_their_blocks(log: BlockLog) -> None:
    """A batch has the blocks of its record; those without are of a batch to come, in order."""
    first, second, third = write(log, 0, 1, 2)
    log.allocate(1000, [first])
    assert log.times() == [1000]
    assert log.allocated()[1000] == (first,)
    assert log.unallocated() == [second, third]
    log.allocate(2000, [second, third])
    assert log.unallocated() == []
    assert log.allocated() == {1000: (first,), 2000: (second, third)}


def test_blocks_are_in_order_of_epoch_and_sequence(tmp_path: Path) -> None:
    """What a driver before this one received comes first."""
    files = open_files(tmp_path)
    late = write(log_of(files, epoch=2), 0, 1)
    early = write(log_of(files, epoch=1), 5, 10)
    assert log_of(files, epoch=3).unallocated() == [*early, *late]


def test_the_last_epoch_is_known(tmp_path: Path) -> None:
    """Also when only a record still speaks of it."""
    files = open_files(tmp_path)
    log = log_of(files, epoch=3)
    assert log.last_epoch() == 0
    refs = write(log, 0)
    assert log.last_epoch() == 3
    log.allocate(1000, refs)
    files.delete(refs[0].name)
    assert log.last_epoch() == 3
    log.release(1000)
    assert log.last_epoch() == 0


def test_inputs_do_not_see_each_other(tmp_path: Path) -> None:
    """Each input stream has blocks and records of its own."""
    files = open_files(tmp_path)
    mine, other = log_of(files, "a"), log_of(files, "b")
    (ref,) = write(mine, 0)
    mine.allocate(1000, [ref])
    assert (other.blocks(), other.times()) == ([], [])
    other.allocate(1000, [])
    assert mine.allocated()[1000] == (ref,)


def test_a_batch_is_recorded_once(log: BlockLog) -> None:
    """The same again is fine; other blocks mean that somebody else is at work."""
    first, second = write(log, 0, 1)
    log.allocate(1000, [first])
    log.allocate(1000, [first])
    with pytest.raises(ConcurrentWriterError, match="batch at 1000 ms are recorded already"):
        log.allocate(1000, [second])
    assert log.allocated()[1000] == (first,)


def test_the_newest_record_has_a_block(log: BlockLog) -> None:
    """A record that appeared after its batch was given up does not double the blocks."""
    first, second = write(log, 0, 1)
    log.allocate(1000, [first])
    log.allocate(2000, [first, second])
    assert log.allocated() == {1000: (), 2000: (first, second)}
    log.release(1000)
    assert log.read(first) == payload(0)


def test_release_deletes_blocks_and_records(log: BlockLog) -> None:
    """Up to and with the time; what is newer or in no batch stays."""
    refs = write(log, 0, 1, 2)
    log.allocate(1000, refs[:1])
    log.allocate(2000, refs[1:2])
    log.release(1000)
    assert log.times() == [2000]
    assert log.blocks() == [refs[1].name, refs[2].name]
    log.release(1000)
    assert log.unallocated() == [refs[2]]


@pytest.mark.parametrize("lost", [1000, 2000])
def test_a_record_of_a_batch_that_is_lost_is_missed(log: BlockLog, lost: int) -> None:
    """Its blocks would be taken once more; of a batch that was released nothing is left to take."""
    refs = write(log, 0, 1, 2, 3)
    begun: dict[RecordId, object] = {RecordId(3000, 1): None}
    for number, time_ms in enumerate((1000, 2000)):
        log.allocate(time_ms, refs[number : number + 1])
        begun[RecordId(time_ms, 1)] = {"blocks": 1, "records": 10, "logged": True}
    log.require_allocated(begun)
    name = f"received/receiver-0/batches/{lost:016d}-e1.batch"
    content = log.files.read(name)
    log.files.delete(name)
    with pytest.raises(CorruptCheckpointError, match=f"{name} is missing; .* 1 blocks of that"):
        log.require_allocated(begun)
    log.files.create(name, [content])
    log.release(1000)
    log.require_allocated(begun)


# Damage ------------------------------------------------------------------------------------------


def test_a_damaged_block_is_noticed(tmp_path: Path, log: BlockLog) -> None:
    """A changed byte is never handed out."""
    (ref,) = write(log, 0)
    path = tmp_path / ref.name
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="0000000000000000-e1"):
        log.read(ref)


def test_a_block_in_the_place_of_another_is_noticed(tmp_path: Path, log: BlockLog) -> None:
    """What a file says of itself must be what its name says."""
    first, second = write(log, 0, 1)
    (tmp_path / second.name).unlink()
    (tmp_path / first.name).rename(tmp_path / second.name)
    with pytest.raises(CorruptCheckpointError, match="is of sequence 0; expected sequence 1"):
        log.read(second)


def test_a_missing_block_is_noticed(log: BlockLog) -> None:
    """The message names the file."""
    (ref,) = write(log, 0)
    log.files.delete(ref.name)
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        log.read(ref)


def test_a_record_of_another_batch_is_noticed(tmp_path: Path, log: BlockLog) -> None:
    """A record that was renamed is not taken for that of the other batch."""
    log.allocate(1000, write(log, 0))
    directory = tmp_path / "received" / "receiver-0" / "batches"
    (directory / f"{1000:016d}-e1.batch").rename(directory / f"{2000:016d}-e1.batch")
    with pytest.raises(CorruptCheckpointError, match="is of batch_time_ms 1000"):
        log.allocated()


def test_ids_are_needed(tmp_path: Path) -> None:
    """A log of nobody is refused."""
    with pytest.raises(ValueError, match="needs the ids"):
        BlockLog(open_files(tmp_path), "", "receiver-0", 1)


# Faults everywhere -------------------------------------------------------------------------------


def sequence_of(ref: FileRef) -> int:
    return int(ref.name.rpartition("/")[2].partition("-")[0])


class Receiving:
    """Receives blocks, gives them to batches and releases batches, and knows what it was told."""

    def __init__(self, log: BlockLog) -> None:
        self.log = log
        self.acknowledged: dict[int, FileRef] = {}
        self.attempted: set[int] = set()
        self.waiting: list[FileRef] = []
        self.released: set[int] = set()
        self.batches: dict[int, list[FileRef]] = {}

    def receive(self, sequence: int) -> None:
        self.attempted.add(sequence)
        try:
            ref = self.log.write(sequence, payload(sequence), 10)
        except (CheckpointError, AlreadyExistsError):
            return
        self.acknowledged[sequence] = ref
        self.waiting.append(ref)

    def batch(self, time_ms: int) -> None:
        try:
            self.log.allocate(time_ms, self.waiting)
        except CheckpointError:
            return
        self.batches[time_ms] = self.waiting
        self.waiting = []

    def release(self, time_ms: int) -> None:
        self.released |= {
            sequence_of(ref) for at, refs in self.batches.items() if at <= time_ms for ref in refs
        }
        try:
            self.log.release(time_ms)
        except CheckpointError:
            return

    def run(self) -> None:
        self.receive(0)
        self.receive(1)
        self.batch(1000)
        self.receive(2)
        self.batch(2000)
        self.receive(3)
        self.release(1000)
        self.receive(4)
        self.batch(3000)
        self.receive(5)


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(("effect", "error"), FAULTS, ids=fault_ids(FAULTS))
def test_a_fault_anywhere_loses_no_acknowledged_block(
    tmp_path: Path, place: str, effect: Effect, error: type[BaseException]
) -> None:
    """After a fault at any operation a new driver finds each acknowledged block exactly once."""
    for at in itertools.count(1):
        url = str(tmp_path / str(at)) if place == "local" else f"memory://{tmp_path}/{at}"
        files = open_files(url)
        faulty = FaultyFiles(files, at, effect, error)
        receiving = Receiving(log_of(faulty))
        try:
            receiving.run()
        except SimulatedCrash:
            assert faulty.fired
        found = log_of(files, epoch=2)
        batches = found.allocated()
        in_batches = [ref for refs in batches.values() for ref in refs]
        waiting = found.unallocated()
        sequences = [sequence_of(ref) for ref in in_batches + waiting]
        # A batch that was being released may have lost its blocks, and no other.
        readable = [
            sequence_of(ref)
            for ref in in_batches + waiting
            if ref.name in set(files.list("received/"))
        ]
        assert len(sequences) == len(set(sequences))
        assert set(receiving.acknowledged) - receiving.released <= set(readable)
        assert set(sequences) <= receiving.attempted
        for time_ms, refs in receiving.batches.items():
            if time_ms in batches:
                assert batches[time_ms] == tuple(refs)
        for ref in in_batches + waiting:
            if sequence_of(ref) in readable:
                assert found.read(ref) == payload(sequence_of(ref))
        if not faulty.fired:
            break
    assert at > 12

"""Received blocks: no acknowledged block is lost or mistaken for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import (
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    FileRef,
    Files,
    ReceivedBlocks,
    StorageUncertainError,
    open_files,
    take_over,
)
from tests.support.faults import FAULTS, Effect, FaultyFiles, fault_ids

pytestmark = pytest.mark.usefixtures("no_sync")


def payload(sequence: int) -> bytes:
    return f"block {sequence}".encode() * 100


def blocks_of(files: Files, input_uid: str = "receiver-0", epoch: int = 1) -> ReceivedBlocks:
    return ReceivedBlocks(files, "stream-1", input_uid, epoch)


@pytest.fixture
def blocks(tmp_path: Path) -> ReceivedBlocks:
    return blocks_of(open_files(tmp_path))


def write(blocks: ReceivedBlocks, *sequences: int) -> list[FileRef]:
    return [blocks.write(sequence, payload(sequence), 10) for sequence in sequences]


def sequence_of(ref: FileRef) -> int:
    return int(ref.name.rpartition("/")[2].partition("-")[0])


def test_a_block_is_read_as_it_was_written(blocks: ReceivedBlocks) -> None:
    """The reference has the number of records; the payload is not interpreted."""
    (ref,) = write(blocks, 7)
    assert (sequence_of(ref), ref.records) == (7, 10)
    assert blocks.read(ref) == payload(7)


def test_blocks_without_a_batch_are_found(blocks: ReceivedBlocks) -> None:
    """Blocks that no record names are returned with their content, in order."""
    first, second, third = write(blocks, 0, 1, 2)
    assert blocks.read_others([second.name]) == [(first, payload(0)), (third, payload(2))]


def test_blocks_are_in_order_of_epoch_and_sequence(tmp_path: Path) -> None:
    """Blocks of an earlier driver come first."""
    files = open_files(tmp_path)
    late = write(blocks_of(files, epoch=2), 0, 1)
    early = write(blocks_of(files, epoch=1), 5, 10)
    assert [ref for ref, _ in blocks_of(files, epoch=3).read_others([])] == [*early, *late]


def test_inputs_do_not_see_each_other(tmp_path: Path) -> None:
    """Each input has its own blocks."""
    files = open_files(tmp_path)
    mine, other = blocks_of(files, "a"), blocks_of(files, "b")
    write(mine, 0)
    assert (len(mine.names()), other.names()) == (1, [])


def test_deleting_again_is_fine(blocks: ReceivedBlocks) -> None:
    """A later driver may repeat an interrupted deletion."""
    first, second = write(blocks, 0, 1)
    for _ in range(2):
        blocks.delete([first.name])
    assert blocks.names() == [second.name]


def test_a_driver_that_was_replaced_deletes_nothing(tmp_path: Path) -> None:
    """The newer driver may need the blocks."""
    files = open_files(tmp_path)
    take_over(files, "stream-1", DriverProcess.of_this_process(0))
    older = blocks_of(files)
    (ref,) = write(older, 0)
    take_over(files, "stream-1", DriverProcess.of_this_process(0))
    with pytest.raises(ConcurrentWriterError, match="so nothing is deleted"):
        older.delete([ref.name])
    assert older.names() == [ref.name]


def test_a_damaged_block_is_noticed(tmp_path: Path, blocks: ReceivedBlocks) -> None:
    """A damaged payload is never returned."""
    (ref,) = write(blocks, 0)
    path = tmp_path / ref.name
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="0000000000000000-e1"):
        blocks.read(ref)


def test_a_block_in_the_place_of_another_is_noticed(tmp_path: Path, blocks: ReceivedBlocks) -> None:
    """The header of a block must match its name."""
    first, second = write(blocks, 0, 1)
    (tmp_path / second.name).unlink()
    (tmp_path / first.name).rename(tmp_path / second.name)
    with pytest.raises(CorruptCheckpointError, match="is of sequence 0; expected sequence 1"):
        blocks.read(second)


def test_a_missing_block_is_noticed(blocks: ReceivedBlocks) -> None:
    """The error names the file."""
    (ref,) = write(blocks, 0)
    blocks.files.delete(ref.name)
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        blocks.read(ref)


def test_ids_are_needed(tmp_path: Path) -> None:
    """Blocks without ids are rejected."""
    with pytest.raises(ValueError, match="need the ids"):
        ReceivedBlocks(open_files(tmp_path), "", "receiver-0", 1)


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(("effect", "error"), FAULTS, ids=fault_ids(FAULTS))
def test_a_fault_in_a_write_loses_no_acknowledged_block(
    tmp_path: Path, place: str, effect: Effect, error: type[BaseException]
) -> None:
    """A new driver finds each acknowledged block, complete and once."""
    for at in range(1, 5):
        url = str(tmp_path / str(at)) if place == "local" else f"memory://{tmp_path}/{at}"
        files = open_files(url)
        faulty = FaultyFiles(files, at, effect, error)
        acknowledged, blocks = [], blocks_of(faulty)
        for sequence in range(3):
            try:
                acknowledged += write(blocks, sequence)
            except (CheckpointError, StorageUncertainError):
                continue
            except BaseException:
                break
        found = [ref for ref, _ in blocks_of(files, epoch=2).read_others([])]
        assert [ref for ref in found if ref in acknowledged] == acknowledged
        assert len({sequence_of(ref) for ref in found}) == len(found)

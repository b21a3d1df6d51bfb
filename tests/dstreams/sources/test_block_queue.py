"""Blocks that wait in the driver: bounded, in order, and each in one batch."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from checkpoint import FileRef, StorageRefusedError
from dstreams.errors import StreamLifecycleError
from dstreams.sources.block_queue import BlockQueue
from dstreams.sources.pickled_block import ReceivedBlock
from tests.support.waiting import wait_for


def block(records: int = 1, size: int = 10) -> ReceivedBlock:
    return ReceivedBlock(b"x" * size, records)


def putting(queue: BlockQueue, *blocks: ReceivedBlock) -> threading.Thread:
    def put() -> None:
        for each in blocks:
            queue.put(each)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    return thread


def test_a_batch_takes_what_is_there() -> None:
    """Peeking changes nothing; taking removes."""
    queue = BlockQueue("numbers", 1000)
    blocks = [block(1), block(2), block(3)]
    for each in blocks:
        queue.put(each)
    assert queue.peek() == blocks
    queue.take(queue.peek(), 1000)
    assert queue.is_empty()


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, []), (-5, []), (1, [4]), (4, [4]), (5, [4, 4]), (100, [4, 4, 4])]
)
def test_a_batch_with_a_limit_takes_whole_blocks(limit: float, expected: list[int]) -> None:
    """Until the limit is reached."""
    queue = BlockQueue("numbers", 1000)
    for _ in range(3):
        queue.put(block(4))
    assert [each.records for each in queue.peek(limit)] == expected


def test_who_stores_waits_for_room() -> None:
    """Bytes count until the batch that has them is in Spark."""
    queue = BlockQueue("numbers", 25)
    thread = putting(queue, *[block() for _ in range(4)])
    wait_for(lambda: len(queue.peek()) == 3)
    queue.take(queue.peek(), 1000)
    thread.join(0.1)
    assert thread.is_alive()
    queue.make_room(1000)
    thread.join(60)
    assert len(queue.peek()) == 1


def test_a_block_larger_than_the_room_goes_in_alone() -> None:
    """Otherwise it would wait for ever."""
    queue = BlockQueue("numbers", 25)
    queue.put(block(size=1000))
    thread = putting(queue, block(size=1000))
    thread.join(0.1)
    assert thread.is_alive()
    queue.take(queue.peek(), 1000)
    queue.make_room(1000)
    thread.join(60)
    assert not thread.is_alive()


def test_the_end_of_a_receiver_needs_no_room() -> None:
    """A last batch takes it all."""
    queue = BlockQueue("numbers", 25)
    thread = putting(queue, *[block() for _ in range(10)])
    queue.drain()
    thread.join(60)
    assert len(queue.peek()) == 10


def test_a_closed_queue_refuses() -> None:
    """Also those who wait."""
    queue = BlockQueue("numbers", 5)
    queue.put(block())
    errors: list[Exception] = []

    def put() -> None:
        try:
            queue.put(block())
        except StreamLifecycleError as error:
            errors.append(error)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    thread.join(0.1)
    queue.close()
    thread.join(60)
    assert "numbers has stopped" in str(errors[0])
    assert queue.is_empty()


class Writer:
    """Writes blocks down, or refuses to."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.failures: list[Exception] = []

    def __call__(self, sequence: int, payload: bytes, records: int) -> FileRef:
        if self.failures:
            raise self.failures.pop()
        self.written.append(sequence)
        return FileRef(f"block-{sequence}", len(payload), "0" * 32, records)


def test_a_block_is_written_before_it_can_be_in_a_batch() -> None:
    """And the batch knows its file."""
    writer = Writer()
    queue = BlockQueue("numbers", 1000, writer)
    queue.put(block(3))
    (found,) = queue.peek()
    assert found.ref is not None
    assert (found.ref.name, found.ref.records) == ("block-0", 3)
    assert writer.written == [0]


def test_a_block_that_cannot_be_written_is_not_there() -> None:
    """Its sender gets the error, and takes up no room."""
    writer = Writer()
    writer.failures = [StorageRefusedError("disk full")]
    queue = BlockQueue("numbers", 5, writer)
    with pytest.raises(StorageRefusedError, match="disk full"):
        queue.put(block())
    assert queue.is_empty()
    queue.put(block())
    assert len(queue.peek()) == 1


def test_many_senders_have_numbers_of_their_own() -> None:
    """No two blocks have one name."""
    writer = Writer()
    queue = BlockQueue("numbers", 10_000, writer)
    threads: list[Any] = [putting(queue, *[block() for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.join(60)
    assert sorted(writer.written) == list(range(400))
    assert len(queue.peek()) == 400

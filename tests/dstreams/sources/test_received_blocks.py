"""Blocks of received records: pickled, generated and queued."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from checkpoint import FileRef, StorageRefusedError
from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.sources import received_blocks
from dstreams.sources.rate_limit import RateLimiter
from dstreams.sources.received_blocks import (
    BlockGenerator,
    BlockQueue,
    ReceivedBlock,
    decode_records,
    encode_records,
)
from dstreams.testing import ManualClock
from tests.support.receiving import Store
from tests.support.waiting import wait_for


def decoded(encoded: list[received_blocks.ReceivedBlock]) -> list[Any]:
    return list(decode_records(block.payload for block in encoded))


def test_records_come_back_in_order() -> None:
    """One block for few records, with their number."""
    records = [1, "two", (3, None), {"four": [4]}]
    encoded = encode_records(records)
    assert [block.records for block in encoded] == [4]
    assert decoded(encoded) == records


def test_no_records_are_no_block() -> None:
    """An empty list costs nothing."""
    assert encode_records([]) == []


def test_a_block_is_fixed_when_it_is_made() -> None:
    """Later changes of the receiver's objects have no effect."""
    record = [1]
    encoded = encode_records([record])
    record.append(2)
    assert decoded(encoded) == [[1]]


def test_functions_and_local_classes_travel() -> None:
    """Records are pickled as PySpark pickles data."""

    class Local:
        value = 3

    (function, local) = decoded(encode_records([lambda x: x + 1, Local()]))
    assert function(1) == 2
    assert local.value == 3


def test_large_records_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of several records is larger than the target; the order stays."""
    monkeypatch.setattr(received_blocks, "TARGET_BYTES", 3000)
    records = [bytes([number]) * 1000 for number in range(10)]
    encoded = encode_records(records)
    assert decoded(encoded) == records
    assert len(encoded) > 3
    assert all(len(block.payload) <= 3000 for block in encoded)


def test_a_record_that_cannot_be_pickled_is_named() -> None:
    """None of the records of that call is stored."""
    with pytest.raises(InvalidStreamError, match="record of type lock cannot be pickled"):
        encode_records([1, threading.Lock(), 2])


def test_a_record_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has both sizes."""
    monkeypatch.setattr(received_blocks, "MAX_PAYLOAD_BYTES", 1000)
    with pytest.raises(InvalidStreamError, match=r"type bytes takes 10\d\d bytes .* at most 1000"):
        encode_records([b"x" * 1000])


def test_what_can_be_pickled_is_kept() -> None:
    """Single records that cannot be pickled are skipped and reported."""
    refused: list[InvalidStreamError] = []
    encoded = encode_records([1, threading.Lock(), 2, threading.Lock(), 3], refused.append)
    assert decoded(encoded) == [1, 2, 3]
    assert sum(block.records for block in encoded) == 3
    assert len(refused) == 2


Make = Callable[..., BlockGenerator]


class Parts:
    """The collaborators of a generator."""

    def __init__(self) -> None:
        self.store = Store()
        self.clock = ManualClock()
        self.reports: list[tuple[str, Exception]] = []


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def make(parts: Parts) -> Iterator[Make]:
    """Make a generator that is started, and discarded when the test ends."""
    made: list[BlockGenerator] = []

    def start(interval_ms: int = 200) -> BlockGenerator:
        generator = BlockGenerator(
            "numbers",
            parts.store.put,
            RateLimiter(None, parts.clock),
            parts.clock,
            Settings(block_interval_ms=interval_ms, receiver_restart_delay_ms=1),
            lambda message, error: parts.reports.append((message, error)),
        )
        made.append(generator)
        generator.start()
        return generator

    yield start
    for generator in made:
        generator.discard()
        generator.stop()


def in_background(call: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def test_an_interval_is_a_block(parts: Parts, make: Make) -> None:
    """The records of an interval are one block at its end."""
    generator = make(interval_ms=200)
    for number in range(6):
        generator.add(number)
        if number % 2:
            parts.clock.advance(200)
            wait_for(lambda: len(parts.store.records) == number + 1)  # noqa: B023
    assert [block.records for block in parts.store.blocks] == [2, 2, 2]
    assert parts.store.records == list(range(6))


def test_a_clock_that_is_set_back_holds_up_no_block(parts: Parts, make: Make) -> None:
    """The next interval ends as the clock says now."""
    parts.clock.advance(3_600_000)
    generator = make(interval_ms=200)
    generator.add(1)
    parts.clock.advance(200)
    wait_for(lambda: parts.store.records == [1])
    parts.clock.set_back(3_600_000)
    generator.add(2)

    def is_stored() -> bool:
        parts.clock.advance(200)
        return parts.store.records == [1, 2]

    wait_for(is_stored)


def test_an_interval_without_records_is_no_block(parts: Parts, make: Make) -> None:
    """Time alone makes no blocks."""
    generator = make(interval_ms=200)
    parts.clock.advance(1000)
    generator.add(1)
    parts.clock.advance(200)
    wait_for(lambda: parts.store.records == [1])
    assert len(parts.store.blocks) == 1


def test_many_records_are_a_block_before_the_interval_is_over(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer has a limit; the clock stands still here."""
    monkeypatch.setattr(received_blocks, "MAX_RECORDS", 10)
    generator = make()
    for number in range(25):
        generator.add(number)
    wait_for(lambda: len(parts.store.records) == 20)
    assert [block.records for block in parts.store.blocks] == [10, 10]


def test_large_records_are_a_block_before_the_interval_is_over(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is one of bytes as well."""
    monkeypatch.setattr(received_blocks, "TARGET_BYTES", 10_000)
    generator = make()
    for _ in range(20):
        generator.add(b"x" * 1000)
    wait_for(lambda: len(parts.store.blocks) >= 2)


def test_when_nothing_is_stored_the_sender_waits(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block in the hand, one in the buffer: then add waits."""
    monkeypatch.setattr(received_blocks, "MAX_RECORDS", 5)
    parts.store.open.clear()
    generator = make()
    added: list[int] = []

    def add_all() -> None:
        for number in range(100):
            generator.add(number)
            added.append(number)

    adding = in_background(add_all)
    wait_for(lambda: len(added) >= 10)
    adding.join(0.2)
    assert adding.is_alive()
    assert len(added) == 10
    parts.store.open.set()
    adding.join(60)
    generator.stop()
    assert parts.store.records == list(range(100))


def test_stop_stores_all(parts: Parts, make: Make) -> None:
    """The last block needs no interval; afterwards nothing is taken."""
    generator = make()
    for number in range(10):
        generator.add(number)
    generator.stop()
    assert parts.store.records == list(range(10))
    with pytest.raises(StreamLifecycleError, match="numbers has stopped and accepts no more"):
        generator.add(10)


def test_stop_waits_for_a_slow_store(parts: Parts, make: Make) -> None:
    """Drained means stored."""
    parts.store.open.clear()
    generator = make()
    generator.add(1)
    parts.clock.advance(200)
    wait_for(lambda: not generator._buffer)
    generator.add(2)
    stopping = in_background(generator.stop)
    stopping.join(0.1)
    assert stopping.is_alive()
    parts.store.open.set()
    stopping.join(60)
    assert parts.store.records == [1, 2]


def test_many_threads_lose_nothing(parts: Parts, make: Make) -> None:
    """Each record is in one block, those of a thread in its order."""
    generator = make(interval_ms=10)

    def add_all(thread: int) -> None:
        for number in range(1000):
            generator.add((thread, number))

    threads = [in_background(add_all, thread) for thread in range(8)]
    while any(thread.is_alive() for thread in threads):
        parts.clock.advance(10)
    generator.stop()
    records = parts.store.records
    assert len(records) == 8000
    for thread in range(8):
        assert [number for of, number in records if of == thread] == list(range(1000))


def test_a_store_that_fails_is_tried_again(parts: Parts, make: Make) -> None:
    """The block keeps its place, and the failure is reported once."""
    parts.store.failures = [OSError("disk full")] * 3
    generator = make()
    generator.add(1)
    parts.clock.advance(200)
    wait_for(lambda: not generator._buffer)
    generator.add(2)
    generator.stop()
    assert parts.store.records == [1, 2]
    ((message, error),) = parts.reports
    assert "failed to store 1 received records; retrying every 1 ms" in message
    assert str(error) == "disk full"


def test_a_store_that_closes_after_a_discard_is_no_error(parts: Parts, make: Make) -> None:
    """A stopped stream drops records without a report."""
    parts.store.open.clear()
    parts.store.failures = [StreamLifecycleError("the stream has stopped")]
    generator = make()
    generator.add(1)
    parts.clock.advance(200)
    wait_for(lambda: not generator._buffer)
    generator.discard()
    generator.add(2)
    parts.store.open.set()
    generator.stop()
    assert parts.store.records == []
    assert parts.reports == []


def test_a_list_is_stored_at_once(parts: Parts, make: Make) -> None:
    """Blocks keep the order of the records, and errors reach the caller."""
    generator = make()
    generator.add_all(iter([1, 2, 3]))
    assert parts.store.records == [1, 2, 3]
    with pytest.raises(InvalidStreamError, match="type lock cannot be pickled"):
        generator.add_all([4, threading.Lock()])
    parts.store.failures = [OSError("disk full")]
    with pytest.raises(OSError, match="disk full"):
        generator.add_all([4])
    assert parts.store.records == [1, 2, 3]


def test_a_record_that_cannot_be_pickled_is_reported(parts: Parts, make: Make) -> None:
    """The others of its block are stored."""
    generator = make()
    for record in (1, threading.Lock(), 2):
        generator.add(record)
    generator.stop()
    assert parts.store.records == [1, 2]
    ((message, error),) = parts.reports
    assert message == "skipped a received record"
    assert "type lock cannot be pickled" in str(error)


def test_discarding_lets_who_waits_go(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An immediate stop does not wait for callers."""
    monkeypatch.setattr(received_blocks, "MAX_RECORDS", 1)
    parts.store.open.clear()
    generator = make()
    adding = in_background(lambda: [generator.add(number) for number in range(10)])
    adding.join(0.1)
    assert adding.is_alive()
    generator.discard()
    adding.join(60)
    assert not adding.is_alive()
    parts.store.open.set()


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
    """The caller gets the error, and the block uses no room."""
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

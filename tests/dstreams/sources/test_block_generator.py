"""Records to blocks: by interval and by size, in bounded memory, and none is lost at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError, StreamLifecycleError
from dstreams.sources import block_generator
from dstreams.sources.block_generator import BlockGenerator
from dstreams.sources.rate_limiter import RateLimiter
from dstreams.testing import ManualClock
from tests.support.receiving import Store
from tests.support.waiting import wait_for

Make = Callable[..., BlockGenerator]


class Parts:
    """What a generator works with."""

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
    """What came in one interval is one block, at the end of the interval."""
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

    wait_for(is_stored, 10)


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
    monkeypatch.setattr(block_generator, "MAX_RECORDS", 10)
    generator = make()
    for number in range(25):
        generator.add(number)
    wait_for(lambda: len(parts.store.records) == 20)
    assert [block.records for block in parts.store.blocks] == [10, 10]


def test_large_records_are_a_block_before_the_interval_is_over(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is one of bytes as well."""
    monkeypatch.setattr(block_generator, "TARGET_BYTES", 10_000)
    generator = make()
    for _ in range(20):
        generator.add(b"x" * 1000)
    wait_for(lambda: len(parts.store.blocks) >= 2)


def test_when_nothing_is_stored_the_sender_waits(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block in the hand, one in the buffer: then add waits."""
    monkeypatch.setattr(block_generator, "MAX_RECORDS", 5)
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
    with pytest.raises(StreamLifecycleError, match="numbers has stopped and takes no more"):
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
    assert "1 received records could not be stored; trying again every 1 ms" in message
    assert str(error) == "disk full"


def test_a_store_that_closes_after_a_discard_is_no_error(parts: Parts, make: Make) -> None:
    """Nobody is told of records that a stream which has stopped drops."""
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
    """In the order of its records, whatever the interval; a failure is the caller's."""
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
    assert message == "a received record is left out"
    assert "type lock cannot be pickled" in str(error)


def test_discarding_lets_who_waits_go(
    parts: Parts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that is not graceful waits for nobody."""
    monkeypatch.setattr(block_generator, "MAX_RECORDS", 1)
    parts.store.open.clear()
    generator = make()
    adding = in_background(lambda: [generator.add(number) for number in range(10)])
    adding.join(0.1)
    assert adding.is_alive()
    generator.discard()
    adding.join(60)
    assert not adding.is_alive()
    parts.store.open.set()

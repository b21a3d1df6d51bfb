"""The garbage collector: no batch waits for it; without its thread it runs in the caller."""

from __future__ import annotations

import threading

import pytest

from dstreams.engine.garbage_collector import GarbageCollector


def test_without_a_thread_each_clean_up_runs_where_it_is_posted() -> None:
    """So a test, or a stream that is stepped by hand, is deterministic."""
    threads: list[threading.Thread] = []
    collector = GarbageCollector()
    for number in range(3):
        collector.post(f"batch {number}", lambda: threads.append(threading.current_thread()))
    collector.close()
    assert threads == [threading.current_thread()] * 3


def test_of_those_that_wait_the_newest_runs_and_close_waits_for_it() -> None:
    """While a clean-up runs, later ones wait without blocking; the newest includes the others."""
    ran: list[int] = []
    began, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert may_end.wait(60)
        ran.append(0)

    collector = GarbageCollector()
    collector.use_thread()
    collector.post("batch 0", slow)
    assert began.wait(60)
    for number in (1, 2, 3):
        collector.post(f"batch {number}", lambda number=number: ran.append(number))  # type: ignore[misc]
    may_end.set()
    collector.close()
    assert ran == [0, 3]
    collector.post("batch 4", lambda: ran.append(4))
    assert ran == [0, 3]
    assert not [each for each in threading.enumerate() if each.name == "dstreams-janitor"]


@pytest.mark.parametrize("has_thread", [False, True])
def test_one_that_fails_is_logged_and_the_next_one_runs(
    has_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed clean-up fails no batch."""
    ran: list[int] = []
    collector = GarbageCollector()
    if has_thread:
        collector.use_thread()
    collector.post("batch 7", lambda: ran.append(1 // 0))
    collector.close()
    assert "cleaning up after batch 7 failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert ran == []

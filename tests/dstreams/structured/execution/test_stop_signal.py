"""SIGTERM while a program waits for its queries."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dstreams.engine.signals import StopSignal, stop_signal
from dstreams.structured import StreamSession
from dstreams.structured.api.query import StreamingQuery
from tests.support.waiting import wait_for

SIGTERM = signal.SIGTERM


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has got no signal, and as it was afterwards."""
    before = signal.signal(SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(stop_signal, "_has_come", False)
    yield
    signal.signal(SIGTERM, before or signal.SIG_DFL)


@contextmanager
def told_to_end() -> Iterator[None]:
    """Send SIGTERM from another thread, as soon as somebody handles it."""

    def tell() -> None:
        wait_for(lambda: signal.getsignal(SIGTERM) != signal.SIG_DFL)
        os.kill(os.getpid(), SIGTERM)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    yield
    teller.join(60)


def test_the_first_signal_is_noted_and_the_next_one_is_not_caught() -> None:
    """A process that ignores the first signal ends at the second."""
    stop = StopSignal()
    with told_to_end(), stop.noted() as has_come:
        assert not has_come()
        wait_for(has_come)
        assert signal.getsignal(SIGTERM) == signal.SIG_DFL
    with stop.noted() as has_come:
        assert signal.getsignal(SIGTERM) == signal.SIG_DFL
        assert not has_come()


def test_a_handler_of_the_program_stays() -> None:
    """A program that stops its queries by itself is not disturbed."""

    def own(number: int, frame: Any) -> None:
        raise AssertionError(number)

    signal.signal(SIGTERM, own)
    with StopSignal().noted() as has_come:
        assert signal.getsignal(SIGTERM) is own
        assert not has_come()
    assert signal.getsignal(SIGTERM) is own


def test_no_handler_stays_behind() -> None:
    """A program that continues after its wait ends normally."""
    with StopSignal().noted():
        assert signal.getsignal(SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(SIGTERM) == signal.SIG_DFL


def for_one(session: StreamSession, query: StreamingQuery) -> object:
    return query.awaitTermination()


def for_one_at_most(session: StreamSession, query: StreamingQuery) -> object:
    return query.awaitTermination(60)


def for_any(session: StreamSession, query: StreamingQuery) -> object:
    return session.streams.awaitAnyTermination()


@pytest.mark.parametrize(
    ("wait", "answer"), [(for_one, None), (for_one_at_most, True), (for_any, None)]
)
def test_all_queries_are_stopped(
    session: StreamSession,
    wait: Callable[[StreamSession, StreamingQuery], object],
    answer: object,
) -> None:
    """The program continues after its wait, for any of its queries."""
    queries = [
        session.memoryStream(name).toDS().writeStream.format("memory").queryName(name).start()
        for name in ("first", "second")
    ]
    with told_to_end():
        assert wait(session, queries[0]) is answer
    assert [query.isActive for query in queries] == [False, False]
    assert [query.exception() for query in queries] == [None, None]

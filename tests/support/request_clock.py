"""Requests to storage in a row, counted by a clock that only requests move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import checkpoint.log.fencing
import checkpoint.storage.files
from checkpoint import LocalFiles

_REQUESTS = ("create", "read", "read_chunks", "exists", "list", "directories", "delete")


class RequestClock:
    """The time of each thread, in requests.

    A request takes a unit of time of its thread. A task for a pool of threads begins at the time of
    the thread that submits it, and if a thread waits for the task, its time is at least the time at
    the end of the task. So the time of a thread is the number of requests in a row that it has
    waited for.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def now(self) -> int:
        """The time of the calling thread."""
        return getattr(self._local, "time", 0)

    def pass_time(self) -> None:
        """Let the calling thread work for as long as a request takes."""
        self._local.time = self.now + 1

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request; requests that it makes itself do not count."""
        is_inside = getattr(self._local, "is_inside", False)
        if not is_inside:
            self.pass_time()
        self._local.is_inside = True
        try:
            yield
        finally:
            self._local.is_inside = is_inside

    def wait_until(self, time: int) -> None:
        """Let the calling thread be at that time at least."""
        self._local.time = max(self.now, time)

    def threads(self) -> type[ThreadPoolExecutor]:
        """Return a class of pools whose threads have times."""
        clock = self

        class TimedThreads(ThreadPoolExecutor):
            def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
                begin, ends = clock.now, [0]

                def run() -> Any:
                    clock._local.time = begin  # a pool may use a thread again that would be busy
                    try:
                        return call(*arguments, **named)
                    finally:
                        ends[0] = clock.now

                future = super().submit(run)
                wait = future.result

                def result(timeout: float | None = None) -> Any:
                    try:
                        return wait(timeout)
                    finally:
                        clock.wait_until(ends[0])

                future.result = result  # type: ignore[method-assign]
                return future

        return TimedThreads


@contextmanager
def counting_requests(at_once: int = 1) -> Iterator[RequestClock]:
    """Count the requests to local files, as if *at_once* of them were worth making at a time."""
    clock = RequestClock()

    def timed(name: str) -> Callable[..., Any]:
        method = getattr(LocalFiles, name)

        def request(self: LocalFiles, *arguments: Any) -> Any:
            with clock.request():
                return method(self, *arguments)

        return request

    with pytest.MonkeyPatch.context() as patch:
        for name in _REQUESTS:
            patch.setattr(LocalFiles, name, timed(name))
        patch.setattr(LocalFiles, "at_once", at_once)
        for module in (checkpoint.storage.files, checkpoint.log.fencing):
            patch.setattr(module, "ThreadPoolExecutor", clock.threads())
        yield clock

"""One operation of many fails: what files and versions that fail on demand have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

from checkpoint.errors import AlreadyExistsError, StorageRefusedError

_T = TypeVar("_T")

Effect = Literal["before", "during", "after"]


class SimulatedCrash(BaseException):
    """The process died here. Not an ``Exception``: nothing may catch it and go on."""


class OneFault:
    """Counts operations, and lets number *at* (from 1) fail.

    Make *at* larger until ``fired`` stays False: then the code was hit at every operation. After a
    crash every operation raises it again: dead processes do nothing.
    """

    def __init__(self, at: int, effect: Effect, error: Callable[[str], BaseException]) -> None:
        if effect == "after" and error in (StorageRefusedError, AlreadyExistsError):
            raise ValueError(f"{error} says that nothing happened; use effect 'before' with it")
        self.calls: list[str] = []
        self.fired = False
        self._at = at
        self._effect = effect
        self._error = error
        self._dead: SimulatedCrash | None = None

    def call(self, operation: str, run: Callable[[], _T], *, writes_parts: bool = False) -> _T:
        """Run an operation, or fail."""
        if self._dead is not None:
            raise self._dead
        self.calls.append(operation)
        if len(self.calls) != self._at:
            return run()
        if self._effect == "during" and writes_parts:
            return run()  # its parts raise
        if self._effect == "after":
            run()
        raise self._fault()

    def torn(self, parts: Iterable[_T]) -> Iterator[_T]:
        """Iterate over *parts*; fail after the first if it is their operation that fails."""
        is_torn = self._effect == "during" and len(self.calls) == self._at
        for part in parts:
            yield part
            if is_torn:
                raise self._fault()

    def _fault(self) -> BaseException:
        self.fired = True
        error = self._error(f"injected fault {self._effect} operation {self._at}: {self.calls[-1]}")
        if isinstance(error, SimulatedCrash):
            self._dead = error
        return error

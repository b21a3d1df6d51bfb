"""What can happen at one operation on files, for tests that enumerate the operations."""

from __future__ import annotations

from collections.abc import Callable

from checkpoint import Files, StorageRefusedError, StorageUncertainError
from checkpoint.testing import Effect, FaultyFiles, SimulatedCrash

FAULTS: list[tuple[Effect, type[BaseException]]] = [
    ("before", SimulatedCrash),
    ("during", SimulatedCrash),
    ("after", SimulatedCrash),
    ("before", StorageRefusedError),
    ("before", StorageUncertainError),
    ("during", StorageUncertainError),
    ("after", StorageUncertainError),
]


def fault_ids(faults: list[tuple[Effect, type[BaseException]]]) -> list[str]:
    """Names of the cases."""
    return [f"{error.__name__} {effect}" for effect, error in faults]


class Interrupted(FaultyFiles):
    """Files that let something else happen before operation number *at*."""

    def __init__(self, inner: Files, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner, at=-1)
        self._when, self._meanwhile = at, meanwhile

    def call(self, operation, run, *, writes_parts=False):  # type: ignore[no-untyped-def]
        if len(self.calls) + 1 == self._when:
            self.fired = True
            self._meanwhile()
        return super().call(operation, run, writes_parts=writes_parts)

"""Every way in which one operation on files can fail, for tests that enumerate crash points."""

from __future__ import annotations

from checkpoint import StorageRefusedError, StorageUncertainError
from checkpoint.testing import Effect, SimulatedCrash

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

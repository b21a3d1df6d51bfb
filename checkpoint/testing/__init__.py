"""Public test tools: conformance of files, of versions and of state stores, and faults on demand.

They raise plain ``AssertionError`` and need no test framework::

    def test_my_files(tmp_path):
        numbers = itertools.count()
        check_files(lambda: MyFiles(tmp_path / str(next(numbers))))

    def test_my_contents():
        check_backend(MyBases)
        check_state_store(lambda: StateStore(MyBases()))
"""

from checkpoint.testing.backend_checks import check_backend
from checkpoint.testing.faulty_backend import FaultyBackend
from checkpoint.testing.file_checks import FaultyFiles, check_files
from checkpoint.testing.memory_backend import MemoryBackend
from checkpoint.testing.one_fault import Effect, SimulatedCrash
from checkpoint.testing.simulated_disk import Omission, SimulatedDisk
from checkpoint.testing.store_checks import check_state_store

__all__ = [
    "Effect",
    "FaultyBackend",
    "FaultyFiles",
    "MemoryBackend",
    "Omission",
    "SimulatedCrash",
    "SimulatedDisk",
    "check_backend",
    "check_files",
    "check_state_store",
]

"""Public test tools: conformance of files, of contents and of state stores, and faults on demand.

They raise plain ``AssertionError`` and need no test framework::

    def test_my_files(tmp_path):
        numbers = itertools.count()
        check_files(lambda: MyFiles(tmp_path / str(next(numbers))))

    def test_my_contents():
        check_bases(MyBases)
        check_state_store(lambda: StateStore(MyBases()))
"""

from checkpoint.testing.bases import check_bases
from checkpoint.testing.faulty_bases import FaultyBases
from checkpoint.testing.files import FaultyFiles, check_files
from checkpoint.testing.memory_bases import MemoryBases
from checkpoint.testing.one_fault import Effect, SimulatedCrash
from checkpoint.testing.simulated_disk import Omission, SimulatedDisk
from checkpoint.testing.state_store import check_state_store

__all__ = [
    "Effect",
    "FaultyBases",
    "FaultyFiles",
    "MemoryBases",
    "Omission",
    "SimulatedCrash",
    "SimulatedDisk",
    "check_bases",
    "check_files",
    "check_state_store",
]

"""Values of partitions in tasks: equal after pickling, decoded one at a time."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from checkpoint.state_store import VersionId
from dstreams.spark.per_partition import PerPartition


class Counted(msgspec.Struct):
    """Counts how many were decoded."""

    number: int

    def __post_init__(self) -> None:
        decoded.append(self.number)


decoded: list[int] = []


def test_values_survive_pickling() -> None:
    """A pickled copy has the same values at the same places, and no others."""
    values = [VersionId(number, f"{number:08x}") for number in range(1, 5)]
    copy = pickle.loads(pickle.dumps(PerPartition(VersionId, values)))
    assert list(copy) == values
    assert copy[-1] == values[-1]
    assert copy[1:3] == values[1:3]
    with pytest.raises(IndexError):
        copy[4]


def test_a_task_decodes_its_own_value_only() -> None:
    """Unpickling decodes nothing, and reading one value decodes that one."""
    pickled = pickle.dumps(PerPartition(Counted, map(Counted, range(1000))))
    decoded.clear()
    assert pickle.loads(pickled)[7].number == 7
    assert decoded == [7]

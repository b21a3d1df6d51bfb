"""A process continues from the files of another one, with other hash seeds and addresses."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import open_files
from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import cogroup_with_state
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.rdd_files import read_rdd
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.state.update_function import UpdateFunction
from tests.dstreams.spark.children import run_python
from tests.dstreams.spark.lineage import lineage_of, shuffles_in
from tests.dstreams.spark.placing import FUNCTIONS, keys_of
from tests.dstreams.spark.updates import add

FIRST_PROCESS = """
import json, pickle, sys
from dataclasses import dataclass
from enum import Enum
from checkpoint import StatePartition, open_files
from dstreams.spark.blocks import Side
from dstreams.spark.cogroup import cogroup_with_state
from dstreams.spark.spark_context import tuned_context
from dstreams.spark.rdd_files import write_rdd
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.state.update_function import UpdateFunction
from tests.dstreams.spark.placing import FUNCTIONS, keys_of
from tests.dstreams.spark.updates import add

@dataclass(frozen=True)
class User:
    name: str

class Colour(Enum):
    RED = 1
    BLUE = 2

@dataclass
class Visits:
    count: int

def visit(values, state):
    state = state or Visits(0)
    state.count += sum(value.count for value in values)
    return state

sc = tuned_context("first", "local[2]", {"spark.ui.enabled": "false"})
files = open_files(sys.argv[1])
for name, func in FUNCTIONS.items():
    place = StablePartitioner(3, func)
    batch = shuffle_pairs(sc.parallelize([(key, 1) for key in keys_of(name)], 2), place)
    task = UpdateFunction.checked(add, "values", "test").task(1000, True, place)
    state = BlockPairsRDD(cogroup_with_state(batch, None, task), Side.STATE)
    first = StatePartition("run", name, 1000, 0, 3, place.name)
    files_of = write_rdd(state, files, first, 1)
    with open(f"{sys.argv[1]}/{name}.pickle", "wb") as out:
        pickle.dump(files_of, out)

place = StablePartitioner(2)
users = [User(f"user {n % 50}") for n in range(200)] + list(Colour) * 3
state = None
for _ in range(3):
    visits = sc.parallelize(users, 3).map(lambda user: (user, Visits(1)))
    task = UpdateFunction.checked(visit, "values", "test").task(1000, True, place)
    state = cogroup_with_state(shuffle_pairs(visits, place), state, task)
pairs = BlockPairsRDD(state, Side.STATE)
partitions = pairs.glom().collect()
print(json.dumps({
    "misplaced": sum(place(key) != n for n, part in enumerate(partitions) for key, _ in part),
    "counts": sorted((str(key), visits.count) for part in partitions for key, visits in part),
    "types": sorted({type(x).__name__ for part in partitions for pair in part for x in pair}),
    "own": all(type(visits) is Visits for _, visits in pairs.collect()),
}))
sc.stop()
"""


@pytest.fixture(scope="module")
def first_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The files and the output of a process that has ended."""
    directory = tmp_path_factory.mktemp("first")
    program = f"import sys; sys.argv[1:] = [{str(directory)!r}]\n{FIRST_PROCESS}"
    printed = run_python(program, PYTHONHASHSEED="271828")
    return directory, json.loads(printed.splitlines()[-1])


@pytest.mark.deep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_process_goes_on_with_the_state_of_the_first(
    sc: SparkContext, first_process: tuple[Path, dict[str, Any]], name: str
) -> None:
    """Its union is narrow: as many partitions as before, and no key in two of them."""
    directory, _ = first_process
    written = pickle.loads((directory / f"{name}.pickle").read_bytes())
    place = StablePartitioner(3, FUNCTIONS[name])
    assert written.first.partitioner == place.name
    batch = shuffle_pairs(sc.parallelize([(key, 10) for key in keys_of(name)], 2), place)
    like = BlockPairsRDD(batch, Side.STATE)
    read = read_rdd(sc, open_files(str(directory)), written, like)
    assert isinstance(read, BlockPairsRDD)
    task = UpdateFunction.checked(add, "values", "test").task(2000, True, place)
    state = cogroup_with_state(batch, read.blocks, task)
    assert shuffles_in(state) == shuffles_in(read) + 1, lineage_of(state)
    partitions = BlockPairsRDD(state, Side.STATE).glom().collect()
    assert len(partitions) == 3
    assert [{place(key) for key, _ in part} for part in partitions] == [{0}, {1}, {2}]
    found = [pair for part in partitions for pair in part]
    expected: dict[Any, int] = {}
    for key in keys_of(name):
        expected[key] = expected.get(key, 0) + 11
    assert len(found) == len(expected)
    assert dict(found) == expected


@pytest.mark.spark
def test_classes_of_the_program_are_keys_and_states(
    first_process: tuple[Path, dict[str, Any]],
) -> None:
    """Dataclasses and Enums that a program defines itself, as notebooks do, work as any other."""
    _, printed = first_process
    counts = {f"User(name='user {n}')": 12 for n in range(50)}
    counts |= {"Colour.RED": 9, "Colour.BLUE": 9}
    assert printed == {
        "misplaced": 0,
        "counts": sorted([name, count] for name, count in counts.items()),
        "types": ["Colour", "User", "Visits"],
        "own": True,
    }

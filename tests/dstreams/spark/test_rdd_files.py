"""Durable copies: what was written is what is read, where it was, and with no history."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext, TaskContext

from checkpoint import CorruptCheckpointError, Files, StatePartition, open_files
from dstreams.spark.blocks import Block, Side
from dstreams.spark.cogroup import ColumnStep, cogroup_with_state
from dstreams.spark.failures import stops_stream, summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.rdd_files import WrittenRdd, _Read, read_rdd, write_rdd
from dstreams.spark.reduction import Reduction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD, shuffle_pairs
from dstreams.spark.stable_hash import STABLE_HASH_NAME
from dstreams.state.update_function import UpdateFunction
from tests.dstreams.spark.lineage import lineage_of, shuffles_in
from tests.dstreams.spark.updates import append
from tests.support.jobs import count_jobs

TWO = StablePartitioner(2)
PAIRS = [(f"key {n}", [n]) for n in range(3000)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(str(tmp_path / "checkpoint"))


def first_of(rdd: RDD[Any], time_ms: int = 1000) -> StatePartition:
    name = getattr(rdd.partitioner, "name", "none")
    return StatePartition("run", "counts", time_ms, 0, rdd.getNumPartitions(), name)


def next_state(sc: SparkContext, pairs: list[Any], state: RDD[bytes] | None) -> BlockPairsRDD:
    task = UpdateFunction.checked(append, "values", "test").task(0, True, TWO)
    assert isinstance(task, ColumnStep)
    batch = shuffle_pairs(sc.parallelize(pairs, 2), TWO)
    return BlockPairsRDD(cogroup_with_state(batch, state, task), Side.STATE)


def test_state_comes_back_as_it_was(sc: SparkContext, files: Files) -> None:
    """Partitions, partitioner, pairs and counts are kept; one job writes all of it."""
    state = next_state(sc, PAIRS, None)
    results: list[WrittenRdd] = []
    assert count_jobs(sc, lambda: results.append(write_rdd(state, files, first_of(state), 3))) == 1
    (written,) = results
    assert written.first == first_of(state)
    assert [ref.name.split("-")[1] for ref in written.files] == ["p00000", "p00001"]
    assert sum(ref.records for ref in written.files) == 3000
    assert all("-e3-" in ref.name for ref in written.files)
    assert set(files.list("state/")) == {ref.name for ref in written.files}
    read = read_rdd(sc, files, written, like=state)
    assert isinstance(read, BlockPairsRDD)
    assert read.side is Side.STATE
    assert read.partitioner == TWO
    assert read.count() == 3000
    assert read.glom().collect() == state.glom().collect()


def test_reduced_batches_come_back_as_they_were(sc: SparkContext, files: Files) -> None:
    """Not as a state, so that values of a batch are used without encoding them again."""
    pairs = sc.parallelize(PAIRS[:100], 2)
    reduced = reduce_pairs(pairs, Reduction(operator.add, "plus"), TWO)
    read = read_rdd(sc, files, write_rdd(reduced, files, first_of(reduced), 1), like=reduced)
    assert isinstance(read, BlockPairsRDD)
    assert read.side is Side.BATCH
    assert shuffle_pairs(read, TWO) is read.blocks
    assert read.blocks.collect() == reduced.blocks.collect()
    assert read.count() == 100


def test_narrow_union_after_reading_back(sc: SparkContext, files: Files) -> None:
    """The next batch meets the state that was read without moving it."""
    state = next_state(sc, PAIRS, None)
    read = read_rdd(sc, files, write_rdd(state, files, first_of(state), 1), like=state)
    before = shuffles_in(read)
    after = next_state(sc, [("key 5", [-1]), ("new", [-2])], read.blocks)  # type: ignore[attr-defined]
    assert shuffles_in(after) == before + 1, lineage_of(after)
    assert after.getNumPartitions() == 2
    assert dict(after.collect()) == {**dict(PAIRS), "key 5": [5, -1], "new": [-2]}


def test_lineage_does_not_grow(sc: SparkContext, files: Files) -> None:
    """A state that is read back depends on its files and on no batch before."""
    state = next_state(sc, PAIRS[:10], None)
    depths = []
    for number in range(4):
        state = next_state(sc, [(f"key {number}", [number])], state.blocks)
        depths.append((len(lineage_of(state)), shuffles_in(state)))
        written = write_rdd(state, files, first_of(state, number * 1000), 1)
        state = read_rdd(sc, files, written, like=state)  # type: ignore[assignment]
    assert len(set(depths[1:])) == 1, depths
    assert state.count() == 10


ORDINARY: dict[str, Callable[[SparkContext, str], RDD[Any]]] = {
    "numbers": lambda sc, path: sc.parallelize(range(1000), 3),
    "mapped": lambda sc, path: sc.parallelize(range(10), 2).map(lambda n: {"n": [n]}),
    "empty partitions": lambda sc, path: sc.parallelize(["a"], 4),
    "text": lambda sc, path: sc.textFile(path, 2),
    "mapped text": lambda sc, path: sc.textFile(path, 2).map(len),
    "whole texts": lambda sc, path: sc.wholeTextFiles(path).values(),
    "pairs of texts": lambda sc, path: sc.wholeTextFiles(path),
    "zipped": lambda sc, path: sc.parallelize(range(9), 2).zip(sc.parallelize(range(9), 2)),
    "cartesian": lambda sc, path: sc.parallelize("ab", 1).cartesian(sc.parallelize(range(3), 2)),
    "united": lambda sc, path: sc.textFile(path, 2).union(sc.parallelize(["x"], 1)),
    "partitioned": lambda sc, path: sc.parallelize([(1, 2), (3, 4)], 2).partitionBy(3),
    "none and nothing": lambda sc, path: sc.parallelize([None, "", b"", 0], 2),
}


@pytest.mark.deep
@pytest.mark.parametrize("make", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_rdds_come_back(
    sc: SparkContext, files: Files, tmp_path: Path, make: Callable[[SparkContext, str], RDD[Any]]
) -> None:
    """Any RDD can be written, for all elements and serializers."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "part").write_text("Grüße\n\nlast line", encoding="utf-8")
    rdd = make(sc, text.as_uri())
    written = write_rdd(rdd, files, first_of(rdd), 1)
    assert len(written.files) == rdd.getNumPartitions()
    read = read_rdd(sc, files, written, like=rdd)
    expected = rdd.glom().collect()
    assert read.glom().collect() == expected
    assert read.partitioner == rdd.partitioner
    assert read.map(repr).collect() == [repr(item) for part in expected for item in part]


def test_pairs_derived_from_a_state_keep_their_place(sc: SparkContext, files: Files) -> None:
    """An ordinary RDD with a stable partitioner has it again, here and on the JVM."""
    mapped = next_state(sc, PAIRS[:100], None).mapValues(len)
    read = read_rdd(sc, files, write_rdd(mapped, files, first_of(mapped), 1), like=mapped)
    assert not isinstance(read, BlockPairsRDD)
    assert read.partitioner == TWO
    united = next_state(sc, [("key 1", [7])], None).union(read)
    assert united.getNumPartitions() == 2
    found = [{TWO(key) for key, _ in part} for part in united.glom().collect()]
    assert found == [{0}, {1}]
    blocks = shuffle_pairs(read, TWO)
    assert shuffles_in(blocks) == shuffles_in(read)
    assert blocks.glom().map(len).collect() == [1, 1]


def test_each_attempt_writes_under_names_of_its_own(sc: SparkContext, files: Files) -> None:
    """The same state written twice is in different files, and both are whole."""
    state = next_state(sc, PAIRS[:50], None)
    first, second = (write_rdd(state, files, first_of(state), 1) for _ in range(2))
    names = {ref.name for written in (first, second) for ref in written.files}
    assert len(names) == 4
    assert set(files.list("state/")) == names
    for written in (first, second):
        assert sorted(read_rdd(sc, files, written, like=state).collect()) == sorted(PAIRS[:50])


def test_retried_task_leaves_one_file_that_counts(sc: SparkContext, files: Files) -> None:
    """A task that failed in the middle is run again, and only its second file is named."""

    def fail_once(_: int, pairs: Any) -> Any:
        for number, pair in enumerate(pairs):
            context = TaskContext.get()
            if number == 20 and context is not None and context.attemptNumber() == 0:
                raise ConnectionError("lost on purpose")
            yield pair

    pairs = sc.parallelize(PAIRS[:50], 1).mapPartitionsWithIndex(fail_once)
    written = write_rdd(pairs, files, first_of(pairs), 1)
    assert len(written.files) == 1
    assert read_rdd(sc, files, written, like=pairs).collect() == PAIRS[:50]


def test_missing_file_fails_with_its_name(sc: SparkContext, files: Files, tmp_path: Path) -> None:
    """A job that needs a file that is gone says which, and that the storage is at fault."""
    state = next_state(sc, PAIRS[:50], None)
    written = write_rdd(state, files, first_of(state), 1)
    read = read_rdd(sc, files, written, like=state)
    (tmp_path / "checkpoint" / written.files[1].name).unlink()
    with pytest.raises(Py4JJavaError) as caught:
        read.count()
    summary = summarize(caught.value)
    assert f"{written.files[1].name} is missing; expected a state file of" in summary
    assert stops_stream(caught.value)


def cut(data: bytes) -> bytes:
    return data[:-9]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flip, lambda data: b"", lambda data: data + b"more"])
def test_damaged_file_fails_with_its_name(
    sc: SparkContext, files: Files, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """A file that is not what was written is refused by the task that reads it."""
    state = next_state(sc, PAIRS[:200], None)
    written = write_rdd(state, files, first_of(state), 1)
    path = tmp_path / "checkpoint" / written.files[0].name
    path.chmod(0o600)
    path.write_bytes(damage(path.read_bytes()))
    task = _Read(files, written.first, written.files)
    assert sum(Block(frame).rows for frame in task(1, iter([b""]))) > 0
    with pytest.raises(CorruptCheckpointError, match=written.files[0].name):
        list(task(0, iter([b""])))


def test_file_of_another_state_is_refused(sc: SparkContext, files: Files) -> None:
    """A file that replaces another one is refused, even if it is intact."""
    state = next_state(sc, PAIRS[:50], None)
    written = write_rdd(state, files, first_of(state), 1)
    swapped = replace(written, files=(written.files[1], written.files[0]))
    with pytest.raises(CorruptCheckpointError, match="is of partition 1; expected partition 0"):
        list(_Read(files, swapped.first, swapped.files)(0, iter([])))
    renamed = replace(written, first=replace(written.first, partitioner="another"))
    with pytest.raises(CorruptCheckpointError, match=f"is of partitioner '{STABLE_HASH_NAME}'"):
        list(_Read(files, renamed.first, renamed.files)(0, iter([])))


def test_task_reads_its_input_to_the_end(sc: SparkContext, files: Files) -> None:
    """The slots that a reading task hangs on are read: a worker with input left is thrown away."""
    state = next_state(sc, PAIRS[:10], None)
    written = write_rdd(state, files, first_of(state), 1)
    slots = iter([b"", b""])
    next(iter(_Read(files, written.first, written.files)(0, slots)))
    assert next(slots, None) is None

"""StateStoreRDD: versions that count, rows that wait for them, attempts that change nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext, TaskContext

from checkpoint import open_files
from checkpoint.state_store import LmdbBackend, StateReader, StateStore, StateWriter
from dstreams.spark.blocks import Side
from dstreams.spark.failures import summarize
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.partitions import empty_partitions, pinned_partitions
from dstreams.spark.placed_pairs import PlacedPairsRDD, state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.spilling import FrameBuffer
from dstreams.spark.state_store_rdd import ReadStateStoreRDD, StateStoreRDD
from dstreams.spark.state_version import StateMetrics, StateVersion
from tests.dstreams.spark.lineage import lineage_of
from tests.dstreams.spark.versions import STORE, TWO, contents
from tests.support.jobs import count_jobs

Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Count:
    """Counts records by key; an initial state is where counting begins."""

    fails_at: str = ""
    first_attempt_fails: bool = False

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        for key, state in initial:
            store.put(key, state)
        for key, _ in records:
            if key == self.fails_at:
                raise ValueError(f"no {key}")
            store.put(key, (store.get(key) or 0) + 1)
            metrics.numUpdatedStateRows += 1
            yield key, store.get(key)
        context = TaskContext.get()
        if self.first_attempt_fails and context is not None and context.attemptNumber() == 0:
            raise OSError("first attempt")


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(LmdbBackend(open_files(str(tmp_path / "files")), str(tmp_path / "local")))


def blocks(sc: SparkContext, letters: str, side: Side = Side.BATCH) -> RDD[bytes]:
    return shuffle_pairs(sc.parallelize([(letter, 1) for letter in letters], 2), TWO, side)


def test_versions_follow_each_other(sc: SparkContext, store: StateStore) -> None:
    """Each batch begins with the version before it; rows and metrics are those of the batch."""
    version = StateVersion.empty(STORE, TWO)
    seen = []
    for letters in ("ab", "aac", ""):
        batch = blocks(sc, letters) if letters else empty_partitions(sc, TWO)
        counted = StateStoreRDD(state_inputs(batch), store, version, Count())
        version = counted.force()
        assert version.metrics is not None
        counts = version.metrics.as_dict()
        seen.append((sorted(counted.rows().collect()), counts["numUpdatedStateRows"]))
        assert (counts["numTotalStateRows"], counts["numStateStoreInstances"]) == (
            len(contents(store, version)),
            2,
        )
    assert seen == [
        ([("a", 1), ("b", 1)], 2),
        ([("a", 2), ("a", 3), ("c", 1)], 3),
        ([], 0),
    ]
    assert contents(store, version) == {"a": 3, "b": 1, "c": 1}
    assert (version.version, len(version.commits)) == (3, 2)


def test_initial_states_come_first(sc: SparkContext, store: StateStore) -> None:
    """Blocks of state are in the store before the first record is looked at."""
    inputs = [blocks(sc, "ad", Side.STATE), blocks(sc, "ab")]
    counted = StateStoreRDD(state_inputs(*inputs), store, StateVersion.empty(STORE, TWO), Count())
    assert contents(store, counted.force()) == {"a": 2, "b": 1, "d": 1}
    assert sorted(counted.rows().collect()) == [("a", 2), ("b", 1)]


def test_every_batch_is_computed_where_those_before_were(
    sc: SparkContext, store: StateStore
) -> None:
    """Its input is united with partitions that stay on the hosts that have the replicas."""
    pinned = pinned_partitions(sc, TWO)
    version = StateVersion.empty(STORE, TWO)
    for _ in range(2):
        batch = StateStoreRDD(state_inputs(blocks(sc, "a")), store, version, Count())
        version = batch.force()
        assert any(f"[{pinned.id()}]" in line for line in lineage_of(batch.rows()))
    assert contents(store, version) == {"a": 2}
    assert sc._jsc.getPersistentRDDs().get(pinned.id()) is not None


def test_lineage_does_not_grow(sc: SparkContext, store: StateStore) -> None:
    """A batch knows nothing of those before it: the thousandth costs what the first one did."""
    version = StateVersion.empty(STORE, TWO)
    lengths = []
    batch = StateStoreRDD(state_inputs(empty_partitions(sc, TWO)), store, version, Count())
    for letter in "abc":
        version = batch.force()
        batch = StateStoreRDD(state_inputs(blocks(sc, letter)), store, version, Count())
        lengths.append(len(lineage_of(batch.rows())))
    assert len(set(lengths)) == 1


def test_one_job_computes_and_rows_compute_nothing_again(
    sc: SparkContext, store: StateStore, tmp_path: Path
) -> None:
    """Forcing is one job; reading rows, even twice, writes nothing more."""
    counted = StateStoreRDD(
        state_inputs(blocks(sc, "ab")), store, StateVersion.empty(STORE, TWO), Count()
    )
    assert count_jobs(sc, counted.force) == 1
    files = sorted((tmp_path / "files").rglob("*.changes"))
    assert len(files) == 2
    counted.rows().take(1)
    counted.rows().collect()
    assert sorted((tmp_path / "files").rglob("*.changes")) == files


def test_workers_are_used_again_when_few_rows_are_taken(
    sc: SparkContext, store: StateStore
) -> None:
    """Reading only the first rows does not end the worker."""
    version = StateVersion.empty(STORE, TWO)
    pairs = [(f"key-{number}", number) for number in range(5000)]
    workers: list[set[int]] = []
    for _ in range(6):
        batch = shuffle_pairs(sc.parallelize(pairs, 2), TWO)
        counted = StateStoreRDD(state_inputs(batch), store, version, Count())
        version = counted.force()
        assert len(counted.rows().take(1)) == 1
        counted.unpersist()
        workers.append({child.pid for child in psutil.Process().children(recursive=True)})
    assert len(set().union(*workers[2:]) - workers[1]) <= 1


def test_computed_again_is_another_attempt(sc: SparkContext, store: StateStore) -> None:
    """Lost rows are computed from the same version, without changing the committed state."""
    counted = StateStoreRDD(
        state_inputs(blocks(sc, "aab")), store, StateVersion.empty(STORE, TWO), Count()
    )
    version = counted.force()
    counted.unpersist()
    assert sorted(counted.rows().collect()) == [("a", 1), ("a", 2), ("b", 1)]
    following = StateStoreRDD(state_inputs(blocks(sc, "a")), store, version, Count())
    assert contents(store, following.force()) == {"a": 3, "b": 1}


def test_a_retry_applies_nothing_twice(sc: SparkContext, store: StateStore) -> None:
    """An attempt that failed at its end leaves no trace in the one that succeeds."""
    counted = StateStoreRDD(
        state_inputs(blocks(sc, "aab")),
        store,
        StateVersion.empty(STORE, TWO),
        Count(first_attempt_fails=True),
    )
    assert contents(store, counted.force()) == {"a": 2, "b": 1}


def test_a_failure_leaves_the_version_before(sc: SparkContext, store: StateStore) -> None:
    """The error is the user's, no row comes out, and the next try begins where this one did."""
    version = StateStoreRDD(
        state_inputs(blocks(sc, "ab")), store, StateVersion.empty(STORE, TWO), Count()
    ).force()
    failing = StateStoreRDD(state_inputs(blocks(sc, "axb")), store, version, Count(fails_at="x"))
    with pytest.raises(Py4JJavaError) as raised:
        failing.force()
    assert "no x" in summarize(raised.value)
    assert contents(store, version) == {"a": 1, "b": 1}
    again = StateStoreRDD(state_inputs(blocks(sc, "ab")), store, version, Count())
    assert contents(store, again.force()) == {"a": 2, "b": 2}


def test_partitions_have_to_agree(sc: SparkContext, store: StateStore) -> None:
    """A state of two partitions is not changed by an input of three."""
    batch = shuffle_pairs(sc.parallelize([("a", 1)]), StablePartitioner(3))
    with pytest.raises(
        ValueError, match=r"the state of '.*': has 2 partitions, but the input has 3"
    ):
        StateStoreRDD(state_inputs(batch), store, StateVersion.empty(STORE, TWO), Count())


@dataclass(frozen=True)
class Restore:
    """Puts the stored count of a key in front of each of its records."""

    def __call__(self, split: int, store: StateReader, rows: Pairs) -> Iterator[Any]:
        for key, value in rows:
            stored = store.get(key)
            if stored is not None:
                yield key, stored
            yield key, value


def test_any_rows_are_an_input(sc: SparkContext, store: StateStore) -> None:
    """An input need not be blocks: rows of a narrow step come to the function as they are."""
    doubled = PlacedPairsRDD(blocks(sc, "ab")).flatMap(lambda pair: [pair, pair], True)
    counted = StateStoreRDD(doubled, store, StateVersion.empty(STORE, TWO), Count())
    assert contents(store, counted.force()) == {"a": 2, "b": 2}


def test_reading_changes_nothing(sc: SparkContext, store: StateStore) -> None:
    """A store is read at its version, by key, and no version is made."""
    empty = StateVersion.empty(STORE, TWO)
    version = StateStoreRDD(state_inputs(blocks(sc, "aab")), store, empty, Count()).force()
    batch = PlacedPairsRDD(blocks(sc, "bc"))
    for _ in range(2):
        read = ReadStateStoreRDD(batch, store, version, Restore())
        assert sorted(read.collect()) == [("b", 1), ("b", 1), ("c", 1)]
    assert sorted(ReadStateStoreRDD(batch, store, empty, Restore()).collect()) == [
        ("b", 1),
        ("c", 1),
    ]
    assert contents(store, version) == {"a": 2, "b": 1}


def test_reading_and_saving_in_one_task(sc: SparkContext, store: StateStore) -> None:
    """Rows that a read-only store has added to are saved to the same store, in one job."""
    version = StateVersion.empty(STORE, TWO)
    for letters in ("ab", "bc"):
        read = ReadStateStoreRDD(PlacedPairsRDD(blocks(sc, letters)), store, version, Restore())
        saved = StateStoreRDD(read, store, version, Count())
        made: list[StateVersion] = []
        assert count_jobs(sc, lambda: made.append(saved.force())) == 1  # noqa: B023 - runs at once
        version = made[0]
    assert contents(store, version) == {"a": 1, "b": 3, "c": 1}


@dataclass(frozen=True)
class Tag:
    """Gives each key a tag, stores it and emits it: one that is drawn, or one that follows."""

    draws: bool

    def __call__(
        self, store: StateWriter, initial: Pairs, records: Pairs, metrics: StateMetrics
    ) -> Iterator[Any]:
        for key, value in records:
            tag = secrets.token_hex(8) if self.draws else value
            store.put(key, tag)
            yield key, tag


def tagged(sc: SparkContext, store: StateStore, *, draws: bool) -> StateStoreRDD:
    pairs: RDD[Any] = sc.parallelize([(letter, letter * 3) for letter in "abcdef"], 2)
    before = StateVersion.empty(STORE, TWO)
    return StateStoreRDD(state_inputs(shuffle_pairs(pairs, TWO)), store, before, Tag(draws))


def test_the_same_again(sc: SparkContext, store: StateStore) -> None:
    """Rows of a deterministic function are computed again without an error."""
    made = tagged(sc, store, draws=False)
    version = made.force()
    made.unpersist()
    assert dict(made.rows().collect()) == contents(store, version)


def test_other_rows_are_an_error(sc: SparkContext, store: StateStore) -> None:
    """Rows that do not match the state are never returned; the message has the remedy."""
    made = tagged(sc, store, draws=True)
    version = made.force()
    assert dict(made.rows().collect()) == contents(store, version)
    made.unpersist()
    with pytest.raises(Py4JJavaError) as raised:
        made.rows().collect()
    message = summarize(raised.value)
    assert "RowsChangedError: rows of counts-0 in partition " in message
    assert "add random or looked-up values to the records before the stateful operation" in message


def test_a_following_version_is_not_disturbed(sc: SparkContext, store: StateStore) -> None:
    """Rows that were computed again leave the state as it was committed."""
    made = tagged(sc, store, draws=True)
    version = made.force()
    before = contents(store, version)
    made.unpersist()
    with pytest.raises(Py4JJavaError):
        made.rows().collect()
    batch = shuffle_pairs(sc.parallelize([("z", "z")], 2), TWO)
    following = StateStoreRDD(state_inputs(batch), store, version, Tag(draws=False)).force()
    assert contents(store, following) == {**before, "z": "z"}


def test_held_frames() -> None:
    """They come back as they were; the digest knows where one frame ends."""
    held, other = FrameBuffer(), FrameBuffer()
    for frame in (b"ab", b"c", b""):
        held.add(frame)
    for frame in (b"a", b"bc", b""):
        other.add(frame)
    assert list(held.frames()) == [b"ab", b"c", b""]
    assert list(other.frames()) == [b"a", b"bc", b""]
    assert held.digest() != other.digest()

"""Rows that are lost: computed again where that gives the same, else an error."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkContext

from checkpoint import open_files
from checkpoint.state_store import LmdbBackend, StateStore, StateWriter
from dstreams.spark.failures import summarize
from dstreams.spark.placed_pairs import state_inputs
from dstreams.spark.shuffle import shuffle_pairs
from dstreams.spark.spill_buffer import FrameBuffer
from dstreams.spark.state_metrics import StateMetrics
from dstreams.spark.state_store_rdd import StateStoreRDD
from dstreams.spark.state_version import StateVersion
from tests.dstreams.spark.versions import STORE, TWO, contents

Pairs = Iterator[tuple[Any, Any]]


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


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(LmdbBackend(open_files(str(tmp_path / "files")), str(tmp_path / "local")))


def tagged(sc: SparkContext, store: StateStore, *, draws: bool) -> StateStoreRDD:
    pairs: RDD[Any] = sc.parallelize([(letter, letter * 3) for letter in "abcdef"], 2)
    before = StateVersion.empty(STORE, TWO)
    return StateStoreRDD(state_inputs(shuffle_pairs(pairs, TWO)), store, before, Tag(draws))


def test_the_same_again(sc: SparkContext, store: StateStore) -> None:
    """Rows of a deterministic function are computed again, and nobody notices."""
    made = tagged(sc, store, draws=False)
    version = made.force()
    made.unpersist()
    assert dict(made.rows().collect()) == contents(store, version)


def test_other_rows_are_an_error(sc: SparkContext, store: StateStore) -> None:
    """Rows that do not fit the state are handed to nobody; the message says what to change."""
    made = tagged(sc, store, draws=True)
    version = made.force()
    assert dict(made.rows().collect()) == contents(store, version)
    made.unpersist()
    with pytest.raises(Py4JJavaError) as raised:
        made.rows().collect()
    message = summarize(raised.value)
    assert "RowsChangedError: rows of counts-0 in partition " in message
    assert "belongs into the records, before the state" in message


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

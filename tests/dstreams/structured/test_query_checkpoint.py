"""The checkpoint of a query: small, without losing what a restart needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checkpoint import StoreCommit
from checkpoint.state_store import (
    EMPTY,
    LmdbBases,
    Reference,
    SnapshotRule,
    StateStore,
    StoreId,
    snapshot_if_due,
    stored_partition,
)
from dstreams.errors import RestartError
from dstreams.structured.logs import OffsetRecord, QueryCommit
from dstreams.structured.query_checkpoint import QueryCheckpoint

STORE = StoreId("query", "count", "default", 0, 1)


def opened(directory: Path) -> QueryCheckpoint:
    checkpoint = QueryCheckpoint(str(directory / "checkpoint"), "query", "run")
    checkpoint.claim()
    return checkpoint


class Batches:
    """Makes batches of one store, without Spark."""

    def __init__(self, directory: Path, retained: int, snapshot_every: int | None) -> None:
        self.checkpoint = opened(directory)
        self._retained = retained
        self._snapshot_every = snapshot_every
        self.bases = LmdbBases(
            self.checkpoint.files, str(directory / "local"), self.checkpoint.epoch
        )
        self.references = {-1: EMPTY}

    def run(self, number: int) -> None:
        before = self.references[number - 1]
        with StateStore(self.bases).writer(STORE, before) as writer:
            writer.put("batch", number)
            writer.put(number, number)
            committed = writer.commit()
        self.references[number] = committed.reference
        if self._snapshot_every and number % self._snapshot_every == 0:
            snapshot_if_due(self.bases, STORE, committed.reference, SnapshotRule(1))
        self.checkpoint.begin(OffsetRecord(number, 0, 0, 0, (number,)))
        store = StoreCommit("count", "default", "stable", (stored_partition(committed),))
        self.checkpoint.commit(QueryCommit(number, (store,)))
        self.checkpoint.clean(number, self._retained)

    def read(self, number: int, directory: Path) -> object:
        """Return what the state of a batch says its number is, on another host."""
        elsewhere = replace(self.bases, local_directory=str(directory / f"elsewhere{number}"))
        with StateStore(elsewhere).reader(STORE, self.references[number]) as reader:
            return reader.get("batch")


@pytest.mark.parametrize("snapshot_every", [None, 5])
def test_clean(tmp_path: Path, snapshot_every: int | None) -> None:
    """Old records go; all batches that are to be kept can be read by any host."""
    batches = Batches(tmp_path, 3, snapshot_every)
    for number in range(41):
        batches.run(number)
    checkpoint = batches.checkpoint
    assert checkpoint.offsets.ids() == [37, 38, 39, 40]
    for number in range(37, 41):
        assert batches.read(number, tmp_path) == number
    kept = checkpoint.commits.ids()
    assert kept[-4:] == [37, 38, 39, 40]
    if snapshot_every is None:
        assert kept[0] == 0  # the changes of all batches are needed while there is no snapshot
    else:
        assert kept[0] > 20
        changes = list((tmp_path / "checkpoint" / "stores").rglob("*.changes"))
        assert len(changes) < 25
    recovered = opened(tmp_path).recovered()
    assert recovered.committed is not None
    assert recovered.committed.batch_id == 40
    assert recovered.unfinished == ()


def test_nothing_is_cleaned_that_is_kept(tmp_path: Path) -> None:
    """Until there are more batches than are to be kept, nothing is deleted."""
    batches = Batches(tmp_path, 100, 1)
    for number in range(21):
        batches.run(number)
    assert batches.checkpoint.offsets.ids() == list(range(21))
    assert batches.checkpoint.commits.ids() == list(range(21))
    assert batches.read(0, tmp_path) == 0


def test_older_run_cleans_nothing(tmp_path: Path) -> None:
    """A run whose checkpoint was taken over neither begins, commits nor deletes."""
    batches = Batches(tmp_path, 3, None)
    batches.run(0)
    opened(tmp_path)
    for act in (
        lambda: batches.checkpoint.begin(OffsetRecord(1, 0, 0, 0, ())),
        lambda: batches.checkpoint.commit(QueryCommit(1)),
        lambda: batches.checkpoint.clean(10, 3),
    ):
        with pytest.raises(RestartError, match="another run of this query has taken"):
            act()


def test_temporary(tmp_path: Path) -> None:
    """A checkpoint without a location is gone with its run."""
    checkpoint = QueryCheckpoint(None, "query", "run")
    assert Path(checkpoint.location).is_dir()
    checkpoint.close()
    assert not Path(checkpoint.location).exists()


def test_reference_is_kept(tmp_path: Path) -> None:
    """A commit record names the exact content that a restart opens."""
    batches = Batches(tmp_path, 3, None)
    batches.run(0)
    commit = batches.checkpoint.commits.read(0)
    assert commit is not None
    (stored,) = commit.stores[0].partitions
    assert Reference(stored.version, stored.uid) == batches.references[0]

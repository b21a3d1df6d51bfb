"""The disk is full, or read-only, from a named step of a batch on: a clear end, and no loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark import SparkContext

from checkpoint import CheckpointError
from dstreams import BatchFailedError, StreamingContext
from dstreams.common import faults
from tests.recovery.application import OUTPUTS, define_streams
from tests.recovery.lives import Rows, entries, expected, last_id
from tests.support.full_disk import SmallDisk, small_disk

pytestmark = pytest.mark.spark

STEPS = (
    "plan.start",
    "begin.start",
    "begin.done",
    "job.submit",
    "state.start",
    "state.done",
    "out.start",
    "out.done",
    "commit.start",
    "commit.done",
    "clean.start",
    "clean.done",
    "rec.fence",
    "rec.load",
    "rec.replay",
)
USUAL = {("full", "commit.start")}
REMEDIES = {"full": "free space", "read-only": "mount that file system writable"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def define(sc: SparkContext, directory: str) -> StreamingContext:
    """The streams of the killed application, and one that is written to files."""
    ssc = StreamingContext(sc, 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    define_streams(ssc, str(Path(directory).parent), 1)  # the ledger is on another disk
    ssc.rateStream(4, uid="lines").map(lambda row: row[1]).saveAsTextFiles(
        f"{directory}/output/lines"
    )
    return ssc


def live(sc: SparkContext, directory: Path, batches: int) -> None:
    """Run batches, from where the last life ended."""
    setup = partial(define, sc, str(directory))
    ssc = StreamingContext.getOrCreate(f"{directory}/checkpoint", setup)
    try:
        for _ in range(batches):
            ssc.step()
    finally:
        ssc.stop(stopSparkContext=False)


def lines(directory: Path) -> list[Rows]:
    """What is in the directories of the files, batch by batch; each of them is complete."""
    found = []
    for target in sorted(directory.glob("output/lines-*")):
        assert (target / "_SUCCESS").exists()
        parts = [part.read_text().split() for part in target.glob("part-*")]
        found.append(sorted([int(line)] for part in parts for line in part))
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fault", "step"),
    [
        pytest.param(
            fault,
            step,
            marks=() if (fault, step) in USUAL else pytest.mark.slow,
            id=f"{fault}-{step}",
        )
        for fault in REMEDIES
        for step in STEPS
    ],
)
def test_a_disk_that_takes_nothing(
    sc: SparkContext, tmp_path: Path, disk: SmallDisk, fault: str, step: str
) -> None:
    """The stream stops with an error that says what to do; the next start has lost nothing.

    Nothing is in an output twice that knows its batches, and committed batches do not run again.
    """
    live(sc, disk.path, 3)
    done = last_id(disk.path)
    assert done == 2
    hit: list[str] = []

    def strike(name: str) -> None:
        if name == step and not hit:
            hit.append(name)
            disk.fill() if fault == "full" else disk.refuse_writes()

    end = faults.watch(strike)
    try:
        with pytest.raises((CheckpointError, BatchFailedError)) as failed:
            live(sc, disk.path, 4)
    finally:
        end()
        disk.recover()
    assert hit == [step]
    assert REMEDIES[fault] in str(failed.value)
    committed = last_id(disk.path)
    live(sc, disk.path, 3)
    last = last_id(disk.path)
    assert last == committed + 3
    seen = Counter((entry.output, entry.batch_id) for entry in entries(tmp_path))
    assert seen.keys() == {(output, number) for output in OUTPUTS for number in range(last + 1)}
    assert all(times == 1 for (_, number), times in seen.items() if number <= done)
    for entry in entries(tmp_path):
        assert entry.rows == expected(entry.output, entry.batch_id), entry
    assert lines(disk.path) == [
        [[value] for value in range(4 * number, 4 * number + 4)] for number in range(last + 1)
    ]

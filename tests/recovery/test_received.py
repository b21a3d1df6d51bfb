"""A receiver with a write-ahead log, and a driver that is killed with SIGKILL in its third batch.

The next driver is this process. What was received is in one batch, whatever had become of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from checkpoint import CommitLog, LocalFiles
from checkpoint.cli.main import main
from dstreams import StreamingContext
from tests.recovery.feeding import feed
from tests.recovery.lives import Entry, Rows, entries, last_id, run_program

pytestmark = pytest.mark.spark

STEPS = {  # at which the driver dies -> whether 99 has been received then
    "plan.start": False,
    "begin.start": False,
    "begin.done": False,
    "out.start": False,
    "out.done": True,
    "commit.start": True,
    "commit.done": True,
    "clean.done": True,
}


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    active = StreamingContext.getActive()
    if active is not None:
        active.stop(stopSparkContext=False)


def never() -> StreamingContext:
    raise AssertionError("the set-up function must not be called")


def next_life(sc: SparkContext, directory: Path) -> StreamingContext:
    return StreamingContext.getOrCreate(f"{directory}/checkpoint", never)


def rows_of(found: list[Entry], output: str) -> dict[int, Rows]:
    """What an output saw in each batch, which must be the same whenever it ran."""
    rows: dict[int, Rows] = {}
    for entry in found:
        if entry.output == output:
            assert rows.setdefault(entry.batch_id, entry.rows) == entry.rows
    return rows


def sums_of(numbers: list[int]) -> Rows:
    return [[key, sum(n for n in numbers if n % 2 == key)] for key in (0, 1)]


@pytest.mark.deep
@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=[] if step == "out.done" else pytest.mark.slow) for step in STEPS],
)
def test_each_received_record_is_read_once(sc: SparkContext, tmp_path: Path, step: str) -> None:
    """Blocks of the batch in flight in that batch again, those without a batch in the next one.

    So it stays when a rewind lets some batches run again: their blocks are still there.
    """
    run_program("received", tmp_path, "5", kill_at=f"{step}@3")
    ssc = next_life(sc, tmp_path)
    ssc.step(3 if step in ("commit.done", "clean.done") else 4)
    feed([70])
    ssc.step()
    ssc.stop(stopSparkContext=False)
    wanted: dict[int, Rows] = {0: [], **{n: [10 * n, 10 * n + 1] for n in (1, 2, 3)}}
    wanted |= {4: [99] if STEPS[step] else [], 5: [], 6: [], 7: [70]}
    assert rows_of(entries(tmp_path), "numbers") == wanted
    numbers = [number for rows in wanted.values() for number in rows]
    assert rows_of(entries(tmp_path), "sums")[7] == sums_of(numbers)

    before = len(entries(tmp_path))
    went_to = rewind_as_far_as_possible(tmp_path)
    ssc = next_life(sc, tmp_path)
    ssc.step(8 - went_to)
    ssc.stop(stopSparkContext=False)
    again = entries(tmp_path)[before:]
    later = {batch_id: rows for batch_id, rows in wanted.items() if batch_id > went_to}
    assert rows_of(again, "numbers") == {**later, 8: []}
    assert rows_of(again, "sums")[8] == sums_of(numbers)
    assert last_id(tmp_path) == 8


def rewind_as_far_as_possible(directory: Path) -> int:
    """Go back to the oldest batch that there is, by the tool; return its number."""
    checkpoint = f"{directory}/checkpoint"
    (stream,) = Path(checkpoint).glob("stream-*")
    oldest = next(iter(CommitLog(LocalFiles(str(stream))).records()))
    assert oldest.batch_id < 7
    assert main(["rewind", checkpoint, "--to", str(oldest.batch_time_ms)]) == 0
    assert main(["verify", checkpoint, "--json"]) == 0
    return oldest.batch_id


@pytest.mark.deep
def test_what_rewind_cannot_go_back_to(
    sc: SparkContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks are released with the records of their batches: a rewind goes to all that are left."""
    from tests.recovery.feeding import define  # noqa: PLC0415

    ssc = define(str(tmp_path), sc)
    ssc.step()
    for number in range(1, 15):
        feed([number])
        ssc.step()
    ssc.stop(stopSparkContext=False)
    checkpoint = f"{tmp_path}/checkpoint"
    (stream,) = Path(checkpoint).glob("stream-*")
    zero_ms = int(stream.name.split("-")[1])
    capsys.readouterr()
    ids = range(15)
    statuses = [
        main(["rewind", checkpoint, "--to", str(zero_ms + 1000 * (batch_id + 1)), "--dry-run"])
        for batch_id in ids
    ]
    capsys.readouterr()
    possible = [batch_id for batch_id, status in zip(ids, statuses, strict=True) if status == 0]
    assert len(list(stream.glob("received/*/*"))) < 14
    assert possible == list(range(possible[0], 15))
    assert 0 < possible[0] < 14
    assert main(["rewind", checkpoint, "--to", str(zero_ms + 1000 * (possible[0] + 1))]) == 0
    ssc = next_life(sc, tmp_path)
    ssc.step(14 - possible[0])
    ssc.stop(stopSparkContext=False)
    found = entries(tmp_path)
    assert rows_of(found, "numbers") == {0: [], **{n: [n] for n in range(1, 15)}}
    assert rows_of(found, "sums")[14] == sums_of(list(range(15)))

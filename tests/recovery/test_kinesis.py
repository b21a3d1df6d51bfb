"""Drivers that read Kinesis and are killed with SIGKILL, while shards are split and merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.lives import Rows, entries, last_begun_id, run_program
from tests.support.kinesis_server import KinesisServer, running_kinesis

pytestmark = pytest.mark.spark

STEPS = ("begin.done", "out.start", "out.done", "commit.start")
OTHERS = ("plan.start", "begin.start", "state.done", "commit.done", "clean.done", "rec.replay")
EACH = 40


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with running_kinesis() as server:
        yield server


@pytest.mark.deep
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(STEPS, id="four"),
        pytest.param((*OTHERS, *STEPS) * 2, id="twenty", marks=pytest.mark.slow),
    ],
)
def test_each_record_counts_once(
    kinesis: KinesisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...]
) -> None:
    """A batch that runs again has the records that it had; in all, none is lost, none doubled."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # for later runs than the first
        monkeypatch.setenv(name, "of-the-environment")
    stream = kinesis.create(shards=2)
    records = 0
    begun = -1
    for number, step in enumerate((*steps, "")):
        kinesis.put(stream, range(records, records + EACH))
        reshard(kinesis, stream, number)
        kinesis.put(stream, range(records + EACH, records + 2 * EACH))
        records += 2 * EACH
        at = step if step.startswith("rec.") or not step else f"{step}@{begun + 4}"
        seen = records + bool(step)  # it goes on until it is killed
        run_program("kinesis_sums", tmp_path, kinesis.url, stream, str(seen), kill_at=at)
        begun = last_begun_id(tmp_path)
    rows: dict[tuple[str, int], Rows] = {}
    for entry in entries(tmp_path):
        assert rows.setdefault((entry.output, entry.batch_id), entry.rows) == entry.rows
    numbers = [row for (output, _), batch in rows.items() if output == "numbers" for row in batch]
    assert sorted(int(str(number)) for number in numbers) == list(range(records))
    of_all = [[parity, sum(range(parity, records, 2))] for parity in (0, 1)]
    assert rows["sums", max(batch for output, batch in rows if output == "sums")] == of_all


def reshard(kinesis: KinesisServer, stream: str, number: int) -> None:
    """Split a shard, and merge the next time."""
    at = sorted(
        (shard for shard in kinesis.shards(stream) if shard.is_open),
        key=lambda shard: shard.starting_hash,
    )
    if number % 2 == 0:
        kinesis.split(stream, at[number % len(at)])
    else:
        kinesis.merge(stream, at[0], at[1])

"""Unfinished work after the last batch: lost records, and records that a later start reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dstreams.engine.batch import Batch
from dstreams.engine.engine import Engine, UnfinishedWork
from dstreams.graph.node import InputDStream
from dstreams.sources.source import PlannedInput


@dataclass(eq=False)
class Input:
    """An input stream, its source and its reader in one."""

    name: str
    waiting: int | None = 0
    not_replayable_reason: str | None = None
    restart_refusal: str | None = None
    source: Any = field(init=False)

    def __post_init__(self) -> None:
        self.source = self

    def waiting_records(self) -> int | None:
        return self.waiting


def engine(*inputs: Input) -> Engine:
    made = Engine.__new__(Engine)
    made.plan = cast(Any, SimpleNamespace(inputs=inputs))
    made.readers = cast(Any, {each: each for each in inputs})
    made.planner = cast(Any, SimpleNamespace(names={each: each.name for each in inputs}))
    return made


def batches(stream: Input, *records: int | None) -> Sequence[Batch]:
    node = cast("InputDStream", stream)
    return [
        Batch(number, time_ms, {node: PlannedInput(time_ms, None, 1, records=count)}, time_ms)
        for number, count in enumerate(records)
        for time_ms in [1000 * (number + 1)]
    ]


def test_nothing_is_left() -> None:
    """A stream that has run everything it received has no unfinished work."""
    left = engine(Input("socket")).unfinished_work([], resumable=True)
    assert not left
    assert left == UnfinishedWork()


@pytest.mark.parametrize(
    ("stream", "resumable", "is_lost"),
    [
        (Input("files"), True, False),
        (Input("files"), False, True),
        (Input("socket", not_replayable_reason="cannot replay"), True, True),
        (Input("queue", restart_refusal="gone with the driver"), True, True),
    ],
)
def test_what_a_later_start_has_is_not_lost(stream: Input, resumable: bool, is_lost: bool) -> None:
    """It reads the records of sources that can be read again, if there is a checkpoint."""
    left = engine(stream).unfinished_work(batches(stream, 3, 0, 4), resumable=resumable)
    assert left.batch_times_ms == (1000, 2000, 3000)
    assert (left.lost, left.again)[is_lost] == {}
    assert (left.again, left.lost)[is_lost] == {stream.name: 7}


def test_an_input_that_cannot_go_on_takes_the_others_with_it() -> None:
    """No later start is possible then."""
    files, queue = Input("files"), Input("queue", restart_refusal="gone with the driver")
    left = engine(files, queue).unfinished_work(batches(files, 3), resumable=True)
    assert left == UnfinishedWork((1000,), {"files": 3}, {})


def test_records_of_no_batch_count() -> None:
    """They were received too, and are all that is left if every batch has run."""
    socket, log = Input("socket", 5, not_replayable_reason="cannot replay"), Input("log", 2)
    left = engine(socket, log).unfinished_work(batches(socket, 1), resumable=True)
    assert left == UnfinishedWork((1000,), {"socket": 6}, {"log": 2})
    assert engine(log).unfinished_work([], resumable=True) == UnfinishedWork((), {}, {"log": 2})


@pytest.mark.parametrize(("waiting", "counts"), [(None, (1,)), (0, (1, None))])
def test_records_that_nobody_has_counted(waiting: int | None, counts: tuple[int | None]) -> None:
    """Unknown numbers are not guessed."""
    stream = Input("receiver", waiting, not_replayable_reason="cannot replay")
    left = engine(stream).unfinished_work(batches(stream, *counts), resumable=True)
    assert left.lost == {"receiver": None}


def test_the_message_names_all() -> None:
    """Batches by the first and last time, records by input, and whether they are lost."""
    left = UnfinishedWork((1000, 2000, 3000), {"socket": 6, "receiver": None}, {"files": 2})
    assert str(left) == (
        "3 batches did not run to their end, from 1000 ms (1970-01-01 00:00:01) to 3000 ms "
        "(1970-01-01 00:00:03); lost: 6 records of socket, records of receiver that were not "
        "counted; run again by the next start: 2 records of files"
    )
    assert str(UnfinishedWork((1000,))) == (
        "the batch at 1000 ms (1970-01-01 00:00:01) did not run to its end"
    )

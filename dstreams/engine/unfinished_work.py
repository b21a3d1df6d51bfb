"""What a stop has cut off: batches that did not run to their end, and records without a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

from dstreams.common.durations import batch_datetime
from dstreams.engine.batch import Batch
from dstreams.engine.engine import Engine
from dstreams.graph.input import InputDStream
from dstreams.sources.source import loss_with_driver

Records = Mapping[str, "int | None"]
"""How many records of each input, by its name; None where they were not counted."""


@dataclass(frozen=True)
class CutOff:
    """What was left when no batch would run any more.

    Args:
        batch_times_ms: times of the batches that were planned and did not run to their end.
        lost: records of them, and of no batch, that no later run has.
        again: records that the next start from the checkpoint has again.
    """

    batch_times_ms: tuple[int, ...] = ()
    lost: Records = field(default_factory=dict)
    again: Records = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.batch_times_ms or self.lost or self.again)

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        times = [f"{time_ms} ms ({batch_datetime(time_ms)})" for time_ms in self.batch_times_ms]
        if len(times) == 1:
            yield f"the batch at {times[0]} did not run to its end"
        elif times:
            yield f"{len(times)} batches did not run to their end, from {times[0]} to {times[-1]}"
        if self.lost:
            yield f"lost: {_described(self.lost)}"
        if self.again:
            yield f"run again by the next start: {_described(self.again)}"


def cut_off(engine: Engine, batches: Sequence[Batch], *, goes_on: bool) -> CutOff:
    """Say what an engine leaves behind that runs no batch any more and is not closed yet.

    *batches* were planned and did not run to their end; *goes_on* says whether a later start finds
    the graph in a checkpoint.
    """
    goes_on = goes_on and all(
        stream.source.restart_refusal is None for stream in engine.plan.inputs
    )
    lost: dict[str, int | None] = {}
    again: dict[str, int | None] = {}
    for stream, counts in _left(engine, batches).items():
        records = None if None in counts else sum(filter(None, counts))
        loss = loss_with_driver(stream.source, engine.readers[stream])
        is_lost = not goes_on or loss is not None
        if records != 0:
            (lost if is_lost else again)[engine.planner.names[stream]] = records
    return CutOff(tuple(batch.time_ms for batch in batches), lost, again)


def _left(engine: Engine, batches: Iterable[Batch]) -> dict[InputDStream, list[int | None]]:
    """Return the numbers of records that batches have of each input, and that wait for one."""
    left: dict[InputDStream, list[int | None]] = {stream: [] for stream in engine.readers}
    for batch in batches:
        for stream, planned in batch.inputs.items():
            left[stream].append(planned.records)
    for stream, reader in engine.readers.items():
        left[stream].append(reader.waiting_records())
    return left


def _described(records: Records) -> str:
    return ", ".join(starmap(_counted, records.items()))


def _counted(name: str, count: int | None) -> str:
    if count is None:
        return f"records of {name} that were not counted"
    return f"{count} record{'' if count == 1 else 's'} of {name}"

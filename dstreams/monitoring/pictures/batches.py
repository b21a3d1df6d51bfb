"""Batches that ran: one by one, and in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from dstreams.monitoring.pictures.markup import frame, heading, note, plain
from dstreams.monitoring.pictures.tables import (
    MOST_ROWS,
    Cell,
    count,
    counted,
    duration,
    size,
    table_html,
    table_text,
)

_OUTCOMES = {"succeeded": "good", "failed": "bad", "cancelled": "bad", "empty": "idle"}
_NUMBERS = ("batch", "records", "waited", "took", "outputs", "keys")
_LINE = 160
_MOST_FAILURES = 3


class DrawnBatch(Protocol):
    """What is drawn of a batch: :class:`dstreams.monitoring.events.BatchInfo` has it."""

    @property
    def batch_id(self) -> int: ...
    @property
    def batch_time_ms(self) -> int: ...
    @property
    def records(self) -> Mapping[str, int | None]: ...
    @property
    def scheduling_delay_ms(self) -> int: ...
    @property
    def processing_delay_ms(self) -> int: ...
    @property
    def outputs(self) -> Sequence[Any]: ...
    @property
    def outcome(self) -> str: ...
    @property
    def failure(self) -> str | None: ...
    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def states(self) -> Sequence[Any]: ...
    @property
    def durations_ms(self) -> Mapping[str, int]: ...


def local_time(time_ms: int) -> str:
    """Return a time for people: local, without a zone, as ``pprint`` has it.

    >>> local_time(0)[4], len(local_time(1500)), local_time(10**18)
    ('-', 23, '1000000000000000000 ms')
    """
    try:
        moment = datetime.fromtimestamp(time_ms / 1000)  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):  # a clock of a test, say
        return f"{time_ms} ms"
    return moment.isoformat(" ", "milliseconds" if time_ms % 1000 else "seconds")


def batch_text(batch: DrawnBatch) -> str:
    """Return a batch in one line."""
    records = _records(batch)
    facts = [batch.outcome, f"{records} record{'' if records == '1' else 's'}"]
    facts.append(duration(batch.processing_delay_ms))
    if batch.failure is not None:
        facts.append(batch.failure)
    facts_text = plain(", ".join(facts), _LINE)
    return f"<batch {batch.batch_id} at {local_time(batch.batch_time_ms)}: {facts_text}>"


def batch_html(batch: DrawnBatch) -> str:
    """Return a batch with its inputs, outputs, states and phases."""
    parts = [
        heading(
            f"Batch {batch.batch_id}",
            local_time(batch.batch_time_ms),
            batch.outcome,
            f"waited {duration(batch.scheduling_delay_ms)}",
            f"took {duration(batch.processing_delay_ms)}",
        )
    ]
    if batch.failure is not None:
        parts.append(note(batch.failure))
    if batch.inputs:
        rows = [[each.name, count(each.records), plain(each.description)] for each in batch.inputs]
        parts.append(table_html(("input", "records", "read"), rows, ("records",)))
    if batch.outputs:
        parts.append(table_html(("output", "took", "outcome"), _outputs(batch), ("took",)))
    if batch.states:
        parts.append(states_html(batch.states))
    if batch.durations_ms:
        parts.append(_phases(batch.durations_ms))
    return frame(*parts)


def _outputs(batch: DrawnBatch) -> list[list[Cell | str]]:
    longest = max((each.completed_ms - each.started_ms for each in batch.outputs), default=0)
    return [
        [
            each.name,
            Cell(duration(took), took / longest if longest else 0.0),
            Cell("succeeded", accent="good")
            if each.failure is None
            else Cell(plain(each.failure, 120), accent="bad"),
        ]
        for each in batch.outputs
        for took in [each.completed_ms - each.started_ms]
    ]


def states_html(states: Iterable[Any]) -> str:
    """Return what operations with stored state did in a batch."""
    titles = ("state", "keys", "updated", "removed", "memory", "partitions")
    rows = [
        [
            f"{each.name} ({each.uid})",
            count(each.metrics.get("numTotalStateRows")),
            count(each.metrics.get("numUpdatedStateRows")),
            count(each.metrics.get("numRemovedStateRows")),
            size(each.metrics.get("stateMemory")),
            str(each.partitions),
        ]
        for each in states
    ]
    return table_html(titles, rows, titles[1:])


def states_text(states: Iterable[Any]) -> str:
    """Return the same, a line for each operation."""
    return "\n".join(
        f"<state {plain(each.uid)}: {count(each.metrics.get('numTotalStateRows'))} keys, "
        f"{count(each.metrics.get('numUpdatedStateRows'))} updated, "
        f"{size(each.metrics.get('stateMemory'))}, {each.partitions} partitions>"
        for each in states
    )


def _phases(durations_ms: Mapping[str, int]) -> str:
    longest = max(durations_ms.values()) or 1
    rows: list[list[Cell | str]] = [
        [name, Cell(duration(took), took / longest)]
        for name, took in durations_ms.items()
        if name != "triggerExecution"
    ]
    return table_html(("phase", "took"), rows, ("took",))


def batches_text(batches: Sequence[DrawnBatch]) -> str:
    """Return a table of batches, of many the newest."""
    if not batches:
        return "no batches"
    shown = batches[-MOST_ROWS:]
    table = table_text(_titles(shown), _rows(shown), _NUMBERS)
    left = len(batches) - len(shown)
    head = f"{left} earlier batches, then\n" if left else ""
    failures = [plain(each.failure, _LINE) for each in _failed(shown)[-_MOST_FAILURES:]]
    return "\n".join([head + table, *failures])


def batches_html(batches: Sequence[DrawnBatch]) -> str:
    """Return a table of batches with small bars, of many the newest."""
    if not batches:
        return frame(heading("no batches"))
    return frame(heading(counted(len(batches), "batch", "batches")), batch_rows_html(batches))


def batch_rows_html(batches: Sequence[DrawnBatch]) -> str:
    """Return the table alone, and what failed batches failed with."""
    shown = batches[-MOST_ROWS:]
    parts = []
    if len(shown) < len(batches):
        parts.append(f'<div style="opacity:.65">the newest {len(shown)}</div>')
    parts.append(table_html(_titles(shown), _rows(shown), _NUMBERS))
    parts += [note(each.failure) for each in _failed(shown)[-_MOST_FAILURES:]]
    return "".join(parts)


def _titles(batches: Sequence[DrawnBatch]) -> list[str]:
    keys = ["keys"] if any(batch.states for batch in batches) else []
    return ["batch", "time", "records", "waited", "took", "outputs", *keys, "outcome"]


def _rows(batches: Sequence[DrawnBatch]) -> list[list[Cell | str]]:
    most = max((sum(_known(batch)) for batch in batches), default=0)
    longest = max((batch.processing_delay_ms for batch in batches), default=0)
    has_keys = any(batch.states for batch in batches)
    rows: list[list[Cell | str]] = []
    for batch in batches:
        took = batch.processing_delay_ms
        failed = sum(each.failure is not None for each in batch.outputs)
        keys = [each.metrics.get("numTotalStateRows") or 0 for each in batch.states]
        rows.append(
            [
                str(batch.batch_id),
                local_time(batch.batch_time_ms),
                Cell(_records(batch), sum(_known(batch)) / most if most else 0.0),
                duration(batch.scheduling_delay_ms),
                Cell(duration(took), took / longest if longest else 0.0, "output"),
                f"{len(batch.outputs) - failed}/{len(batch.outputs)}",
                *([count(sum(keys))] if has_keys else []),
                Cell(batch.outcome, accent=_OUTCOMES.get(batch.outcome, "idle")),
            ]
        )
    return rows


def _known(batch: DrawnBatch) -> list[int]:
    return [number for number in batch.records.values() if number is not None]


def _records(batch: DrawnBatch) -> str:
    """Return how many records a batch had; with a sign where an input could not say."""
    if any(number is None for number in batch.records.values()):
        return f"{count(sum(_known(batch)))}+?" if _known(batch) else "?"
    return count(sum(_known(batch)))


def _failed(batches: Iterable[DrawnBatch]) -> list[DrawnBatch]:
    return [batch for batch in batches if batch.failure is not None]


# Progress, by the names of Spark ----------------------------------------------------------------

_PROGRESS_NUMBERS = ("batch", "input rows", "rows/s", "took", "state rows")


def progress_html(progress: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the progress of triggers, of many the newest."""
    if not progress:
        return frame(heading("no progress yet"))
    shown = progress[-MOST_ROWS:]
    facts = [plain(shown[-1].get("name") or shown[-1].get("id") or "")]
    table = table_html(_progress_titles(shown), _progress_rows(shown), _PROGRESS_NUMBERS)
    return frame(heading(counted(len(progress), "batch", "batches"), *facts), table)


def progress_text(progress: Sequence[Mapping[str, Any]]) -> str:
    """Return the same in lines."""
    if not progress:
        return "no progress yet"
    shown = progress[-MOST_ROWS:]
    left = len(progress) - len(shown)
    head = f"{left} earlier batches, then\n" if left else ""
    return head + table_text(_progress_titles(shown), _progress_rows(shown), _PROGRESS_NUMBERS)


def _progress_titles(progress: Sequence[Mapping[str, Any]]) -> list[str]:
    titles = ["batch", "time", "input rows", "rows/s", "took", "state rows"]
    return [*titles, "watermark"] if any(map(_watermark, progress)) else titles


def _progress_rows(progress: Sequence[Mapping[str, Any]]) -> list[list[Cell | str]]:
    most = max(int(each.get("numInputRows") or 0) for each in progress)
    longest = max(int(each.get("batchDuration") or 0) for each in progress)
    has_watermark = any(map(_watermark, progress))
    rows: list[list[Cell | str]] = []
    for each in progress:
        read, took = int(each.get("numInputRows") or 0), int(each.get("batchDuration") or 0)
        states = each.get("stateOperators") or []
        rows.append(
            [
                str(each.get("batchId")),
                str(each.get("timestamp")),
                Cell(count(read), read / most if most else 0.0),
                f"{each.get('processedRowsPerSecond') or 0:,.1f}",
                Cell(duration(took), took / longest if longest else 0.0, "output"),
                count(sum(state.get("numRowsTotal") or 0 for state in states)) if states else "-",
                *([_watermark(each)] if has_watermark else []),
            ]
        )
    return rows


def _watermark(progress: Mapping[str, Any]) -> str:
    return str((progress.get("eventTime") or {}).get("watermark", ""))

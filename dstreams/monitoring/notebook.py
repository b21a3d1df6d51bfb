"""Renderers of statuses, batches, states and progress as text, and as HTML for notebooks.

They render plain values and run nothing. Everything is escaped, and the HTML takes its colours from
the page around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from dstreams.monitoring.display import (
    RENDERERS,
    Renderer,
    format_count,
    format_duration,
    format_size,
    format_time,
    one_line,
)
from dstreams.monitoring.events import BatchInfo, BatchInfos, StateOperatorInfo
from dstreams.monitoring.graph_drawing import ACCENTS, graph_svg, has_uid
from dstreams.monitoring.progress import RecentProgress
from dstreams.monitoring.status import (
    CheckpointStatus,
    GraphNode,
    StateStatus,
    StreamStatus,
)

_COLOURS = {**ACCENTS, "good": "#16a34a", "bad": "#dc2626", "idle": "#94a3b8"}
_OUTCOMES = {"succeeded": "good", "failed": "bad", "cancelled": "bad", "empty": "idle"}
_PHASES = {"active": "good", "failed": "bad"}
_MOST_ROWS = 20
_MOST_PARTITIONS = 64
_MOST_FAILURES = 3
_LINE = 160
_CELL_WIDTH = 40
_FAINT = "opacity:.65"
_CELL_STYLE = (
    "padding:.2em .9em .2em 0;white-space:nowrap;border:0;"
    "border-bottom:1px solid rgba(128,128,128,.25);background:transparent"
)


@dataclass(frozen=True)
class Cell:
    """A table cell: with a bar if *share* is given, or with a dot of the colour *accent*."""

    content: str
    share: float | None = None
    accent: str | None = None

    def html(self) -> str:
        """Return the content with its bar or dot."""
        if self.share is not None:
            return _text(self.content) + _bar(self.share, self.accent or "input")
        return (_dot(self.accent) if self.accent else "") + _text(self.content)


Row: TypeAlias = Sequence[object]
"""Cells, and values that are shown as text."""


@dataclass(frozen=True)
class Table:
    """A table that renders as text and as HTML; the columns *numbers* are aligned to the right."""

    titles: Sequence[str]
    rows: Sequence[Row]
    numbers: Sequence[str] = ()

    def html(self) -> str:
        """Return the table with bars and dots."""
        sides = ["right" if title in self.numbers else "left" for title in self.titles]
        head = "".join(
            f'<th scope="col" style="text-align:{side};{_CELL_STYLE};{_FAINT};font-weight:600">'
            f"{_text(title)}</th>"
            for title, side in zip(self.titles, sides, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{side};{_CELL_STYLE}">{_cell(cell).html()}</td>'
                for cell, side in zip(row, sides, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        return (
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;'
            'margin:.3em 0 .7em;font-size:13px;color:inherit;background:transparent">'
            f'<thead><tr style="background:transparent">{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )

    def text(self) -> str:
        """Return the table as lines.

        >>> print(Table(["name", "n"], [["a", "1"], ["bc", "20"]], ["n"]).text())
        name   n
        a      1
        bc    20
        """
        rows = ([one_line(_cell(cell).content, _CELL_WIDTH) for cell in row] for row in self.rows)
        lines = [list(self.titles), *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if title in self.numbers else cell.ljust(width)
                for cell, width, title in zip(line, widths, self.titles, strict=True)
            ).rstrip()
            for line in lines
        )


def _cell(value: object) -> Cell:
    return value if isinstance(value, Cell) else Cell(str(value))


def _text(value: object, most: int = 200) -> str:
    return escape(one_line(value, most))


def _bar(share: float, accent: str) -> str:
    width = round(100 * min(max(share, 0.0), 1.0))
    return (
        '<span style="display:inline-block;width:4em;height:.55em;vertical-align:baseline;'
        'background:rgba(128,128,128,.18);border-radius:2px;margin-left:.5em">'
        f'<span style="display:block;width:{width}%;height:100%;border-radius:2px;'
        f'background:{_COLOURS[accent]}"></span></span>'
    )


def _dot(accent: str) -> str:
    return (
        '<span style="display:inline-block;width:.6em;height:.6em;border-radius:50%;'
        f'margin-right:.4em;background:{_COLOURS[accent]}"></span>'
    )


def frame(*parts: str) -> str:
    """Return parts as one block that scrolls if the page is narrower."""
    return (
        '<div style="font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto">'
        f"{''.join(parts)}</div>"
    )


def heading(title: str, *facts: object) -> str:
    """Return a line with a title and some facts."""
    rest = "".join(f'<span style="{_FAINT}"> · {_text(fact)}</span>' for fact in facts if fact)
    return f'<div style="margin:.2em 0 .5em"><b>{_text(title)}</b>{rest}</div>'


def _note(message: object, accent: str = "bad") -> str:
    return (
        f'<div style="border-left:3px solid {_COLOURS[accent]};padding:.1em .6em;margin:.4em 0;'
        f'max-width:60em;overflow-wrap:anywhere">{_text(message, 600)}</div>'
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# Batches


def _records(batch: BatchInfo) -> str:
    """Return the number of records, with a question mark if an input could not count them."""
    known = [number for number in batch.records.values() if number is not None]
    if len(known) == len(batch.records):
        return format_count(sum(known))
    return f"{format_count(sum(known))}+?" if known else "?"


def _known_records(batch: BatchInfo) -> int:
    return sum(number or 0 for number in batch.records.values())


def batch_text(batch: BatchInfo) -> str:
    """Return a batch as one line."""
    records = _records(batch)
    facts = [batch.outcome, f"{records} record{'' if records == '1' else 's'}"]
    facts.append(format_duration(batch.processing_delay_ms))
    facts += [] if batch.failure is None else [batch.failure]
    line = one_line(", ".join(facts), _LINE)
    return f"<batch {batch.batch_id} at {format_time(batch.batch_time_ms)}: {line}>"


def batch_html(batch: BatchInfo) -> str:
    """Return a batch with its inputs, outputs, states and phases."""
    parts = [
        heading(
            f"Batch {batch.batch_id}",
            format_time(batch.batch_time_ms),
            batch.outcome,
            f"waited {format_duration(batch.scheduling_delay_ms)}",
            f"took {format_duration(batch.processing_delay_ms)}",
        )
    ]
    if batch.failure is not None:
        parts.append(_note(batch.failure))
    if batch.inputs:
        rows = [
            [given.name, format_count(given.records), one_line(given.description)]
            for given in batch.inputs
        ]
        parts.append(Table(("input", "records", "read"), rows, ("records",)).html())
    if batch.outputs:
        parts.append(_outputs(batch))
    if batch.states:
        parts.append(_operators(batch.states).html())
    if batch.durations_ms:
        longest = max(batch.durations_ms.values())
        phases = [
            [name, Cell(format_duration(took), _share(took, longest))]
            for name, took in batch.durations_ms.items()
            if name != "triggerExecution"
        ]
        parts.append(Table(("phase", "took"), phases, ("took",)).html())
    return frame(*parts)


def _outputs(batch: BatchInfo) -> str:
    took = [output.completed_ms - output.started_ms for output in batch.outputs]
    rows = [
        [
            output.name,
            Cell(format_duration(ms), _share(ms, max(took))),
            Cell("succeeded", accent="good")
            if output.failure is None
            else Cell(one_line(output.failure, 120), accent="bad"),
        ]
        for output, ms in zip(batch.outputs, took, strict=True)
    ]
    return Table(("output", "took", "outcome"), rows, ("took",)).html()


def _operators(states: Iterable[StateOperatorInfo]) -> Table:
    titles = ("state", "keys", "updated", "removed", "memory", "partitions")
    rows = [
        [
            f"{state.name} ({state.uid})",
            format_count(state.metrics.get("numTotalStateRows")),
            format_count(state.metrics.get("numUpdatedStateRows")),
            format_count(state.metrics.get("numRemovedStateRows")),
            format_size(state.metrics.get("stateMemory")),
            state.partitions,
        ]
        for state in states
    ]
    return Table(titles, rows, titles[1:])


def _operator_text(state: StateOperatorInfo) -> str:
    metrics = state.metrics
    return (
        f"<state {one_line(state.uid)}: {format_count(metrics.get('numTotalStateRows'))} keys, "
        f"{format_count(metrics.get('numUpdatedStateRows'))} updated, "
        f"{format_size(metrics.get('stateMemory'))}, {state.partitions} partitions>"
    )


def _batches(batches: Sequence[BatchInfo]) -> Table:
    most = max(map(_known_records, batches), default=0)
    longest = max((batch.processing_delay_ms for batch in batches), default=0)
    keys = ["keys"] if any(batch.states for batch in batches) else []
    rows: list[Row] = []
    for batch in batches:
        took = batch.processing_delay_ms
        good = sum(output.failure is None for output in batch.outputs)
        total = sum(state.metrics.get("numTotalStateRows") or 0 for state in batch.states)
        rows.append(
            [
                batch.batch_id,
                format_time(batch.batch_time_ms),
                Cell(_records(batch), _share(_known_records(batch), most)),
                format_duration(batch.scheduling_delay_ms),
                Cell(format_duration(took), _share(took, longest), "output"),
                f"{good}/{len(batch.outputs)}",
                *([format_count(total)] if keys else []),
                Cell(batch.outcome, accent=_OUTCOMES.get(batch.outcome, "idle")),
            ]
        )
    titles = ("batch", "time", "records", "waited", "took", "outputs", *keys, "outcome")
    return Table(titles, rows, ("batch", "records", "waited", "took", "outputs", "keys"))


def _failures(batches: Iterable[BatchInfo]) -> list[str]:
    failures = [batch.failure for batch in batches if batch.failure is not None]
    return failures[-_MOST_FAILURES:]


def _newest(rows: Sequence[Any], table: Table) -> str:
    left = len(rows) - len(table.rows)
    return (f"{left} earlier batches, then\n" if left else "") + table.text()


def batches_text(batches: Sequence[BatchInfo]) -> str:
    """Return a table of the newest batches."""
    if not batches:
        return "no batches"
    shown = batches[-_MOST_ROWS:]
    failures = (one_line(failure, _LINE) for failure in _failures(shown))
    return "\n".join([_newest(batches, _batches(shown)), *failures])


def batches_html(batches: Sequence[BatchInfo]) -> str:
    """Return a table of the newest batches with a heading."""
    if not batches:
        return frame(heading("no batches"))
    return frame(heading(format_count(len(batches), "batch", "batches")), _batches_html(batches))


def _batches_html(batches: Sequence[BatchInfo]) -> str:
    shown = batches[-_MOST_ROWS:]
    is_cut = len(shown) < len(batches)
    more = f'<div style="{_FAINT}">the newest {len(shown)}</div>' if is_cut else ""
    return more + _batches(shown).html() + "".join(map(_note, _failures(shown)))


# Progress


def _progress(progress: Sequence[Mapping[str, Any]]) -> Table:
    most = max(int(each.get("numInputRows") or 0) for each in progress)
    longest = max(int(each.get("batchDuration") or 0) for each in progress)
    watermark = ["watermark"] if any(map(_watermark, progress)) else []
    rows: list[Row] = []
    for each in progress:
        read, took = int(each.get("numInputRows") or 0), int(each.get("batchDuration") or 0)
        states = each.get("stateOperators") or []
        keys = sum(state.get("numRowsTotal") or 0 for state in states)
        rows.append(
            [
                each.get("batchId"),
                each.get("timestamp"),
                Cell(format_count(read), _share(read, most)),
                f"{each.get('processedRowsPerSecond') or 0:,.1f}",
                Cell(format_duration(took), _share(took, longest), "output"),
                format_count(keys) if states else "-",
                *([_watermark(each)] if watermark else []),
            ]
        )
    titles = ("batch", "time", "input rows", "rows/s", "took", "state rows", *watermark)
    return Table(titles, rows, ("batch", "input rows", "rows/s", "took", "state rows"))


def _watermark(progress: Mapping[str, Any]) -> str:
    return str((progress.get("eventTime") or {}).get("watermark", ""))


def progress_text(progress: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the progress of the newest batches."""
    if not progress:
        return "no progress yet"
    return _newest(progress, _progress(progress[-_MOST_ROWS:]))


def progress_html(progress: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the progress of the newest batches with a heading."""
    if not progress:
        return frame(heading("no progress yet"))
    name = progress[-1].get("name") or progress[-1].get("id") or ""
    title = heading(format_count(len(progress), "batch", "batches"), one_line(name))
    return frame(title, _progress(progress[-_MOST_ROWS:]).html())


# States


def state_text(state: StateStatus) -> str:
    """Return the durable state of an operator as one line."""
    return (
        f"<state {one_line(state.uid)} after {format_time(state.batch_time_ms)}: "
        f"{format_count(state.keys)} keys in {len(state.partitions)} partitions, "
        f"{format_size(state.written_bytes)} written>"
    )


def state_html(state: StateStatus) -> str:
    """Return the durable state of an operator by partition."""
    parts = state.partitions[:_MOST_PARTITIONS]
    most_keys = max((part.keys for part in parts), default=0)
    most_bytes = max((part.written_bytes for part in parts), default=0)
    rows = [
        [
            part.partition,
            Cell(format_count(part.keys), _share(part.keys, most_keys), "state"),
            Cell(format_size(part.written_bytes), _share(part.written_bytes, most_bytes), "state"),
        ]
        for part in parts
    ]
    titles = ("partition", "keys", "written")
    left = len(state.partitions) - len(parts)
    title = heading(
        state.operation,
        f"uid {state.uid}",
        f"{format_count(state.keys)} keys",
        f"durable as of {format_time(state.batch_time_ms)}",
        "" if state.memory_bytes is None else f"{format_size(state.memory_bytes)} in memory",
    )
    more = _note(f"{left} more partitions", "idle") if left else ""
    return frame(title, Table(titles, rows, titles).html(), more)


def _states(states: Iterable[StateStatus]) -> Table:
    titles = ("state", "keys", "largest partition", "written", "durable as of")
    rows: list[Row] = []
    for state in states:
        largest = max((part.keys for part in state.partitions), default=0)
        share = _share(largest, state.keys)  # short if keys are spread evenly
        rows.append(
            [
                state.uid,
                format_count(state.keys),
                Cell(format_count(largest), share, "state"),
                format_size(state.written_bytes),
                format_time(state.batch_time_ms),
            ]
        )
    return Table(titles, rows, titles[1:4])


# Statuses


def status_text(status: StreamStatus) -> str:
    """Return a status as a few lines, without the graph."""
    lines = [" · ".join(one_line(fact) for fact in (_title(status), *_facts(status)) if fact)]
    if status.failure is not None:
        lines.append(one_line(status.failure))
    if status.states:
        lines.append(_states(status.states).text())
    if status.recent:
        lines.append(batches_text(status.recent[-5:]))
    return "\n".join(lines)


def status_html(
    status: StreamStatus,
    problem: str | None = None,
    page: str | None = None,
) -> str:
    """Return a status with its graph, state, checkpoint and newest batches.

    Args:
        status: the status.
        problem: why it cannot run as it is defined.
        page: address of the live page.
    """
    parts = [heading(_title(status), *_facts(status))]
    if page is not None:
        parts.append(f'<div><a href="{_text(page)}" target="_blank">live page</a></div>')
    if status.failure is not None:
        parts.append(_note(status.failure))
    if problem is not None:
        parts.append(_note(f"cannot run yet: {problem}", "state"))
    parts.append(graph_svg(status.graph))
    if status.states:
        parts.append(_states(status.states).html())
    if status.checkpoint is not None:
        parts.append(_checkpoint(status.checkpoint))
    if status.recent:
        parts.append(_batches_html(status.recent))
    return frame(*parts)


def stream_html(nodes: Sequence[GraphNode], number: int, state: StateStatus | None) -> str:
    """Return one node of a graph with its ancestors, and its durable state."""
    wanted, parents = {number}, {node.number: node.parents for node in nodes}
    for node in reversed(nodes):
        if node.number in wanted:
            wanted.update(parents[node.number])
    shown = [node for node in nodes if node.number in wanted]
    (marked,) = (node for node in nodes if node.number == number)
    title = heading(marked.operation, f"uid {marked.uid}" if has_uid(marked) else "")
    states = "" if state is None else _states([state]).html()
    return frame(title, graph_svg(shown, number), states)


def graph_html(title: str, nodes: Sequence[GraphNode]) -> str:
    """Return a graph with a heading."""
    return frame(heading(title), graph_svg(nodes))


def queries_html(title: str, statuses: Sequence[StreamStatus]) -> str:
    """Return a table of queries, one per row."""
    if not statuses:
        return frame(heading(title, "no queries"))
    titles = ("query", "phase", "batches", "input rows", "last batch", "message")
    rows = [
        [
            status.name,
            Cell(status.phase, accent=_PHASES.get(status.phase, "idle")),
            format_count(sum(status.totals.batches.values())),
            format_count(sum(status.totals.records.values())),
            format_duration(status.recent[-1].processing_delay_ms) if status.recent else "-",
            one_line(status.failure or status.message, 80),
        ]
        for status in statuses
    ]
    return frame(heading(title), Table(titles, rows, titles[2:5]).html())


def _checkpoint(checkpoint: CheckpointStatus) -> str:
    # Only the name of the directory: notebooks are stored and sent to others.
    facts = [one_line(checkpoint.url).rpartition("/")[2], f"epoch {checkpoint.epoch}"]
    if checkpoint.committed_batch_id is None:
        facts.append("no batch committed yet")
    else:
        facts.append(f"batch {checkpoint.committed_batch_id} committed")
    if checkpoint.recomputed is not None:
        first, last = checkpoint.recomputed
        which = f"batch {first}" if first == last else f"batches {first} to {last}"
        facts.append(f"a restart recomputes the state of {which}")
    if checkpoint.rerun:
        which = ", ".join(map(str, checkpoint.rerun))
        facts.append(f"a restart reruns batch {which}")
    return (
        f'<div style="margin:.4em 0;overflow-wrap:anywhere"><span style="{_FAINT}">checkpoint'
        f"</span> {_text(' · '.join(facts), 500)}</div>"
    )


def _title(status: StreamStatus) -> str:
    return f"{'Stream' if status.kind == 'stream' else 'Query'} {status.name}".strip()


def _facts(status: StreamStatus) -> list[str]:
    totals = status.totals
    every = "" if status.batch_ms is None else f"a batch every {format_duration(status.batch_ms)}"
    batches = format_count(sum(totals.batches.values()), "batch", "batches")
    records = format_count(sum(totals.records.values()), "record", "records")
    return [status.phase, every, f"{batches}, {records}" if totals.batches else "", status.message]


RENDERERS[BatchInfo] = Renderer(batch_text, batch_html)
RENDERERS[BatchInfos] = Renderer(batches_text, batches_html)
RENDERERS[RecentProgress] = Renderer(progress_text, progress_html)
RENDERERS[StateOperatorInfo] = Renderer(
    _operator_text, lambda state: frame(_operators([state]).html())
)
RENDERERS[StateStatus] = Renderer(state_text, state_html)
RENDERERS[StreamStatus] = Renderer(status_text, status_html)

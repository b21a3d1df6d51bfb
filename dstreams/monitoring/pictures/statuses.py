"""How a stream or query does, in one picture: its graph, state, checkpoint and newest batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dstreams.monitoring.pictures.batches import (
    DrawnBatch,
    batch_rows_html,
    batches_text,
    local_time,
)
from dstreams.monitoring.pictures.graphs import DrawnNode, graph_svg, has_uid
from dstreams.monitoring.pictures.markup import frame, heading, note, plain, text
from dstreams.monitoring.pictures.tables import (
    Cell,
    count,
    counted,
    duration,
    size,
    table_html,
    table_text,
)

_MOST_PARTITIONS = 64


class DrawnState(Protocol):
    """What is drawn of durable state: :class:`dstreams.monitoring.status.StateStatus` has it."""

    @property
    def uid(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def batch_time_ms(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def written_bytes(self) -> int: ...
    @property
    def partitions(self) -> Sequence[Any]: ...


class DrawnStatus(Protocol):
    """The drawn part of a stream status (:class:`dstreams.monitoring.status.StreamStatus`)."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def batch_ms(self) -> int | None: ...
    @property
    def totals(self) -> Any: ...
    @property
    def recent(self) -> Sequence[DrawnBatch]: ...
    @property
    def graph(self) -> Sequence[DrawnNode]: ...
    @property
    def states(self) -> Sequence[DrawnState]: ...
    @property
    def checkpoint(self) -> Any: ...
    @property
    def failure(self) -> str | None: ...


def status_html(
    status: DrawnStatus,
    problem: str | None = None,
    marked: int | None = None,
    page: str | None = None,
) -> str:
    """Return how a stream or query does; *problem* says why it cannot run as it is defined.

    *page* is the address where it is shown live.
    """
    parts = [heading(_title(status), *_facts(status))]
    if page is not None:
        parts.append(f'<div><a href="{text(page)}" target="_blank">live page</a></div>')
    if status.failure is not None:
        parts.append(note(status.failure))
    if problem is not None:
        parts.append(note(f"cannot run yet: {problem}", "state"))
    parts.append(graph_svg(status.graph, marked))
    if status.states:
        parts.append(_states(status.states))
    if status.checkpoint is not None:
        parts.append(_checkpoint(status.checkpoint))
    if status.recent:
        parts.append(batch_rows_html(status.recent))
    return frame(*parts)


def status_text(status: DrawnStatus) -> str:
    """Return the same in lines, without the graph."""
    lines = [" · ".join(plain(fact) for fact in (_title(status), *_facts(status)) if fact)]
    if status.failure is not None:
        lines.append(plain(status.failure))
    if status.states:
        lines.append(_states_text(status.states))
    if status.recent:
        lines.append(batches_text(status.recent[-5:]))
    return "\n".join(lines)


def stream_html(nodes: Sequence[DrawnNode], number: int, state: DrawnState | None) -> str:
    """Return one stream of a graph: all that it is made of, and its durable state."""
    wanted, parents = {number}, {node.number: node.parents for node in nodes}
    for node in reversed(nodes):
        if node.number in wanted:
            wanted.update(parents[node.number])
    shown = [node for node in nodes if node.number in wanted]
    (marked,) = (node for node in nodes if node.number == number)
    parts = [heading(marked.operation, f"uid {marked.uid}" if has_uid(marked) else "")]
    parts.append(graph_svg(shown, number))
    if state is not None:
        parts.append(_states([state]))
    return frame(*parts)


def state_html(state: DrawnState) -> str:
    """Return the durable state of an operator, partition by partition."""
    parts = state.partitions[:_MOST_PARTITIONS]
    most_keys = max((part.keys for part in parts), default=0) or 1
    most_bytes = max((part.written_bytes for part in parts), default=0) or 1
    rows: list[list[Cell | str]] = [
        [
            str(part.partition),
            Cell(count(part.keys), part.keys / most_keys, "state"),
            Cell(size(part.written_bytes), part.written_bytes / most_bytes, "state"),
        ]
        for part in parts
    ]
    titles = ("partition", "keys", "written")
    left = len(state.partitions) - len(parts)
    more = note(f"{left} more partitions", "idle") if left else ""
    return frame(_state_heading(state), table_html(titles, rows, titles), more)


def state_text(state: DrawnState) -> str:
    """Return the same in one line."""
    return (
        f"<state {plain(state.uid)} after {local_time(state.batch_time_ms)}: {count(state.keys)} "
        f"keys in {len(state.partitions)} partitions, {size(state.written_bytes)} written>"
    )


def _state_heading(state: DrawnState) -> str:
    return heading(
        state.operation,
        f"uid {state.uid}",
        f"{count(state.keys)} keys",
        f"durable as of {local_time(state.batch_time_ms)}",
        "" if state.memory_bytes is None else f"{size(state.memory_bytes)} in memory",
    )


def _states(states: Iterable[DrawnState]) -> str:
    titles = ("state", "keys", "largest partition", "written", "durable as of")
    return table_html(titles, list(map(_state_row, states)), titles[1:4])


def _states_text(states: Iterable[DrawnState]) -> str:
    titles = ("state", "keys", "largest partition", "written", "durable as of")
    return table_text(titles, list(map(_state_row, states)), titles[1:4])


def _state_row(state: DrawnState) -> list[Cell | str]:
    largest = max((part.keys for part in state.partitions), default=0)
    return [
        state.uid,
        count(state.keys),
        # Of a state that is spread evenly the bar is short: a full one holds all keys.
        Cell(count(largest), largest / state.keys if state.keys else 0.0, "state"),
        size(state.written_bytes),
        local_time(state.batch_time_ms),
    ]


def _checkpoint(checkpoint: Any) -> str:
    # The directory of the stream alone: pictures are kept in notebooks, and sent to others.
    facts = [plain(checkpoint.url).rpartition("/")[2], f"epoch {checkpoint.epoch}"]
    if checkpoint.committed_batch_id is None:
        facts.append("no batch is committed yet")
    else:
        facts.append(f"batch {checkpoint.committed_batch_id} is committed")
    if checkpoint.recomputed is not None:
        first, last = checkpoint.recomputed
        which = f"batch {first}" if first == last else f"batches {first} to {last}"
        facts.append(f"a restart computes the state of {which} again")
    if checkpoint.rerun:
        which = ", ".join(map(str, checkpoint.rerun))
        facts.append(f"a restart runs batch {which} again")
    return (
        '<div style="margin:.4em 0;overflow-wrap:anywhere"><span style="opacity:.65">checkpoint'
        f"</span> {text(' · '.join(facts), 500)}</div>"
    )


def _title(status: DrawnStatus) -> str:
    return f"{'Stream' if status.kind == 'stream' else 'Query'} {status.name}".strip()


def _facts(status: DrawnStatus) -> list[str]:
    totals = status.totals
    every = "" if status.batch_ms is None else f"a batch each {duration(status.batch_ms)}"
    batches = counted(_sum(totals.batches), "batch", "batches")
    ran = f"{batches}, {counted(_sum(totals.records), 'record', 'records')}"
    return [status.phase, every, ran if totals.batches else "", status.message]


def _sum(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def queries_html(title: str, statuses: Sequence[DrawnStatus]) -> str:
    """Return a table of queries, one a row."""
    if not statuses:
        return frame(heading(title, "no queries"))
    titles = ("query", "phase", "batches", "input rows", "last batch", "message")
    return frame(heading(title), table_html(titles, _query_rows(statuses), titles[2:5]))


def queries_text(title: str, statuses: Sequence[DrawnStatus]) -> str:
    """Return the same in lines."""
    if not statuses:
        return f"{title}: no queries"
    titles = ("query", "phase", "batches", "input rows", "last batch", "message")
    return f"{title}\n{table_text(titles, _query_rows(statuses), titles[2:5])}"


def _query_rows(statuses: Iterable[DrawnStatus]) -> list[list[Cell | str]]:
    accents = {"active": "good", "failed": "bad"}
    return [
        [
            status.name,
            Cell(status.phase, accent=accents.get(status.phase, "idle")),
            count(_sum(status.totals.batches)),
            count(_sum(status.totals.records)),
            duration(status.recent[-1].processing_delay_ms) if status.recent else "-",
            plain(status.failure or status.message, 80),
        ]
        for status in statuses
    ]

"""Checks whether changed code can resume the state and offsets of an earlier graph.

Operators with state and inputs are matched by uid. State that would be lost, state of another kind
and ambiguous uids are refused, all in one report, before anything is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from checkpoint import RecoveryPlan
from dstreams.common.durations import batch_datetime
from dstreams.errors import RestartError
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.sources.file_listing import before_wildcards, has_wildcards
from dstreams.state.stored_columns import added_columns, changed_columns, changed_variables

_Described = Mapping[str, Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestoreReport:
    """The effects of restoring a checkpoint into new code, or the reasons why it is refused.

    Args:
        stream_id: id of the stream; None if there is nothing to restore.
        last_batch_ms: time of the last committed batch, None if no batch was committed.
        in_flight_ms: times of the batches that had begun and run again.
        kept: uids of operators and inputs that continue.
        added: uids of operators and inputs that start empty.
        removed: uids whose state or offsets are dropped.
        repartitioned: uid and numbers of partitions, before and now, of state that is moved.
        notes: other changes.
        refusals: reasons for refusal; empty if the state can be restored.
        adopted: what is taken over from a checkpoint of Spark, a line for each state and input.
    """

    stream_id: str | None
    last_batch_ms: int | None = None
    in_flight_ms: tuple[int, ...] = ()
    kept: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    repartitioned: tuple[tuple[str, int, int], ...] = ()
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.stream_id is None:
            return "nothing to restore: the streams start empty"
        lines = [f"stream {self.stream_id}"]
        if self.last_batch_ms is not None:
            time = batch_datetime(self.last_batch_ms)
            lines.append(f"resumes after the batch at {self.last_batch_ms} ms ({time})")
        if self.in_flight_ms:
            lines.append(f"runs {len(self.in_flight_ms)} batches in flight again")
        for name in ("kept", "added", "removed"):
            uids = getattr(self, name)
            if uids:
                lines.append(f"{name}: {', '.join(uids)}")
        lines += [
            f"moved: {uid}, {was} to {now} partitions" for uid, was, now in self.repartitioned
        ]
        lines += [f"adopted: {line}" for line in self.adopted]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"refused: {refusal}" for refusal in self.refusals]
        return "\n".join(lines)


def require_fit(report: RestoreReport, url: str) -> None:
    """Raise RestartError for the refusals of *report* and log its notes."""
    if report.refusals:
        raise RestartError(
            f"{url} cannot be restored into these streams; nothing was changed:"
            + "".join(f"\n- {refusal}" for refusal in report.refusals)
        )
    logger.info("%s", report)
    for note in report.notes:
        logger.warning("%s", note)


def compare_graphs(
    before: _Described,
    now: _Described,
    plan: Plan,
    recovery: RecoveryPlan,
    stream_id: str,
    allow_removed: Collection[str] = (),
) -> RestoreReport:
    """Compare an earlier graph with that of *plan*; *allow_removed* uids may be dropped."""
    old, new = _parts(before), _parts(now)
    allowed = set(allow_removed)
    kept = [uid for uid in new if uid in old and uid not in allowed]
    moved = [
        (uid, old[uid]["partitions"], new[uid]["partitions"])
        for uid in kept
        if old[uid].get("state") != "none" and old[uid].get("partitions") != new[uid]["partitions"]
    ]
    notes = [
        f"input {uid} was {old[uid]['source']}, and is {new[uid]['source']} now"
        for uid in kept
        if "source" in old[uid] and old[uid]["source"] != new[uid].get("source")
    ]
    grown = {uid: added_columns(old[uid].get("columns"), new[uid].get("columns")) for uid in kept}
    notes += [
        f"the columns {', '.join(names)} are added to the state of {uid}"
        for uid, names in grown.items()
        if names
    ]
    new_windows = added_uids(before, now, plan).difference(new)
    notes += [
        f"{node.operation} is new ({planned.uid}): it may lack some or all of the earlier batches"
        for node, planned in plan.nodes.items()
        if planned.uid in new_windows
    ]
    return RestoreReport(
        stream_id,
        recovery.last_ms,
        tuple(begun.batch_time_ms for begun in recovery.in_flight),
        tuple(kept),
        tuple(uid for uid in new if uid not in old),
        tuple(uid for uid in old if uid in allowed),
        tuple(moved),
        tuple(notes),
        tuple(_refusals(before, now, plan, allowed)),
    )


def added_uids(before: _Described, now: _Described, plan: Plan) -> frozenset[str]:
    """Return the uids of states and windows that the earlier graph did not have.

    State is matched by uid. Windows are matched by the operations that they consist of, so that a
    window inserted before them does not matter, and otherwise by position.
    """
    were, are = _origins(before), _origins(now)
    by_place = {uid for uid, origin in were.items() if origin not in are.values()}
    known = {operator["uid"] for operator in before["operators"]}

    def is_new(node: Node, uid: str) -> bool:
        if node.is_stateful:
            return uid not in known
        return node.rereads_parents and not (are[uid] in were.values() or uid in by_place)

    uids = {node: planned.uid for node, planned in plan.nodes.items()}
    return frozenset(uid for node, uid in uids.items() if is_new(node, uid))


def _origins(described: _Described) -> dict[str, str]:
    """Return a hash of the operations that each stateless operator consists of, by uid."""
    origins: dict[str, str] = {}
    named = set(_parts(described))
    for part in described["operators"]:  # parents come first
        if part["uid"] not in named:
            parents = [origins.get(parent, parent) for parent in part["parents"]]
            made_of = (_kind(part), part["window_ms"], part["slide_ms"], parents)
            # Hashed, because the number of paths to an input can grow exponentially.
            origins[part["uid"]] = sha256(repr(made_of).encode()).hexdigest()
    return origins


def _parts(described: _Described) -> dict[str, dict[str, Any]]:
    """Return the inputs and the operators with state, by uid."""
    inputs = {part["uid"]: {"partitions": None, **part} for part in described["inputs"]}
    stateful = {
        part["uid"]: dict(part) for part in described["operators"] if part["state"] != "none"
    }
    return {**inputs, **stateful}


def _kind(part: _Described) -> str:
    operation: str = part["operation"]
    return operation.split(" ", 1)[0]


def _refusals(
    before: _Described, now: _Described, plan: Plan, allowed: Collection[str]
) -> Iterator[str]:
    old, new = _parts(before), _parts(now)
    if before["batch_ms"] != now["batch_ms"]:
        yield (
            f"batches were {before['batch_ms']} ms apart, and are {now['batch_ms']} ms now; the "
            f"progress of {', '.join(map(repr, [*old])) or 'the inputs'} is counted in batches, so "
            "keep the batch duration, or start in another directory"
        )
    for stream in plan.inputs:
        refusal = stream.source.restart_refusal
        if refusal is not None:
            yield f"{stream.operation} cannot be resumed: {refusal}"
    for uid, part in old.items():
        yield from _refusals_of_part(uid, part, new.get(uid), may_go=uid in allowed)
    yield from _ambiguous(old, new, allowed)


def _refusals_of_part(
    uid: str, before: _Described, now: _Described | None, *, may_go: bool
) -> Iterator[str]:
    """Yield why the operator that has a uid now cannot continue that of the earlier graph."""
    if now is None:
        if not may_go:
            yield (
                f"nothing has the uid {uid!r} of {before['operation']}; give it to the operator "
                f"that continues (uid={uid!r}), or drop it (allowRemoved=[{uid!r}])"
            )
    elif may_go:
        yield f"{uid!r} may be removed, but {now['operation']} has that uid; give another"
    elif _kind(before) != _kind(now):
        yield (
            f"the state of {uid!r} was made by {before['operation']}, and cannot be that of "
            f"{now['operation']}; give another uid"
        )
    elif before.get("slide_ms") != now.get("slide_ms"):
        yield (
            f"{uid!r} had an RDD every {before['slide_ms']} ms, and has one every "
            f"{now['slide_ms']} ms now; keep the slide, or give another uid"
        )
    elif _is_elsewhere(before, now):
        yield (
            f"input {uid!r} has read {before['place']}, and would read {now['place']} now: files "
            "are identified by their paths, so the same files would count again; keep the path (a "
            "mount or a link will do), or start with a new input: give it another uid=, and drop "
            f"the progress of this one (allowRemoved=[{uid!r}])"
        )
    elif _differs(before, now, "window_ms"):
        yield (
            f"{uid!r} was over a window of {before['window_ms']} ms, and is over one of "
            f"{now['window_ms']} ms now, which cannot be computed from its state; keep the window, "
            "or give another uid"
        )
    else:
        yield from _changed_form(uid, before, now)


def _differs(before: _Described, now: _Described, fact: str) -> bool:
    """Return whether both have *fact*, with different values."""
    return None not in (before.get(fact), now.get(fact)) and before[fact] != now[fact]


def _is_elsewhere(before: _Described, now: _Described) -> bool:
    """Return whether the same files may be read again under other paths.

    They are not if a pattern or a URL was replaced by a pattern that matches more.
    """
    if not _differs(before, now, "place"):
        return False
    was, place = before["place"], now["place"]
    is_listed_alike = has_wildcards(place) and (has_wildcards(was) or not was.startswith("/"))
    return not (is_listed_alike and was.startswith(before_wildcards(place)))


def _ambiguous(
    old: Mapping[str, _Described], new: Mapping[str, _Described], allowed: Collection[str]
) -> Iterator[str]:
    """Yield the kinds of operators that are matched by position, and whose number has changed."""
    for kind in sorted({_kind(part) for part in new.values()}):
        by_place = [
            uid for uid, part in new.items() if _kind(part) == kind and not part["is_chosen"]
        ]
        chosen = {uid for uid, part in new.items() if part["is_chosen"]}
        left = [
            uid
            for uid, part in old.items()
            if _kind(part) == kind and not part["is_chosen"] and uid not in {*chosen, *allowed}
        ]
        if left and by_place and len(left) != len(by_place):
            places = ", ".join(new[uid]["operation"] for uid in by_place)
            yield (
                f"there were {len(left)} {kind} without a uid, and are {len(by_place)} now "
                f"({places}), so they cannot be matched by position; give a uid= to each, from "
                f"the old ones: {', '.join(left)}"
            )


def _changed_form(uid: str, before: _Described, now: _Described) -> Iterator[str]:
    """Yield why stored columns or state variables cannot be those of the operator now."""
    columns, columns_now = before.get("columns"), now.get("columns")
    start_empty = f"give another uid=, and drop this state (allowRemoved=[{uid!r}])"
    if columns is not None and columns_now is not None:
        state, where = f"the state of {uid!r}", now["operation"]
        yield from changed_columns(state, columns, columns_now, start_empty, where)
    elif columns is not columns_now:
        was, is_now = ("pairs", "blocks") if columns is None else ("blocks", "pairs")
        yield (
            f"the state of {uid!r} is kept in {was}, and {now['operation']} keeps it in {is_now}; "
            f"{start_empty}"
        )
    yield from changed_variables(uid, before, now)

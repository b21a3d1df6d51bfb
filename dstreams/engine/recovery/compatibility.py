"""Whether a graph that new code has built can go on with the state and progress of an earlier one.

Operators with state and inputs are matched by their uids. What cannot match is refused, by name and
all of it at once, before anything is touched: state that would be lost, state of another kind, and
names that may mean another operator than before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from checkpoint import RecoveryPlan
from dstreams.common.durations import batch_datetime
from dstreams.engine.recovery.state_columns import added_columns, refused_columns
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.sources.file_listing import before_wildcards, has_wildcards

_Described = Mapping[str, Any]


@dataclass(frozen=True)
class RestoreReport:
    """What restoring a checkpoint into new code would do, or why it cannot.

    Args:
        stream_id: id of the stream; None when there is nothing to restore, and all begins anew.
        last_batch_ms: time of the last committed batch, None when there was none.
        in_flight_ms: times of the batches that were begun and run again.
        kept: uids of operators and inputs that go on.
        added: uids of operators and inputs that begin empty.
        removed: uids whose state or progress is left behind.
        repartitioned: uid and numbers of partitions, before and now, of state that is moved.
        notes: what has changed otherwise.
        refusals: why it cannot be done; empty when it can.
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

    def __str__(self) -> str:
        if self.stream_id is None:
            return "nothing to restore: the streams begin anew"
        lines = [f"stream {self.stream_id}"]
        if self.last_batch_ms is not None:
            time = batch_datetime(self.last_batch_ms)
            lines.append(f"goes on after the batch at {self.last_batch_ms} ms ({time})")
        if self.in_flight_ms:
            lines.append(f"runs {len(self.in_flight_ms)} batches in flight again")
        for name in ("kept", "added", "removed"):
            uids = getattr(self, name)
            if uids:
                lines.append(f"{name}: {', '.join(uids)}")
        lines += [
            f"moved: {uid}, {was} to {now} partitions" for uid, was, now in self.repartitioned
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"refused: {refusal}" for refusal in self.refusals]
        return "\n".join(lines)


def compare_graphs(
    before: _Described,
    now: _Described,
    plan: Plan,
    recovery: RecoveryPlan,
    stream_id: str,
    allow_removed: Collection[str] = (),
) -> RestoreReport:
    """Say what becomes of the state of a graph in another one, by the descriptions of both.

    *plan* is the other graph; of *allow_removed*, by uid, state or progress may be left behind.
    """
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
        f"the state of {uid} gets the columns {', '.join(names)}"
        for uid, names in grown.items()
        if names
    ]
    anew = begins_anew(before, now, plan)
    notes += [
        f"{node.operation} is new ({planned.uid}): of earlier batches it may lack some, or all"
        for node, planned in plan.nodes.items()
        if planned.uid in anew and planned.uid not in new
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


def begins_anew(before: _Described, now: _Described, plan: Plan) -> frozenset[str]:
    """Return the uids of streams that look at their past and have none in a checkpoint.

    State is found by its uid. Windows, which have none to keep, are found by what they are made of,
    so that another one in front of them takes no past away, and then by their place.
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
    """Say what each operator without state is made of: operations, down to states and inputs."""
    origins: dict[str, str] = {}
    named = set(_parts(described))
    for part in described["operators"]:  # parents come first
        if part["uid"] not in named:
            parents = [origins.get(parent, parent) for parent in part["parents"]]
            made_of = (_kind(part), part["window_ms"], part["slide_ms"], parents)
            # Short, however many ways lead to an input.
            origins[part["uid"]] = sha256(repr(made_of).encode()).hexdigest()
    return origins


def _parts(described: _Described) -> dict[str, dict[str, Any]]:
    """Return what has a name that matters: inputs, and operators with state."""
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
            "keep the batch duration, or begin anew in another directory"
        )
    for stream in plan.inputs:
        refusal = stream.source.restart_refusal
        if refusal is not None:
            yield f"{stream.operation} cannot go on after a restart: {refusal}"
    for uid, part in old.items():
        yield from _refusals_of_part(uid, part, new.get(uid), may_go=uid in allowed)
    yield from _ambiguous(old, new, allowed)


def _refusals_of_part(
    uid: str, before: _Described, now: _Described | None, *, may_go: bool
) -> Iterator[str]:
    """Yield why what had a uid cannot go on as what has it now, if there is a reason."""
    if now is None:
        if not may_go:
            yield (
                f"nothing has the uid {uid!r} of {before['operation']}; give it to what goes on "
                f"with its state (uid={uid!r}), or let it be removed (allowRemoved=[{uid!r}])"
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
            f"input {uid!r} has read {before['place']}, and is to read {now['place']} now: files "
            "are known by their paths, so those that are there as well would count again; keep the "
            "path (a mount or a link there will do), or begin with a new input: give it another "
            f"uid=, and let the progress of this one go (allowRemoved=[{uid!r}])"
        )
    elif _differs(before, now, "window_ms"):
        yield (
            f"{uid!r} was over a window of {before['window_ms']} ms, and is over one of "
            f"{now['window_ms']} ms now, which cannot be made from its state; keep the window, or "
            "give another uid"
        )
    else:
        yield from refused_columns(uid, now["operation"], before.get("columns"), now.get("columns"))


def _differs(before: _Described, now: _Described, fact: str) -> bool:
    """Whether both say *fact*, and not the same."""
    return None not in (before.get(fact), now.get(fact)) and before[fact] != now[fact]


def _is_elsewhere(before: _Described, now: _Described) -> bool:
    """Whether files that were read may come again, under other paths.

    They do not where a pattern stands for more than a pattern, or a URL, did before.
    """
    if not _differs(before, now, "place"):
        return False
    was, place = before["place"], now["place"]
    is_listed_alike = has_wildcards(place) and (has_wildcards(was) or not was.startswith("/"))
    return not (is_listed_alike and was.startswith(before_wildcards(place)))


def _ambiguous(
    old: Mapping[str, _Described], new: Mapping[str, _Described], allowed: Collection[str]
) -> Iterator[str]:
    """Yield where a place among others names a part, and there are not as many as before."""
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
                f"({places}), so their places do not tell which has the state of which; give a "
                f"uid= to each, the old ones being {', '.join(left)}"
            )

"""``list`` and ``show``: which streams there are, and what is known of one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from checkpoint.cli.common import (
    CommandResult,
    Commands,
    add_json,
    add_location,
    is_stream,
    open_location,
    open_stream_at,
    size,
)
from checkpoint.cli.screen import Section, on_screen
from checkpoint.cli.times import iso, moment
from checkpoint.errors import CheckpointError
from checkpoint.log.batch_records import INPUTS_NEEDED_AFTER, CommitLog, CommitRecord
from checkpoint.log.fencing import (
    CLAIM,
    EPOCH_PREFIX,
    TAKEOVER,
    claimed_epochs,
    epochs_with,
    is_released,
    read_claim,
    read_takeover,
)
from checkpoint.log.graph_record import read_newest_graph
from checkpoint.log.inputs import files_in, read_inputs
from checkpoint.log.lineage import Lineage, read_lineage
from checkpoint.log.recovery import RecoveryPlan, list_claimed, list_streams, read_plan, stream_url
from checkpoint.storage.files import Files
from checkpoint.storage.signing import signing_facts


def add_list(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "list",
        help="the streams of a checkpoint",
        description="Lists the streams of a checkpoint, each with its last batch and its driver.",
        examples=["/data/app"],
    )
    parser.add_argument("url", metavar="CHECKPOINT", help="path or URL of the checkpoint")
    add_json(parser)
    parser.set_defaults(run=_list)


def add_show(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "show",
        help="graph, operators, sizes and progress of a stream",
        description="Shows what a stream is, how far it is, and what a restart would begin with.",
        examples=["/data/app", "/data/app --all"],
    )
    add_location(parser)
    parser.add_argument("--all", action="store_true", help="all of it, not what fits a screen")
    add_json(parser)
    parser.set_defaults(run=_show)


def _list(options: argparse.Namespace) -> CommandResult:
    files = open_location(options.url)
    streams: list[dict[str, Any]] = []
    if is_stream(files):
        streams.append(_stream_facts(files, options.url, _began_ms(files)))
    generated = {stream.stream_id: stream.zero_ms for stream in list_streams(files)}
    for directory in (*generated, *(d for d in list_claimed(files) if d not in generated)):
        inside = open_location(stream_url(options.url, directory))
        zero_ms = generated[directory] if directory in generated else _began_ms(inside)
        streams.append(_stream_facts(inside, directory, zero_ms))
    lines = [
        f"{facts['stream']}: began {moment(facts['zero_ms'])}, last batch {moment(facts['last'])}, "
        f"{facts['epochs']} start{'' if facts['epochs'] == 1 else 's'}, {facts['driver']}"
        for facts in streams
    ]
    return CommandResult({"streams": streams}, lines or [f"{options.url} has no streams"])


def _began_ms(files: Files) -> int | None:
    """Return when the oldest driver took over that is still known."""
    with suppress(CheckpointError, FileNotFoundError):
        for epoch in claimed_epochs(files):
            return read_claim(files, epoch).driver.started_ms
    return None


def _stream_facts(files: Files, stream_id: str, zero_ms: int | None) -> dict[str, object]:
    epochs = claimed_epochs(files)
    times = CommitLog(files).times()
    return {
        "stream": stream_id,
        "zero_ms": zero_ms,
        "last": times[-1] if times else None,
        "epochs": epochs[-1] if epochs else 0,
        "driver": _driver(files, epochs),
    }


def _driver(files: Files, epochs: list[int]) -> str:
    if not epochs:
        return "no driver"
    if is_released(files, epochs[-1]):
        return "stopped"
    try:
        driver = read_claim(files, epochs[-1]).driver
    except (CheckpointError, FileNotFoundError) as error:
        return f"driver unknown: {error}"
    is_running = driver.is_running()
    state = {True: "running", False: "died", None: "may be running"}[is_running]
    return f"{driver} {state}"


def _show(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    plan = read_plan(files)
    failed = _failed_outputs(files)
    needed_no_more = list(_files_needed_no_more(files, plan))
    data = {
        "url": files.url,
        "stream": plan.stream_id,
        **signing_facts(files),
        "driver": _driver(files, claimed_epochs(files)),
        "epochs": list(_epochs(files, read_lineage(files))),
        "last_batch": _last(plan.last),
        "inputs": _inputs(plan),
        "files_needed_no_more": {uid: paths for uid, _, paths in needed_no_more},
        "committed_ms": list(plan.committed_ms),
        "in_flight_ms": [begun.batch_time_ms for begun in plan.in_flight],
        "operators": list(_operators(plan)),
        "stores": list(_stores(plan)),
        "watermarks": dict(plan.watermarks),
        "failed_outputs": {str(ms): list(ids) for ms, ids in failed.items()},
        "graph": _graph(files),
        "files": _counts(files),
    }
    needed_after = {uid: upto_ms for uid, upto_ms, _ in needed_no_more}
    sections = list(_sections(data, plan, failed, needed_after))
    if options.all:
        return CommandResult(data, (line for section in sections for line in section.lines))
    return CommandResult(data, on_screen(sections))


def _epochs(files: Files, lineage: Lineage) -> Iterator[dict[str, object]]:
    names = files.list(EPOCH_PREFIX)
    for epoch in sorted({*epochs_with(names, CLAIM), *epochs_with(names, TAKEOVER)}):
        facts: dict[str, object] = {"epoch": epoch, "counts": epoch in lineage.epochs}
        try:
            facts |= _claimed_by(files, epoch)
            takeover = read_takeover(files, epoch)
            facts |= {
                "builds_on": takeover.parent,
                "upto_ms": takeover.upto_ms,
                "reason": takeover.reason,
            }
        except FileNotFoundError:
            facts["reason"] = "it never took over"
        except CheckpointError as error:
            facts["problem"] = str(error)
        yield facts


def _claimed_by(files: Files, epoch: int) -> dict[str, object]:
    """Return who has claimed an epoch; nothing where the claim was lost."""
    with suppress(FileNotFoundError):
        claim = read_claim(files, epoch)
        return {
            "host": claim.driver.host,
            "pid": claim.driver.pid,
            "started_ms": claim.driver.started_ms,
            "facts": dict(claim.driver.facts),
            "ended": is_released(files, epoch),
        }
    return {}


def _last(last: CommitRecord | None) -> dict[str, object] | None:
    if last is None:
        return None
    return {
        "batch_id": last.batch_id,
        "time_ms": last.batch_time_ms,
        "epoch": last.epoch,
        "writer": dict(last.writer),
        "facts": dict(last.facts),
    }


def _inputs(plan: RecoveryPlan) -> dict[str, object]:
    """Return what the newest batch that was begun says of each input."""
    newest = max(plan.begins, default=None)
    return {} if newest is None else dict(plan.begins[newest].inputs)


def _files_needed_no_more(files: Files, plan: RecoveryPlan) -> Iterator[tuple[str, int, list[str]]]:
    """Yield uid and files of each input of files: those that were read up to a batch time.

    No restart reads them again. A stream says up to when that is, and a file of it is named as long
    as the stream remembers it, which is as long as it is listed. The state of a query is durable in
    each commit, so that no batch of it up to the newest commit is read again.
    """
    last = plan.last
    if last is None:
        return
    said, inputs = last.facts.get(INPUTS_NEEDED_AFTER), read_inputs(files, plan)
    is_stream = isinstance(said, dict)
    uids = {uid for begun in plan.begins.values() for uid in begun.inputs}
    needed = said if isinstance(said, dict) else dict.fromkeys(sorted(uids), last.batch_time_ms)
    for uid, after_ms in needed.items():
        past = inputs.past(uid)
        paths = files_in(past.facts) if past.upto_ms <= after_ms else []
        for time_ms, facts in past.batches.items():
            paths += files_in(facts) if past.upto_ms < time_ms <= after_ms else ()
        if paths or is_stream:
            yield uid, after_ms, paths


def _operators(plan: RecoveryPlan) -> Iterator[dict[str, Any]]:
    for uid, newest in sorted(plan.snapshots.items()):
        refs = () if newest.snapshot is None else newest.snapshot.files
        yield {
            "operator": uid,
            "snapshot_ms": newest.time_ms,
            "partitions": len(refs),
            "partitioner": None if newest.snapshot is None else newest.snapshot.partitioner,
            "records": sum(ref.records for ref in refs),
            "bytes": sum(ref.size_bytes for ref in refs),
        }


def _stores(plan: RecoveryPlan) -> Iterator[dict[str, object]]:
    for commit in plan.stores:
        yield {
            "operator": commit.operator_uid,
            "store": commit.store,
            "partitions": len(commit.partitions),
            "partitioner": commit.partitioner,
            "version": max((stored.version_id.version for stored in commit.partitions), default=0),
            "keys": sum(stored.count for stored in commit.partitions),
            "changelog_bytes": sum(stored.size_bytes for stored in commit.partitions),
        }


def _graph(files: Files) -> dict[str, object] | None:
    graph = read_newest_graph(files)
    if graph is None:
        return None
    return {
        "time_ms": graph.time_ms,
        "epoch": graph.epoch,
        "payload_bytes": len(graph.payload),
        "description": dict(graph.description),
    }


def _counts(files: Files) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in files.list(""):
        kind = name.partition("/")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _failed_outputs(files: Files) -> dict[int, Sequence[str]]:
    """Return the outputs that batches were committed without, by the times of these."""
    log = CommitLog(files)
    failed: dict[int, Sequence[str]] = {}
    for record_id in log.ids():
        with suppress(CheckpointError, FileNotFoundError):  # which verify names
            failed[record_id.time_ms] = log.read_record(record_id).failed_outputs
    return {time_ms: ids for time_ms, ids in failed.items() if ids}


def _sections(
    data: Mapping[str, object],
    plan: RecoveryPlan,
    failed: Mapping[int, Sequence[str]],
    needed_after: Mapping[str, int],
) -> Iterator[Section]:
    last = plan.last
    flying = ", ".join(iso(begun.batch_time_ms) for begun in plan.in_flight)
    yield Section(
        "",
        [
            f"stream {plan.stream_id}, {data['driver']}, signed: {data['signed']}",
            f"in {data['url']}",
            "no batch is committed"
            if last is None
            else f"last batch: {last.batch_id} at {moment(last.batch_time_ms)}, epoch {last.epoch}",
            f"begun and not committed: {flying or 'none'}",
        ],
    )
    yield Section("failed outputs", list(_failed_lines(plan, failed)))
    read = _inputs(plan).items()
    yield Section(
        "inputs", [f"input {uid} of the newest batch: {json.dumps(said)}" for uid, said in read]
    )
    no_more = (
        f"input {uid}: no restart reads files up to {iso(after_ms)} again; --json names them"
        for uid, after_ms in needed_after.items()
    )
    yield Section("inputs", list(no_more))
    yield Section("operators", list(_operator_lines(plan)))
    watermarks = plan.watermarks.items()
    yield Section("watermarks", [f"watermark of {uid}: {moment(at)}" for uid, at in watermarks])
    if last is not None and last.facts:
        yield Section("", [f"the last batch says: {json.dumps(dict(last.facts))}"])
    counts = data["files"] if isinstance(data["files"], dict) else {}
    yield Section("", [f"files: {', '.join(f'{kind} {count}' for kind, count in counts.items())}"])
    yield Section("lines of the graph", list(_graph_lines(data)))


def _failed_lines(plan: RecoveryPlan, failed: Mapping[int, Sequence[str]]) -> Iterator[str]:
    for time_ms, ids in failed.items():
        before = max((one for one in plan.committed_ms if one < time_ms), default=None)
        again = "" if before is None else f"; again by: rewind --to {iso(before)}"
        yield f"failed at {iso(time_ms)}: {', '.join(ids)}{again}"


def _operator_lines(plan: RecoveryPlan) -> Iterator[str]:
    for operator in _operators(plan):
        if operator["partitions"]:
            yield (
                f"operator {operator['operator']}: {operator['records']} records in "
                f"{operator['partitions']} partitions, {size(operator['bytes'])}, snapshot of "
                f"{iso(operator['snapshot_ms'])}, by {operator['partitioner']}"
            )
        else:
            yield f"operator {operator['operator']}: no state at {iso(operator['snapshot_ms'])}"
    for store in _stores(plan):
        yield (
            f"operator {store['operator']}, store {store['store']}: version {store['version']}, "
            f"{store['keys']} keys, {store['partitions']} partitions by {store['partitioner']}"
        )


def _graph_lines(data: Mapping[str, object]) -> Iterator[str]:
    graph = data["graph"]
    if not isinstance(graph, dict):
        yield "no graph snapshot"
        return
    yield f"graph of {moment(graph['time_ms'])}, epoch {graph['epoch']}:"
    for key, value in graph["description"].items():
        if isinstance(value, (list, dict)) and value:
            yield f"  {key}:"
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from (f"    {name}: {item}" for name, item in items)
        else:
            yield f"  {key}: {value}"

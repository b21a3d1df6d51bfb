"""``list``, ``show`` and ``batches``: the streams of a checkpoint, and the contents of one."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from checkpoint.cli.common import (
    CommandResult,
    Commands,
    UsageError,
    add_json,
    add_location,
    add_progress,
    is_stream,
    iso,
    moment,
    open_location,
    open_stream_at,
    progress_of,
    size,
)
from checkpoint.cli.rewind import plan_rewind
from checkpoint.errors import CheckpointError
from checkpoint.log.batch_records import INPUTS_NEEDED_AFTER, BatchLog, CommitLog, CommitRecord
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
from checkpoint.log.input_offsets import INPUT_END, INPUT_FILES, INPUT_START, files_in, read_inputs
from checkpoint.log.lineage import Lineage, lineage_from, read_lineage
from checkpoint.log.record_files import RecordId
from checkpoint.log.recovery import (
    RecoveryPlan,
    began_ms,
    list_claimed,
    list_streams,
    read_plan,
    stream_url,
)
from checkpoint.storage.files import Files
from checkpoint.storage.trust import signing_facts

_COLUMNS, _LINES = 80, 24
_CUT = "..."
_NOTHING = ("null", "false", "[]", "{}")
"""Facts of nodes that are not shown."""


@dataclass(frozen=True)
class _Section:
    """Lines that belong together, with a name for them."""

    what: str
    lines: Sequence[str]


def _on_screen(sections: Sequence[_Section]) -> Iterator[str]:
    """Yield the lines of all *sections*, cut to fit the screen above the next prompt.

    The longest sections are cut most, and end with the number of omitted lines.
    """
    columns, lines = shutil.get_terminal_size((_COLUMNS, _LINES))
    shares = [len(section.lines) for section in sections]
    while sum(shares) > max(lines, _LINES) - 1 and max(shares) > 2:
        longest = max(shares)
        # The last of the longest: readers start at the top.
        shares[len(shares) - 1 - shares[::-1].index(longest)] -= 1
    for section, share in zip(sections, shares, strict=True):
        if share == len(section.lines):
            shown = section.lines
        else:
            left = len(section.lines) - share + 1
            shown = [*section.lines[: share - 1], f"{left} more {section.what}; --all shows them"]
        yield from (_cut(line, max(columns, _COLUMNS)) for line in shown)


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else f"{line[: columns - len(_CUT)]}{_CUT}"


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
        description="Shows a stream, its progress, and where a restart would begin.",
        examples=["/data/app", "/data/app --all"],
    )
    add_location(parser)
    parser.add_argument(
        "--all", action="store_true", help="everything, also if it exceeds a screen"
    )
    add_json(parser)
    parser.set_defaults(run=_show)


def _list(options: argparse.Namespace) -> CommandResult:
    files = open_location(options.url)
    streams: list[dict[str, Any]] = []
    if is_stream(files):
        streams.append(_stream_facts(files, options.url, _began_ms(files)))
    generated = {stream_id: began_ms(stream_id) for stream_id in list_streams(files)}
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
    """Return the start time of the oldest driver whose claim exists."""
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
    if options.all or not _is_terminal():
        return CommandResult(data, (line for section in sections for line in section.lines))
    return CommandResult(data, _on_screen(sections))


def _is_terminal() -> bool:
    return sys.stdout.isatty()


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
    """Return the driver that claimed an epoch; empty if the claim is missing."""
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
    """Return the offsets of each input in the newest begin record."""
    newest = max(plan.begins, default=None)
    return {} if newest is None else dict(plan.begins[newest].inputs)


def _files_needed_no_more(files: Files, plan: RecoveryPlan) -> Iterator[tuple[str, int, list[str]]]:
    """Yield uid, batch time and files of each file input: no restart reads these files again.

    The batch time is the newest one that no restart reads. Streams record it, and list a file for
    as long as they remember it. Queries commit their state with each batch, so for them it is the
    time of the newest commit.
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
    """Return the ids of failed outputs by the times of the batches committed without them."""
    log = CommitLog(files)
    failed: dict[int, Sequence[str]] = {}
    for record_id in log.ids():
        with suppress(CheckpointError, FileNotFoundError):  # verify reports it
            failed[record_id.time_ms] = log.read_record(record_id).failed_outputs
    return {time_ms: ids for time_ms, ids in failed.items() if ids}


def _sections(
    data: Mapping[str, object],
    plan: RecoveryPlan,
    failed: Mapping[int, Sequence[str]],
    needed_after: Mapping[str, int],
) -> Iterator[_Section]:
    last = plan.last
    flying = ", ".join(iso(begun.batch_time_ms) for begun in plan.in_flight)
    yield _Section(
        "",
        [
            f"stream {plan.stream_id}, {data['driver']}, "
            + ("unsigned" if data["signed"] == "no" else "signed"),
            f"in {data['url']}",
            "no batch is committed"
            if last is None
            else f"last batch: {last.batch_id} at {moment(last.batch_time_ms)}, epoch {last.epoch}",
            f"begun and not committed: {flying or 'none'}",
        ],
    )
    yield _Section("failed outputs", list(_failed_lines(plan, failed)))
    read = _inputs(plan).items()
    yield _Section(
        "inputs", [f"input {uid} of the newest batch: {json.dumps(said)}" for uid, said in read]
    )
    no_more = (
        f"input {uid}: no restart reads files up to {iso(after_ms)} again; --json lists them"
        for uid, after_ms in needed_after.items()
    )
    yield _Section("inputs", list(no_more))
    yield _Section("operators", list(_operator_lines(plan)))
    watermarks = plan.watermarks.items()
    yield _Section("watermarks", [f"watermark of {uid}: {moment(at)}" for uid, at in watermarks])
    if last is not None and last.facts:
        yield _Section("", [f"facts of the last batch: {json.dumps(dict(last.facts))}"])
    counts = data["files"] if isinstance(data["files"], dict) else {}
    yield _Section("", [f"files: {', '.join(f'{kind} {count}' for kind, count in counts.items())}"])
    yield _Section("lines of the graph", list(_graph_lines(data)))


def _failed_lines(plan: RecoveryPlan, failed: Mapping[int, Sequence[str]]) -> Iterator[str]:
    for time_ms, ids in failed.items():
        before = max((one for one in plan.committed_ms if one < time_ms), default=None)
        again = "" if before is None else f"; to repeat it: rewind --to {iso(before)}"
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
            items = value.items() if isinstance(value, dict) else value
            yield from (f"    {_graph_item(item)}" for item in items)
        else:
            yield f"  {key}: {_plain(value)}"


def _graph_item(item: Any) -> str:
    """Return a line about a node or a pair of name and value; a line of a plan as it is."""
    if isinstance(item, str):
        return item
    name, value = (item.get("uid"), item) if isinstance(item, dict) else item
    if not isinstance(value, dict):
        return f"{name}: {_plain(value)}"
    facts = ((fact, _plain(one)) for fact, one in value.items() if fact != "uid")
    return f"{name}: " + ", ".join(f"{fact} {one}" for fact, one in facts if one not in _NOTHING)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_SHOWN = 18  # with head and foot on a screen of 24 lines
_ROW = "{:24}  {:>7}  {:>5}  {:>15}  {:14}  {:5}"
_RECORDS = "records"


@dataclass(frozen=True)
class ShownBatch:
    """A committed batch, and the newest lineage that has it."""

    record_id: RecordId
    lineage: Lineage
    counts: bool


def add_batches(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "batches",
        help="the batches that a stream can be rewound to",
        description=(
            "Lists the batches that a stream can be rewound to, the newest first, with the amount "
            "of input, the snapshots of state, and whether a restart is possible after the batch. "
            "Superseded and rewound batches are listed, too; a rewind can make them count again."
        ),
        examples=["/data/app", "/data/app --all --no-verify"],
    )
    add_location(parser)
    parser.add_argument(
        "--all", action="store_true", help=f"all batches, not only the newest {_SHOWN}"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not check whether a restart is possible"
    )
    add_progress(parser)
    parser.set_defaults(run=_batches)


def _batches(options: argparse.Namespace) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    found = batches_of(files)
    listed = found if options.all else found[:_SHOWN]
    with progress_of(options) as progress:
        stage = "reading batches" if options.no_verify else "verifying batches"
        facts = [
            _facts(files, batch, verifies=not options.no_verify)
            for batch in progress.over(listed, stage)
        ]
    data = {"url": files.url, "batches": facts, "more": len(found) - len(listed)}
    return CommandResult(data, _lines(facts, len(found) - len(listed)))


def batches_of(files: Files) -> list[ShownBatch]:
    """Return the batches that a rewind would find, one per batch time, the newest first."""
    there = epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)
    commit_ids = CommitLog(files).all_ids()
    found: dict[int, ShownBatch] = {}
    for epoch in reversed(there):
        with suppress(CheckpointError, FileNotFoundError):  # verify reports it
            lineage = lineage_from(files, epoch, there)
            for record_id in lineage.commits(commit_ids):
                batch = ShownBatch(record_id, lineage, counts=epoch == there[-1])
                found.setdefault(record_id.time_ms, batch)
    return [batch for _, batch in sorted(found.items(), reverse=True)]


def _facts(files: Files, batch: ShownBatch, *, verifies: bool) -> dict[str, object]:
    time_ms = batch.record_id.time_ms
    facts: dict[str, object] = {
        "time_ms": time_ms,
        "epoch": batch.record_id.epoch,
        "counts": batch.counts,
    }
    inputs: Mapping[str, object] = {}
    record: CommitRecord | None = None
    problem = None
    try:
        if verifies:
            plan_rewind(files, time_ms)
        record = CommitLog(files).read_record(batch.record_id)
    except (CheckpointError, UsageError, FileNotFoundError, ValueError) as error:
        problem = str(error)
    with suppress(CheckpointError, FileNotFoundError):
        log = BatchLog(files)
        begun = batch.lineage.begins(log.all_ids()).get(time_ms)
        inputs = {} if begun is None else log.read_record(begun).inputs
    if record is None:
        with suppress(CheckpointError, FileNotFoundError):
            record = CommitLog(files).read_record(batch.record_id)
    if record is not None:
        facts |= {
            "batch_id": record.batch_id,
            "snapshots": sorted(record.snapshots),
            "stores": sorted({commit.operator_uid for commit in record.stores}),
            "failed_outputs": list(record.failed_outputs),
        }
    sound = False if problem else True if verifies else None
    return {**facts, "inputs": dict(inputs), "sound": sound, "problem": problem}


def _lines(facts: Collection[Mapping[str, object]], more: int) -> Iterator[str]:
    if not facts:
        yield "no batch to rewind to"
        return
    yield _ROW.format("batch time", "batch", "epoch", "read", "snapshot", "sound").rstrip()
    for one in facts:
        yield _row(one).rstrip()
    problems = dict.fromkeys(str(one["problem"]) for one in facts if one["problem"])
    for problem in islice(problems, 3):
        yield f"not sound: {problem}"
    if len(problems) > 3:
        yield f"and {len(problems) - 3} more reasons; --json lists all"
    if any(not one["counts"] for one in facts):
        yield "(epoch): superseded or rewound; a rewind can make it count again"
    if more:
        yield f"{more} older batches; --all lists them"


def _row(one: Mapping[str, object]) -> str:
    snapshots, stores = one.get("snapshots"), one.get("stores")
    shown = ", ".join(map(str, snapshots)) if isinstance(snapshots, list) else "?"
    shown = shown or ("in stores" if stores else "-")
    sound = "?" if one["sound"] is None else "yes" if one["sound"] else "no"
    inputs = one["inputs"]
    return _ROW.format(
        iso(int(str(one["time_ms"]))),
        str(one.get("batch_id", "?")),
        str(one["epoch"]) if one["counts"] else f"({one['epoch']})",
        _amount(inputs if isinstance(inputs, dict) else {}),
        shown if len(shown) <= 14 else f"{shown[:11]}...",
        sound,
    )


def _amount(inputs: Mapping[str, object]) -> str:
    """Return the amount of input of a batch, if its inputs report it."""
    amounts: dict[str, int] = {}
    for said in inputs.values():
        found = _amount_of(said) if isinstance(said, Mapping) else None
        if found is None:
            return "?"
        amounts[found[1]] = amounts.get(found[1], 0) + found[0]
    return " + ".join(f"{count} {unit}" for unit, count in amounts.items()) or "-"


def _amount_of(said: Mapping[str, object]) -> tuple[int, str] | None:
    records, files = said.get(_RECORDS), said.get(INPUT_FILES)
    if isinstance(records, int):
        return records, _RECORDS
    if isinstance(files, list):
        return len(files), "files"
    end = said.get(INPUT_END)
    offsets = _between(said.get(INPUT_START, end), end)
    return None if offsets is None else (offsets, "offsets")


def _between(start: object, end: object) -> int | None:
    """Return the number of offsets between two, which may be mappings by topic and partition."""
    if isinstance(start, int) and isinstance(end, int):
        return end - start
    if isinstance(start, Mapping) and isinstance(end, Mapping):
        parts = [_between(start.get(name, 0), part) for name, part in end.items()]
        return None if None in parts else sum(filter(None, parts))
    return 0 if start is None and end is None else None

"""``state``: which versions the state stores of a stream have, and what changed between them.

The command reads what commit records name and changes nothing; a stream may run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from checkpoint.cli.command_parser import about
from checkpoint.cli.common import (
    CommandResult,
    Commands,
    UsageError,
    add_json,
    add_location,
    add_operator,
    add_time,
    open_stream_at,
    record_at,
    size,
)
from checkpoint.cli.plain import printed
from checkpoint.cli.times import TIMES, iso, moment
from checkpoint.cli.unpickling import ShownClasses
from checkpoint.log.batch_records import CommitLog, CommitRecord
from checkpoint.log.version_records import PartitionCommit, StoreCommit, VersionId
from checkpoint.state_store import EMPTY
from checkpoint.state_store.key_decoding import UndecodableKeyError, decode_key
from checkpoint.state_store.store_files import changes_between

_VERSIONS = "{:24}  {:>9}  {:>7}  {:16}  {:>8}  {:>9}"
_Line = tuple[str, dict[str, object] | None]
"""For people, and for programs; None for a heading."""


def add_state(commands: Commands) -> None:
    """Add the command to a parser."""
    state = commands.add_parser(
        "state",
        help="state stores: versions, changes",
        description=about(__doc__),
        examples=[
            "/data/app",
            "/data/app versions --operator counts",
            "/data/app changes --from 2026-11-23T20:15:00Z",
        ],
        epilog=TIMES,
    )
    add_location(state)
    state.add_argument(
        "action",
        nargs="?",
        default="stores",
        choices=list(_ACTIONS),
        help="what to list: stores after a batch, versions of each batch, or changes of one",
    )
    add_operator(state)
    add_time(state, "--at", "batch time; the last one by default")
    add_time(
        state,
        "--from",
        "time of the batch before the changes; by default the one before",
        dest="older",
    )
    state.add_argument(
        "--limit", type=int, default=20, metavar="N", help="changes at most (default: %(default)s)"
    )
    add_json(state)
    state.set_defaults(run=run_state)


def run_state(options: argparse.Namespace) -> CommandResult:
    """Run the command."""
    action = _ACTIONS[options.action]
    rows = (row for _, row in action(options) if row is not None)
    return CommandResult(lines=(line for line, _ in action(options)), rows=rows)


def _stores(options: argparse.Namespace) -> Iterator[_Line]:
    record = record_at(_log(options), options.at)
    when = moment(record.batch_time_ms)
    yield f"stream {record.stream_id}, batch {record.batch_id} at {when}", None
    if not record.stores:
        yield "no state stores", None
    for commit in record.stores:
        versions = sorted({stored.version_id.version for stored in commit.partitions})
        keys = sum(stored.count for stored in commit.partitions)
        line = (
            f"operator {commit.operator_uid}, store {commit.store}: {len(commit.partitions)} "
            f"partitions, version {'/'.join(map(str, versions))}, {keys} keys"
        )
        yield (
            line,
            {
                "time_ms": record.batch_time_ms,
                "operator": commit.operator_uid,
                "store": commit.store,
                "partitions": len(commit.partitions),
                "versions": versions,
                "keys": keys,
            },
        )


def _versions(options: argparse.Namespace) -> Iterator[_Line]:
    log = _log(options)
    yield _VERSIONS.format("batch", "partition", "version", "uid", "keys", "changes"), None
    for time_ms in log.times():
        for commit in log.read(time_ms).stores:
            if not _is_meant(commit, options):
                continue
            for stored in _partitions(commit, options):
                version_id = stored.version_id
                line = _VERSIONS.format(
                    iso(time_ms),
                    stored.partition,
                    version_id.version,
                    version_id.uid,
                    stored.count,
                    size(stored.size_bytes),
                )
                yield (
                    line,
                    {
                        "time_ms": time_ms,
                        "operator": commit.operator_uid,
                        "store": commit.store,
                        "partition": stored.partition,
                        "version": version_id.version,
                        "uid": version_id.uid,
                        "keys": stored.count,
                        "changelog_bytes": stored.size_bytes,
                    },
                )


def _changes(options: argparse.Namespace) -> Iterator[_Line]:
    log = _log(options)
    record, commit = _commit(options)
    before = _before(log, record, commit, options.older)
    left = options.limit
    for stored in _partitions(commit, options):
        store = commit.store_id(record.stream_id, stored.partition)
        old, new = before.get(stored.partition, EMPTY), stored.version_id
        if old == new:
            continue
        for version_id, changes in changes_between(log.files, store, old, new):
            for mark, raws in (("+", [raw for raw, _ in changes.puts]), ("-", changes.removes)):
                for raw in raws[: max(left, 0)]:
                    left -= 1
                    where = f"[partition {stored.partition}, version {version_id.version}]"
                    key = _readable(raw)
                    yield (
                        f"{mark} {key}  {where}",
                        {
                            "change": mark,
                            "key": key,
                            "partition": stored.partition,
                            "version": version_id.version,
                        },
                    )


def _before(
    log: CommitLog, record: CommitRecord, commit: StoreCommit, since: int | None
) -> dict[int, VersionId]:
    """Return the contents of a store, by partition, after the batch that changes begin at."""
    if since is None:
        earlier = [time_ms for time_ms in log.times() if time_ms < record.batch_time_ms]
        if not earlier:
            return {}
        since = earlier[-1]
    for other in record_at(log, since).stores:
        if (other.operator_uid, other.store) == (commit.operator_uid, commit.store):
            return {stored.partition: stored.version_id for stored in other.partitions}
    return {}


def _readable(raw: bytes) -> str:
    try:
        return printed(decode_key(raw, ShownClasses()))
    except UndecodableKeyError:
        return f"key {raw!r}"


def _log(options: argparse.Namespace) -> CommitLog:
    return CommitLog(open_stream_at(options.url, options.stream))


def _is_meant(commit: StoreCommit, options: argparse.Namespace) -> bool:
    return options.operator in (None, commit.operator_uid) and options.store in (None, commit.store)


def _commit(options: argparse.Namespace) -> tuple[CommitRecord, StoreCommit]:
    record = record_at(_log(options), options.at)
    found = [commit for commit in record.stores if _is_meant(commit, options)]
    if len(found) == 1:
        return record, found[0]
    names = ", ".join(f"--operator {c.operator_uid} --store {c.store}" for c in record.stores)
    raise UsageError(f"{len(found)} stores are meant; choose one of: {names or 'there are none'}")


def _partitions(commit: StoreCommit, options: argparse.Namespace) -> Sequence[PartitionCommit]:
    if options.partition is None:
        return commit.partitions
    if not 0 <= options.partition < len(commit.partitions):
        raise UsageError(f"partition {options.partition} must be 0 to {len(commit.partitions) - 1}")
    return [commit.partitions[options.partition]]


_ACTIONS: dict[str, Callable[[argparse.Namespace], Iterator[_Line]]] = {
    "stores": _stores,
    "versions": _versions,
    "changes": _changes,
}

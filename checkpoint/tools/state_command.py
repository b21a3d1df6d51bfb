"""``state``: which versions the state stores of a stream have, and what changed between them.

The command reads what commit records name and changes nothing; a stream may run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from checkpoint.commit_log import CommitLog, CommitRecord
from checkpoint.state_store import EMPTY
from checkpoint.state_store.key_decoding import UndecodableKeyError, decode_key
from checkpoint.state_store.store_files import changes_between
from checkpoint.tools.common import (
    CommandResult,
    Commands,
    UsageError,
    open_stream_at,
    record_at,
)
from checkpoint.tools.instances import ShownClasses
from checkpoint.tools.plain import printed
from checkpoint.version_records import PartitionCommit, StoreCommit, VersionId

_EXAMPLES = """\
examples:
  python -m checkpoint state /data/checkpoint
  python -m checkpoint state /data/checkpoint versions --operator counts
  python -m checkpoint state /data/checkpoint changes --since 1700000000000 --limit 100
"""


def add_state(commands: Commands) -> None:
    """Add the command to a parser."""
    state = commands.add_parser(
        "state",
        help="state stores: versions, changes",
        epilog=_EXAMPLES,
    )
    state.add_argument("url", help="path or URL of the checkpoint")
    state.add_argument("action", nargs="?", default="stores", choices=list(_ACTIONS))
    state.add_argument("--stream", help="id of the stream, where there are several")
    state.add_argument("--operator", help="uid of the operator, where there are several")
    state.add_argument("--store", help="name of the store, where there are several")
    state.add_argument("--partition", type=int, help="one partition only")
    state.add_argument("--at", type=int, metavar="MS", help="batch time; the last one by default")
    state.add_argument("--since", type=int, metavar="MS", help="batch time before the changes")
    state.add_argument("--limit", type=int, default=20, help="lines at most (default: 20)")
    state.set_defaults(run=run_state)


def run_state(options: argparse.Namespace) -> CommandResult:
    """Run the command."""
    return CommandResult(lines=_ACTIONS[options.action](options))


def _stores(options: argparse.Namespace) -> Iterator[str]:
    record = record_at(_log(options), options.at)
    yield f"stream {record.stream_id}, batch {record.batch_id} at {record.batch_time_ms} ms"
    if not record.stores:
        yield "no state stores"
    for commit in record.stores:
        versions = sorted({stored.version_id.version for stored in commit.partitions})
        keys = sum(stored.count for stored in commit.partitions)
        yield (
            f"operator {commit.operator_uid}, store {commit.store}: {len(commit.partitions)} "
            f"partitions, version {'/'.join(map(str, versions))}, {keys} keys"
        )


def _versions(options: argparse.Namespace) -> Iterator[str]:
    log = _log(options)
    yield "batch time ms  partition  version  uid               keys      changelog bytes"
    for time_ms in log.times():
        for commit in log.read(time_ms).stores:
            if _is_meant(commit, options):
                for stored in _partitions(commit, options):
                    yield (
                        f"{time_ms:13d}  {stored.partition:9d}  {stored.version_id.version:7d}  "
                        f"{stored.version_id.uid:16}  {stored.count:8d}  {stored.size_bytes:15d}"
                    )


def _changes(options: argparse.Namespace) -> Iterator[str]:
    log = _log(options)
    record, commit = _commit(options)
    before = _before(log, record, commit, options.since)
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
                    yield f"{mark} {_readable(raw)}  {where}"


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


_ACTIONS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "stores": _stores,
    "versions": _versions,
    "changes": _changes,
}

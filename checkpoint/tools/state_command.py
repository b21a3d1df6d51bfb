"""``python -m checkpoint state``: look into the state stores of a checkpoint.

It reads what commit records name, in a copy of its own, and changes nothing; a stream may run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from checkpoint.commit_log import CommitLog, CommitRecord
from checkpoint.state_store import EMPTY, PickleValues, Shapes
from checkpoint.state_store.key_decoding import UndecodableKeyError, decode_key
from checkpoint.state_store.store_files import changes_between
from checkpoint.state_store.store_reader import StateReader
from checkpoint.tools.common import (
    CommandResult,
    Commands,
    UsageError,
    codec_of,
    literal,
    open_stream_at,
    opened_version,
    record_at,
)
from checkpoint.tools.instances import ShownClasses
from checkpoint.tools.plain import printed
from checkpoint.trust import require_trusted
from checkpoint.version_records import PartitionCommit, StoreCommit, VersionId

_EXAMPLES = """\
examples:
  python -m checkpoint state /data/checkpoint
  python -m checkpoint state /data/checkpoint versions --operator counts
  python -m checkpoint state s3://bucket/checkpoint get spark
  python -m checkpoint state /data/checkpoint get "('user-7', 3)" --at 1700000002000
  python -m checkpoint state /data/checkpoint changes --since 1700000000000 --limit 100

A key is a Python literal (17, 'text', ('a', 1)), or else the text itself.
"""


def add_state(commands: Commands) -> None:
    """Add the command to a parser."""
    state = commands.add_parser(
        "state",
        help="state stores: versions, keys, changes",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    state.add_argument("url", help="path or URL of the checkpoint")
    state.add_argument("action", nargs="?", default="stores", choices=list(_ACTIONS))
    state.add_argument("key", nargs="?", help="the key to get")
    state.add_argument("--stream", help="id of the stream, where there are several")
    state.add_argument("--operator", help="uid of the operator, where there are several")
    state.add_argument("--store", help="name of the store, where there are several")
    state.add_argument("--partition", type=int, help="one partition only")
    state.add_argument("--at", type=int, metavar="MS", help="batch time; the last one by default")
    state.add_argument("--since", type=int, metavar="MS", help="batch time before the changes")
    state.add_argument("--limit", type=int, default=20, help="lines at most (default: 20)")
    state.add_argument(
        "--trust-pickle",
        action="store_true",
        help="read values that are pickles of any kind; who wrote them can run code here",
    )
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


def _count(options: argparse.Namespace) -> Iterator[str]:
    _, commit = _commit(options)
    yield str(sum(stored.count for stored in _partitions(commit, options)))


def _get(options: argparse.Namespace) -> Iterator[str]:
    if options.key is None:
        raise UsageError("get needs a key; write it as a Python literal, or as text")
    key = literal(options.key)
    for stored, reader in _readers(options):
        value = reader.get(key)
        if value is not None:
            timeout_ms = reader.timeout_ms(key)
            until = "" if timeout_ms is None else f"  (timeout {timeout_ms} ms)"
            where = f"[partition {stored.partition}, version {stored.version_id.version}]"
            yield f"{printed(value)}{until}  {where}"
            return
    raise UsageError(f"key {key!r} of type {type(key).__name__} is not in the store")


def _items(options: argparse.Namespace) -> Iterator[str]:
    left = options.limit
    for _, reader in _readers(options):
        for key, value in islice(reader.items(), max(left, 0)):
            left -= 1
            yield f"{printed(key)}: {printed(value)}"


def _verify(options: argparse.Namespace) -> Iterator[str]:
    record, commit = _commit(options)
    files = _log(options).files
    for stored in _partitions(commit, options):
        store = commit.store_id(record.stream_id, stored.partition)
        with opened_version(
            files, store, stored.version_id
        ) as version:  # which verifies all it reads
            known = "no checksum" if version.checksum is None else f"checksum {version.checksum:x}"
            where = f"partition {stored.partition}, version {stored.version_id.version}"
            yield f"{where}: {version.count()} keys, whole, {known}"


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
    files = open_stream_at(options.url, options.stream)
    return CommitLog(require_trusted(files) if options.trust_pickle else files)


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


def _readers(options: argparse.Namespace) -> Iterator[tuple[PartitionCommit, StateReader]]:
    record, commit = _commit(options)
    files = _log(options).files
    for stored in _partitions(commit, options):
        store = commit.store_id(record.stream_id, stored.partition)
        with opened_version(files, store, stored.version_id) as version:
            # As the writer chose, or any pickle where that is asked for.
            codec = PickleValues() if options.trust_pickle else codec_of(version, None)
            yield stored, StateReader(store, version, codec, Shapes(version.codec))


_ACTIONS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "stores": _stores,
    "versions": _versions,
    "count": _count,
    "get": _get,
    "items": _items,
    "verify": _verify,
    "changes": _changes,
}

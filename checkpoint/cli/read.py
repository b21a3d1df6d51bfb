"""``read`` and ``diff``: show the state of an operator, and the difference of two versions."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from checkpoint.cli.common import (
    FAILED,
    TIMES,
    CommandResult,
    Commands,
    UsageError,
    add_json,
    add_location,
    add_operator,
    add_time,
    iso,
    literal,
    moment,
    open_stream_at,
    opened_version,
    record_at,
)
from checkpoint.cli.plain import NotShown, Shower, Unshown, pairs_of
from checkpoint.cli.unpickling import ShownData, plain_loads
from checkpoint.log.batch_records import CommitLog, CommitRecord
from checkpoint.log.block_formats import write_arrow
from checkpoint.log.recovery import NewestSnapshot
from checkpoint.log.state_files import read_state_file
from checkpoint.log.version_records import StoreCommit
from checkpoint.state_store import DataValues, PickleValues, Shapes
from checkpoint.state_store.backend import RawVersion
from checkpoint.state_store.store_reader import StateReader
from checkpoint.storage.files import Files
from checkpoint.storage.trust import require_trusted

_MISSING: Any = object()


@dataclass(frozen=True)
class OperatorState:
    """The state of one operator after a batch."""

    files: Files
    stream_id: str
    uid: str
    time_ms: int
    where: NewestSnapshot | StoreCommit
    unpickle: bool = False
    partition: int | None = None

    @property
    def partition_count(self) -> int:
        """The number of partitions of the state."""
        if isinstance(self.where, StoreCommit):
            return len(self.where.partitions)
        return 0 if self.where.snapshot is None else len(self.where.snapshot.files)

    @property
    def read_ms(self) -> int:
        """Time of the batch whose state is read."""
        return self.time_ms if isinstance(self.where, StoreCommit) else self.where.time_ms

    def row(self, key: Any, text: str) -> Iterator[tuple[Any, Any, int | None]]:
        """Yield a key with its value and timeout if it exists; *text* if it is not a literal."""
        if not isinstance(self.where, StoreCommit):
            for found, value in self.pairs():
                if (found == key and type(found) is type(key)) or found == text:
                    yield found, value, None
            return
        for reader in self._readers(self.where):
            for wanted in dict.fromkeys((key, text)):
                value = reader.get(wanted)
                if value is not None:
                    yield wanted, value, reader.timeout_ms(wanted)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values; :class:`Unshown` replaces unreadable ones."""
        if isinstance(self.where, StoreCommit):
            return self._pairs_of_store(self.where)
        return self._pairs_of_snapshot(self.where)

    def payloads(self) -> Iterator[bytes]:
        """Yield the payloads of a snapshot; a state in a store has none."""
        return iter(()) if isinstance(self.where, StoreCommit) else self._payloads_of(self.where)

    def _pairs_of_snapshot(self, newest: NewestSnapshot) -> Iterator[tuple[Any, Any]]:
        loads = pickle.loads if self.unpickle else plain_loads
        for payload in self._payloads_of(newest):
            yield from pairs_of(payload, loads)

    def _payloads_of(self, newest: NewestSnapshot) -> Iterator[bytes]:
        snapshot = newest.snapshot
        if snapshot is None:
            return
        for ref, wanted in snapshot.partitions(self.stream_id, self.uid, newest.time_ms):
            if self.partition not in (None, wanted.partition):
                continue
            yield from read_state_file(self.files, ref, wanted)

    def _pairs_of_store(self, commit: StoreCommit) -> Iterator[tuple[Any, Any]]:
        for reader in self._readers(commit):
            yield from reader.items()

    def _readers(self, commit: StoreCommit) -> Iterator[StateReader]:
        for stored in commit.partitions:
            if self.partition not in (None, stored.partition):
                continue
            store = commit.store_id(self.stream_id, stored.partition)
            with opened_version(self.files, store, stored.version_id) as version:
                shapes = Shapes(version.codec)
                decode = self._decoder(version, shapes)
                yield StateReader(store, version, _ShownValues(decode), shapes)

    def _decoder(self, version: RawVersion, shapes: Shapes) -> Callable[[bytes], Any]:
        if self.unpickle:
            return PickleValues().decoder(shapes)
        data = DataValues().name
        is_data = version.codec.get("values", data).split()[0] == data
        return ShownData().decoder(shapes) if is_data else plain_loads


class _ShownValues(PickleValues):
    """Values as far as they can be read."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode

    def decoder(self, shapes: Shapes) -> Any:
        """Return the function that makes a value of bytes."""

        def decode_or_say(record: bytes) -> Any:
            try:
                return self._decode(record)
            except Exception as error:
                return Unshown(str(error))

        return decode_or_say


def add_read(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "read",
        help="state as JSON lines",
        description=(
            "Prints the keys and values of an operator's state, a JSON object a line. Nothing is "
            "unpickled that could run code: objects are shown by their class and parts."
        ),
        examples=[
            "/data/app --operator counts",
            "/data/app --at 2026-11-23T20:15:00Z --key alice",
        ],
        epilog=TIMES,
    )
    add_location(parser)
    _add_choice(parser)
    add_time(parser, "--at", "batch time; the last one by default")
    parser.add_argument(
        "--key", metavar="KEY", help="this key only: a Python literal, or else the text itself"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="lines at most; all by default")
    parser.add_argument(
        "--arrow",
        metavar="FILE",
        help="write a state in Arrow blocks into this new file of Arrow's instead; needs pyarrow",
    )
    parser.set_defaults(run=_read)


def add_diff(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "diff",
        help="the difference of two versions of a state",
        description="Prints the keys that differ between two batches, a JSON object a line.",
        examples=["/data/app --from 2026-11-23T20:15:00Z"],
        epilog=TIMES,
    )
    add_location(parser)
    _add_choice(parser)
    add_time(parser, "--from", "time of the batch before the changes", dest="older", required=True)
    add_time(parser, "--to", "batch time; the last one by default", dest="newer")
    parser.add_argument("--limit", type=int, metavar="N", help="lines at most; all by default")
    parser.set_defaults(run=_diff)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    add_operator(parser)
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="make objects of any class; who can write the checkpoint can then run code here",
    )
    add_json(parser)


def _read(options: argparse.Namespace) -> CommandResult:
    state = _state(options, options.at)
    if options.arrow is not None:
        return _written(state, options)
    shown = Shower().shown
    rows: Iterator[dict[str, Any]]
    if options.key is None:
        rows = ({"key": shown(key), "value": shown(value)} for key, value in state.pairs())
    else:
        found = [
            {"key": shown(key), "value": shown(value)}
            | ({} if timeout_ms is None else {"timeout_ms": timeout_ms})
            for key, value, timeout_ms in state.row(literal(options.key), options.key)
        ]
        if not found:
            return CommandResult(rows=(), note=_no_key(options.key, state), status=FAILED)
        rows = iter(found)
    return CommandResult(rows=_counted(islice(rows, options.limit)), note=_age_of(state))


def _written(state: OperatorState, options: argparse.Namespace) -> CommandResult:
    if options.key is not None or options.limit is not None:
        raise UsageError("--arrow writes the whole state; leave --key and --limit out")
    if isinstance(state.where, StoreCommit):
        raise UsageError(f"the state of {state.uid} is in a store, not in Arrow blocks")
    try:
        keys = write_arrow(state.payloads(), options.arrow)
    except FileExistsError:
        raise UsageError(f"{options.arrow} is there already; name a new file") from None
    except ValueError as error:
        raise UsageError(f"the state of {state.uid} is not written: {error}") from error
    return CommandResult(
        {"file": options.arrow, "keys": keys},
        lines=(f"{keys:,} keys of {state.uid} written to {options.arrow}",),
        note=_age_of(state),
    )


def _no_key(key: str, state: OperatorState) -> str:
    if state.read_ms >= state.time_ms:
        return f"no key {key!r} in {state.uid} as of {iso(state.read_ms)}"
    behind_s = (state.time_ms - state.read_ms) / 1000
    return (
        f"no key {key!r} in {state.uid} as of the snapshot of {iso(state.read_ms)} "
        f"({behind_s:g} s before the last batch)"
    )


def _age_of(state: OperatorState) -> str | None:
    """Return a note if the snapshot is older than the requested batch."""
    if state.read_ms >= state.time_ms:
        return None
    times = CommitLog(state.files).times()
    between = sum(state.read_ms < time_ms <= state.time_ms for time_ms in times)
    batches = "1 batch" if between == 1 else f"{between} batches"
    return (
        f"state of {state.uid} as of the batch at {moment(state.read_ms)} (its newest snapshot); "
        f"the stream is at {moment(state.time_ms)}, and a restart recomputes the {batches} between"
    )


def _counted(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield *rows*, and raise after the last if something of them is not shown."""
    reasons: list[str] = []
    for row in rows:
        reasons += [part.reason for part in row.values() if isinstance(part, NotShown)][:1]
        yield row
    if reasons:
        first = f"; the first: {reasons[0]}"
        raise ValueError(f"of {len(reasons)} rows not everything could be shown{first}")


def _diff(options: argparse.Namespace) -> CommandResult:
    older, newer = _state(options, options.older), _state(options, options.newer)
    return CommandResult(rows=_counted(islice(_differences(older, newer), options.limit)))


def _differences(older: OperatorState, newer: OperatorState) -> Iterator[dict[str, Any]]:
    """Yield added, removed and changed keys; ``?`` if a value cannot be shown."""
    shown = Shower().shown
    before: dict[tuple[str, str], tuple[Any, Any]] = {}
    for key, value in older.pairs():
        found = shown(key)
        if isinstance(found, NotShown):
            yield {"change": "?", "key": found, "old": shown(value)}
        else:
            before[_hashable(key, found)] = (found, value)
    for key, value in newer.pairs():
        found, new = shown(key), shown(value)
        if isinstance(found, NotShown):
            yield {"change": "?", "key": found, "new": new}
            continue
        _, old_value = before.pop(_hashable(key, found), (found, _MISSING))
        if old_value is _MISSING:
            yield {"change": "+", "key": found, "new": new}
            continue
        old = shown(old_value)
        if isinstance(old, NotShown) or isinstance(new, NotShown):
            yield {"change": "?", "key": found, "old": old, "new": new}
        elif old != new:
            yield {"change": "~", "key": found, "old": old, "new": new}
    for found, value in before.values():
        yield {"change": "-", "key": found, "old": shown(value)}


def _hashable(key: Any, found: Any) -> tuple[str, str]:
    """Return what is equal for equal keys, also for those that are only shown."""
    return type(key).__name__, json.dumps(found, sort_keys=True)


def _state(options: argparse.Namespace, time_ms: int | None) -> OperatorState:
    files = open_stream_at(options.url, options.stream)
    if options.unpickle:
        files = require_trusted(files)
    log = CommitLog(files)
    record = record_at(log, time_ms)
    states = list(_states(log, record, options.unpickle))
    if not states:
        raise UsageError(
            f"no state has been written up to the batch at {moment(record.batch_time_ms)}; the "
            "state of updateStateByKey and of windows is written at each checkpoint interval and "
            "by a graceful stop"
        )
    found = [
        state
        for state in states
        if options.operator in (None, state.uid) and _is_store(state, options.store)
    ]
    if len(found) == 1:
        return _chosen(found[0], options.partition)
    uids = sorted({state.uid for state in states})
    if options.operator is not None and options.operator not in uids:
        raise UsageError(f"no operator {options.operator!r}; this stream has {' and '.join(uids)}")
    stores = sorted(
        state.where.store
        for state in states
        if isinstance(state.where, StoreCommit) and options.operator in (None, state.uid)
    )
    if options.store is not None and not found:
        raise UsageError(f"no store {options.store!r}; there are {', '.join(stores) or 'none'}")
    if options.operator is None and len(uids) > 1:
        raise UsageError(f"several operators have state; give --operator: {', '.join(uids)}")
    raise UsageError(f"the operator has several stores; give --store: {', '.join(stores)}")


def _chosen(state: OperatorState, partition: int | None) -> OperatorState:
    count = state.partition_count
    if partition is not None and not 0 <= partition < count:
        raise UsageError(f"partition {partition} must be 0 to {count - 1}")
    return replace(state, partition=partition)


def _is_store(state: OperatorState, store: str | None) -> bool:
    return store is None or (isinstance(state.where, StoreCommit) and state.where.store == store)


def _states(log: CommitLog, record: CommitRecord, unpickle: bool) -> Iterator[OperatorState]:
    for uid, record_id in sorted(record.newest_snapshots.items()):
        try:
            holder = record if record_id == record.record_id else log.read_record(record_id)
        except FileNotFoundError:
            continue  # deleted as obsolete
        newest = NewestSnapshot(record_id.time_ms, holder.snapshots.get(uid))
        yield OperatorState(
            log.files, record.stream_id, uid, record.batch_time_ms, newest, unpickle
        )
    for commit in record.stores:
        yield OperatorState(
            log.files, record.stream_id, commit.operator_uid, record.batch_time_ms, commit, unpickle
        )

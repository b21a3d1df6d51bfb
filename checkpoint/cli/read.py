"""``read`` and ``diff``: the state of an operator, and the difference between two versions."""

from __future__ import annotations

import argparse
import ast
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
    iso,
    moment,
    nearest,
    open_stream_at,
    opened_version,
    time_ms,
)
from checkpoint.cli.differences import state_differences
from checkpoint.cli.plain import NotShown, Shower, ShownData, pairs_of, plain_loads
from checkpoint.log.batch_records import CommitLog, CommitRecord, StoreCommit
from checkpoint.log.record_files import RecordId
from checkpoint.log.recovery import NewestSnapshot
from checkpoint.log.state_files import read_state_file, write_arrow
from checkpoint.state_store import DataValues, PickleValues, Shapes, is_between
from checkpoint.state_store.backend import RawVersion
from checkpoint.state_store.store import StateReader
from checkpoint.storage.files import Files
from checkpoint.storage.trust import require_trusted


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

    def between(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """Yield keys from *start* to before *stop*, None for no bound, and values."""
        if isinstance(self.where, StoreCommit):
            for reader in self._readers(self.where):
                yield from reader.range(start, stop)
            return
        yield from (pair for pair in self.pairs() if is_between(pair[0], start, stop))

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values; :class:`NotShown` replaces unreadable ones."""
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
    """Values with a placeholder for each that cannot be read."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode

    def decoder(self, shapes: Shapes) -> Any:
        """Return the function that decodes one value."""

        def decode_or_explain(record: bytes) -> Any:
            try:
                return self._decode(record)
            except Exception as error:
                return NotShown(str(error))

        return decode_or_explain


def add_read(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "read",
        help="state as JSON lines",
        description=(
            "Prints the keys and values of an operator's state, one JSON object per line. Nothing "
            "that could run code is unpickled: objects are shown as class and parts."
        ),
        examples=[
            "/data/app --operator counts",
            "/data/app --at 2026-11-23T20:15:00Z --key alice",
            "/data/app --start a --stop b",
        ],
        epilog=TIMES,
    )
    add_location(parser)
    _add_choice(parser)
    _add_time(parser, "--at", "batch time; the last one by default")
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="only this key: a Python literal (lists are tuples) or the text itself",
    )
    parser.add_argument("--start", metavar="KEY", help="keys from this one on, likewise")
    parser.add_argument("--stop", metavar="KEY", help="keys before this one, likewise")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N lines; all by default")
    parser.add_argument(
        "--arrow",
        metavar="FILE",
        help="write state in Arrow blocks to this new Arrow file instead; needs pyarrow",
    )
    parser.set_defaults(run=_read)


def add_diff(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "diff",
        help="the difference between two versions of state",
        description="Prints the keys that differ between two batches, one JSON object per line.",
        examples=["/data/app --from 2026-11-23T20:15:00Z"],
        epilog=TIMES,
    )
    add_location(parser)
    _add_choice(parser)
    _add_time(parser, "--from", "time of the batch before the changes", dest="older", required=True)
    _add_time(parser, "--to", "batch time; the last one by default", dest="newer")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N lines; all by default")
    parser.set_defaults(run=_diff)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--operator", metavar="UID", help="uid of the operator, if there are several"
    )
    parser.add_argument("--store", metavar="NAME", help="name of the store, if there are several")
    parser.add_argument("--partition", type=int, metavar="N", help="one partition only")
    parser.add_argument(
        "--unpickle",
        action="store_true",
        help="load objects of any class; everyone who can write the checkpoint can then run code",
    )
    add_json(parser)


def _add_time(parser: argparse.ArgumentParser, name: str, text: str, **arguments: Any) -> None:
    """Add an argument that takes the time of a batch."""
    parser.add_argument(name, type=time_ms, metavar="TIME", help=text, **arguments)


def _record_at(log: CommitLog, time_ms: int | None) -> CommitRecord:
    """Read the commit record of a batch, or the newest one."""
    times = log.times()
    if not times:
        raise UsageError(f"{log.files.url} has no committed batch; is it a checkpoint?")
    if time_ms is not None and time_ms not in times:
        raise UsageError(f"no batch at {moment(time_ms)} is committed; {nearest(times, time_ms)}")
    return log.read(times[-1] if time_ms is None else time_ms)


def _literal(text: str) -> Any:
    """Return *text* as a Python literal, with lists as tuples, or as it is."""
    try:
        return _tuples(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _read(options: argparse.Namespace) -> CommandResult:
    state = _state(options, options.at)
    if options.arrow is not None:
        return _written(state, options)
    shown = Shower().shown
    rows: Iterator[dict[str, Any]]
    bounds = [None if text is None else _literal(text) for text in (options.start, options.stop)]
    is_range = bounds != [None, None]
    if is_range and options.key is not None:
        raise UsageError("--key is one key; remove --start and --stop, or --key")
    if options.key is None:
        pairs = state.between(*bounds) if is_range else state.pairs()
        rows = ({"key": shown(key), "value": shown(value)} for key, value in pairs)
    else:
        found = [
            {"key": shown(key), "value": shown(value)}
            | ({} if timeout_ms is None else {"timeout_ms": timeout_ms})
            for key, value, timeout_ms in state.row(_literal(options.key), options.key)
        ]
        if not found:
            return CommandResult(rows=(), note=_no_key(options.key, state), status=FAILED)
        rows = iter(found)
    return CommandResult(rows=_counted(islice(rows, options.limit)), note=_age_of(state))


def _written(state: OperatorState, options: argparse.Namespace) -> CommandResult:
    parts = (options.key, options.start, options.stop, options.limit)
    if parts != (None,) * len(parts):
        raise UsageError("--arrow writes the whole state; remove --key, --start, --stop, --limit")
    if isinstance(state.where, StoreCommit):
        raise UsageError(f"the state of {state.uid} is in a store, not in Arrow blocks")
    try:
        keys = write_arrow(state.payloads(), options.arrow)
    except FileExistsError:
        raise UsageError(f"{options.arrow} exists already; give a new file") from None
    except ValueError as error:
        raise UsageError(f"cannot write the state of {state.uid}: {error}") from error
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
    """Yield *rows*, and raise ValueError after the last if part of them cannot be shown."""
    reasons: list[str] = []
    for row in rows:
        reasons += [part.reason for part in row.values() if isinstance(part, NotShown)][:1]
        yield row
    if reasons:
        first = f"; the first: {reasons[0]}"
        raise ValueError(f"{len(reasons)} rows could not be shown completely{first}")


def _diff(options: argparse.Namespace) -> CommandResult:
    older, newer = _state(options, options.older), _state(options, options.newer)
    return CommandResult(
        rows=_counted(islice(state_differences(older.pairs(), newer.pairs()), options.limit))
    )


def _state(options: argparse.Namespace, time_ms: int | None) -> OperatorState:
    files = open_stream_at(options.url, options.stream)
    if options.unpickle:
        files = require_trusted(files)
    log = CommitLog(files)
    record = _record_at(log, time_ms)
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


def states_after(files: Files, record_id: RecordId) -> dict[tuple[str, str], OperatorState]:
    """Return the states that were written after exactly this batch, by uid and store.

    The record may be one that does not count any more. Raises FileNotFoundError or CheckpointError.
    """
    log = CommitLog(files)
    states = _states(log, log.read_record(record_id), unpickle=False)
    return {
        (state.uid, state.where.store if isinstance(state.where, StoreCommit) else ""): state
        for state in states
        if state.read_ms == record_id.time_ms
    }

"""The two logs of a query: what a batch reads, before it runs, and that it ran, after it.

::

    <checkpoint>/metadata        the id of the query
    <checkpoint>/runs/<epoch>    each run that took the checkpoint over
    <checkpoint>/offsets/<id>    batch id, its time, watermarks, pinned settings, end of each source
    <checkpoint>/commits/<id>    what its state is now, and the watermarks after it
    <checkpoint>/stores/...      the state
    <checkpoint>/sources/<n>/    what a source keeps for itself

A file of the logs is created once, whole, and never changed. Who finds the file of a batch that it
has not written itself is not alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoint import AlreadyExistsError, Files, StoreCommit
from dstreams.errors import RestartError

_METADATA = "metadata"
_RUNS = "runs/"
_OFFSETS = "offsets/"
_VERSION = "v1"


@dataclass(frozen=True)
class OffsetRecord:
    """What a batch is: written before anything of it is read.

    Args:
        batch_id: its number, from 0.
        timestamp_ms: its time, milliseconds since the epoch.
        watermark_ms: what evicts state and fires timers in it.
        late_watermark_ms: what drops late records in it.
        ends: for each source, the offset it reads up to, as JSON; None where the source has none.
        conf: the pinned settings.
        operators: what the stateful operators are, in the order of the plan.
    """

    batch_id: int
    timestamp_ms: int
    watermark_ms: int
    late_watermark_ms: int
    ends: tuple[Any, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    operators: tuple[Mapping[str, Any], ...] = ()

    def to_text(self) -> str:
        """Write the record as text, its digest at the end."""
        metadata = {
            "batchId": self.batch_id,
            "batchWatermarkMs": self.watermark_ms,
            "lateWatermarkMs": self.late_watermark_ms,
            "batchTimestampMs": self.timestamp_ms,
            "conf": dict(self.conf),
            "operators": [dict(operator) for operator in self.operators],
        }
        lines = [_VERSION, json.dumps(metadata, sort_keys=True)]
        lines += ["-" if end is None else json.dumps(end, sort_keys=True) for end in self.ends]
        return _sealed("\n".join(lines))

    @classmethod
    def from_text(cls, text: str, where: str) -> OffsetRecord:
        """Read what :meth:`to_text` wrote.

        Raises:
            RestartError: the file is damaged, or of a version that is not known.
        """
        lines = _opened(text, where).split("\n")
        if lines[0] != _VERSION:
            raise RestartError(f"{where} is of version {lines[0]!r}, this release reads {_VERSION}")
        metadata = json.loads(lines[1])
        return cls(
            batch_id=metadata["batchId"],
            timestamp_ms=metadata["batchTimestampMs"],
            watermark_ms=metadata["batchWatermarkMs"],
            late_watermark_ms=metadata["lateWatermarkMs"],
            ends=tuple(None if line == "-" else json.loads(line) for line in lines[2:]),
            conf=metadata["conf"],
            operators=tuple(metadata["operators"]),
        )


class OffsetLog:
    """The offset records of a query, one file for each batch.

    Args:
        files: the checkpoint.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def begin(self, record: OffsetRecord) -> None:
        """Write the record of a batch, if there is none yet.

        Raises:
            RestartError: there is one: another query runs on this checkpoint.
        """
        name = _offsets_name(record.batch_id)
        try:
            self._files.create(name, [record.to_text().encode()])
        except AlreadyExistsError as error:
            raise RestartError(
                f"multiple streaming queries are concurrently using {self._files.url}: the offsets "
                f"of batch {record.batch_id} were written by another one; stop this one, or give "
                "it a checkpoint of its own"
            ) from error

    def read(self, batch_id: int) -> OffsetRecord | None:
        """Read the record of a batch, None if there is none.

        Raises:
            RestartError: it is damaged.
        """
        name = _offsets_name(batch_id)
        if not self._files.exists(name):
            return None
        where = f"{self._files.url}/{name}"
        return OffsetRecord.from_text(self._files.read(name).decode(), where)

    def ids(self) -> list[int]:
        """Return the numbers of all batches that have a record, sorted."""
        names = (name.removeprefix(_OFFSETS) for name in self._files.list(_OFFSETS))
        return sorted(int(name) for name in names if name.isdecimal())

    def purge(self, before: int) -> None:
        """Delete the records of batches below a number."""
        for batch_id in self.ids():
            if batch_id < before:
                self._files.delete(_offsets_name(batch_id))


def _offsets_name(batch_id: int) -> str:
    return f"{_OFFSETS}{batch_id:016d}"


def query_id(files: Files, new_id: str) -> str:
    """Return the id of the query whose checkpoint this is, *new_id* if it begins here.

    Raises:
        RestartError: there is a log, but not the id of its query.
    """
    if files.exists(_METADATA):
        return str(json.loads(_opened(files.read(_METADATA).decode(), _METADATA))["id"])
    if files.list(_OFFSETS) or files.list("commits/"):
        raise RestartError(
            f"{files.url} has logs of a query but no file 'metadata', which says of which; restore "
            "the file, or begin a new checkpoint"
        )
    text = _sealed(json.dumps({"id": new_id}))
    try:
        files.create(_METADATA, [text.encode()])
    except AlreadyExistsError:
        return query_id(files, new_id)
    return new_id


def claim_epoch(files: Files, facts: Mapping[str, str]) -> int:
    """Take a checkpoint over, and return the number of this run, from 1."""
    epoch = max(_epochs(files), default=0)
    while True:
        epoch += 1
        try:
            files.create(_epoch_name(epoch), [_sealed(json.dumps(dict(facts))).encode()])
        except AlreadyExistsError:
            continue
        return epoch


def newer_run(files: Files, epoch: int) -> str | None:
    """Return what is known of a run that took the checkpoint over after *epoch*, None if none did.

    It costs one look for one file.
    """
    name = _epoch_name(epoch + 1)
    return _opened(files.read(name).decode(), name) if files.exists(name) else None


def _epochs(files: Files) -> Sequence[int]:
    names = (name.removeprefix(_RUNS) for name in files.list(_RUNS))
    return [int(name) for name in names if name.isdecimal()]


def _epoch_name(epoch: int) -> str:
    return f"{_RUNS}{epoch:08d}"


def _sealed(text: str) -> str:
    return f"{text}\n#{_digest(text)}\n"


def _opened(text: str, where: str) -> str:
    body, _, seal = text.rstrip("\n").rpartition("\n#")
    if not body or seal != _digest(body):
        raise RestartError(
            f"{where} is damaged: its digest does not fit; restore the checkpoint from a copy, or "
            "begin a new one"
        )
    return body


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_COMMITS = "commits/"


@dataclass(frozen=True)
class QueryCommit:
    """What a batch left behind: written when its output was taken.

    Args:
        batch_id: its number.
        stores: the state of each stateful operator.
        watermarks: after the batch, as JSON.
        next_timeout_ms: when the earliest timer of processing time is due, -1 without one.
    """

    batch_id: int
    stores: tuple[StoreCommit, ...] = ()
    watermarks: Mapping[str, Any] = field(default_factory=dict)
    next_timeout_ms: int = -1

    def to_text(self) -> str:
        """Write the record as text, its digest at the end."""
        data = {
            "batchId": self.batch_id,
            "nextBatchWatermarkMs": self.watermarks.get("query", 0),
            "watermarks": dict(self.watermarks),
            "nextTimeoutMs": self.next_timeout_ms,
            "stores": [store.to_json() for store in self.stores],
        }
        return _sealed(f"{_VERSION}\n{json.dumps(data, sort_keys=True)}")

    @classmethod
    def from_text(cls, text: str, where: str) -> QueryCommit:
        """Read what :meth:`to_text` wrote.

        Raises:
            RestartError: the file is damaged, or of a version that is not known.
        """
        version, _, body = _opened(text, where).partition("\n")
        if version != _VERSION:
            raise RestartError(f"{where} is of version {version!r}, this release reads {_VERSION}")
        data = json.loads(body)
        return cls(
            batch_id=data["batchId"],
            stores=tuple(StoreCommit.from_json(store) for store in data["stores"]),
            watermarks=data["watermarks"],
            next_timeout_ms=data["nextTimeoutMs"],
        )


class QueryCommitLog:
    """The commit records of a query, one file for each batch.

    Args:
        files: the checkpoint.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def commit(self, record: QueryCommit) -> None:
        """Write the record of a batch, if there is none yet.

        Raises:
            RestartError: there is one: another query runs on this checkpoint.
        """
        try:
            self._files.create(_commits_name(record.batch_id), [record.to_text().encode()])
        except AlreadyExistsError as error:
            raise RestartError(
                f"multiple streaming queries are concurrently using {self._files.url}: batch "
                f"{record.batch_id} was committed by another one; stop this one, or give it a "
                "checkpoint of its own"
            ) from error

    def read(self, batch_id: int) -> QueryCommit | None:
        """Read the record of a batch, None if there is none.

        Raises:
            RestartError: it is damaged.
        """
        name = _commits_name(batch_id)
        if not self._files.exists(name):
            return None
        where = f"{self._files.url}/{name}"
        return QueryCommit.from_text(self._files.read(name).decode(), where)

    def ids(self) -> list[int]:
        """Return the numbers of all committed batches, sorted."""
        names = (name.removeprefix(_COMMITS) for name in self._files.list(_COMMITS))
        return sorted(int(name) for name in names if name.isdecimal())

    def delete(self, batch_id: int) -> None:
        """Delete the record of a batch; that there is none is fine."""
        self._files.delete(_commits_name(batch_id))


def _commits_name(batch_id: int) -> str:
    return f"{_COMMITS}{batch_id:016d}"

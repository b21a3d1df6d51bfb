"""The static rows of a query: read by jobs of their own, and used by many batches."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.rdd import PipelinedRDD

from checkpoint import new_attempt
from checkpoint.state_store import ValueCodec, delete_static, read_static, write_static
from dstreams.engine.stream_checkpoint import StreamCheckpoint
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import CHUNK_ROWS
from dstreams.spark.job_labels import label_jobs
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.worker_gc import settle_worker
from dstreams.state.function_errors import NotStorableError, refusal
from dstreams.structured.conf import BROADCAST_THRESHOLD, QueryConf
from dstreams.structured.execution.batch_execution import execute_batch
from dstreams.structured.execution.query_records import QueryBatch
from dstreams.structured.operators.static_join import StaticPartitions, StaticSide, StaticTable

_TOO_MANY = b""
"""Replaces the rows of a partition beyond the limit; no pickle is empty."""


@dataclass(frozen=True)
class _Version:
    """The rows of a side as they were read at a time, with their file in the checkpoint."""

    read_ms: int
    rows: StaticTable | StaticPartitions
    digest: bytes | None = None
    file: Mapping[str, Any] | None = None

    @property
    def fact(self) -> dict[str, Any]:
        return {"read_ms": self.read_ms, "file": self.file}


class StaticData:
    """The static rows of the joins of a query, in versions that begin records name.

    Few rows of a version are in a file of the checkpoint before a batch begins with it, so that the
    batch sees them again after a restart. Many rows are not kept: such a batch sees those that the
    restart has read. A scratch checkpoint, without *log*, keeps none.
    """

    def __init__(
        self,
        sides: Sequence[StaticSide],
        spark: SparkContext,
        conf: QueryConf,
        log: StreamCheckpoint | None,
        codec: ValueCodec,
    ) -> None:
        self._sides = sides
        self._spark = spark
        self._conf = conf
        self._log = log
        self._codec = codec
        self._run = new_attempt()
        self._newest: dict[str, _Version] = {}
        self._read_ms: dict[str, int] = {}
        self._replayed: dict[tuple[str, str], StaticTable] = {}
        self._used_ms: dict[str, int] = {}
        """The time of the newest batch that uses each file of this run."""

    def is_due(self, now_ms: int) -> bool:
        """Return whether the rows of a side are to be read at a time."""
        return any(self._is_due(side, now_ms) for side in self._sides)

    def refresh(self, now_ms: int) -> None:
        """Read the rows that are due.

        Raises InvalidStreamError if there are too many rows to be read again, or rows that cannot
        be stored.
        """
        for side in self._sides:
            if self._is_due(side, now_ms):
                before = self._newest.get(side.uid)
                self._newest[side.uid] = after = self._read(side, before, now_ms)
                self._read_ms[side.uid] = now_ms
                if before is not None and before.rows is not after.rows:
                    _release(before.rows)

    def versions(self) -> dict[str, Any]:
        """Return the newest versions, as begin records name them."""
        return {side.uid: self._newest[side.uid].fact for side in self._sides}

    def of(self, batch: QueryBatch) -> dict[str, StaticTable | StaticPartitions]:
        """Return the rows of a batch, by the uid of their side."""
        return {side.uid: self._rows_of(side, batch) for side in self._sides}

    def newest(self) -> dict[str, StaticTable | StaticPartitions]:
        """Return the rows of the newest versions, by the uid of their side."""
        return {side.uid: self._newest[side.uid].rows for side in self._sides}

    def retire(self) -> None:
        """Delete the files of this run that no begin record names; on any thread."""
        newest = {str(one.file["name"]) for one in self._newest.values() if one.file is not None}
        old = [(name, ms) for name, ms in list(self._used_ms.items()) if name not in newest]
        if self._log is None or not old:
            return
        oldest_ms = self._log.oldest_begun_ms()
        for name, used_ms in old:
            if used_ms < oldest_ms:
                delete_static(self._log.files, name)
                del self._used_ms[name]

    def close(self) -> None:
        """Release the memory of the rows."""
        for version in self._newest.values():
            _release(version.rows)
        for rows in self._replayed.values():
            _release(rows)

    def _is_due(self, side: StaticSide, now_ms: int) -> bool:
        read_ms = self._read_ms.get(side.uid)
        if read_ms is None:
            return True
        return side.refresh_ms is not None and now_ms - read_ms >= side.refresh_ms

    def _read(self, side: StaticSide, before: _Version | None, now_ms: int) -> _Version:
        label_jobs(f"static data: {side.uid}")
        rows = execute_batch(side.plan, self._conf, self._spark, now_ms)
        limit_bytes = self._conf.broadcast_bytes
        frames = few_events(rows, side.plan.hasEventTime, limit_bytes)
        if frames is None and side.refresh_ms is not None:
            raise InvalidStreamError(
                f"{side.where}: static data with refresh must fit into memory, because the "
                f"checkpoint keeps each version, got more than {limit_bytes} bytes; raise "
                f"{BROADCAST_THRESHOLD}, or remove refresh"
            )
        if frames is None:
            return _Version(now_ms, self._placed(side, rows))
        digest = hashlib.blake2b(b"".join(frames)).digest()
        if before is not None and before.digest == digest:
            return before
        chunks = [pickle.loads(frame) for frame in frames]
        file = self._write(side, chunks, now_ms)
        return _Version(now_ms, self._table(side, chunks), digest, file)

    def _write(self, side: StaticSide, chunks: list[Any], now_ms: int) -> dict[str, Any] | None:
        log = self._log
        if log is None:
            return None
        try:
            file = write_static(
                log.files, log.stream_id, side.uid, now_ms, log.epoch, self._codec, chunks
            )
        except Exception as error:
            text = refusal(error)
            if text is None:
                raise
            raise NotStorableError(
                f"{side.where}: static rows cannot be stored in the checkpoint, for a batch that "
                f"runs again: {text}"
            ) from error
        self._used_ms[str(file["name"])] = now_ms
        return file

    def _rows_of(self, side: StaticSide, batch: QueryBatch) -> StaticTable | StaticPartitions:
        newest, fact = self._newest[side.uid], batch.static.get(side.uid)
        file = None if fact is None else fact["file"]
        if file is not None and file["name"] in self._used_ms:
            self._used_ms[file["name"]] = batch.begun.batch_time_ms
        if file is None or (newest.file is not None and newest.file["name"] == file["name"]):
            return newest.rows
        assert self._log is not None, "only a checkpoint has files"
        place = side.uid, file["name"]
        if place not in self._replayed:
            chunks = read_static(self._log.files, batch.begun, side.uid, self._codec)
            self._replayed[place] = self._table(side, list(chunks))
        return self._replayed[place]

    def _table(self, side: StaticSide, chunks: list[Any]) -> StaticTable:
        events = [event for chunk in chunks for event in chunk]
        table = self._spark.broadcast(side.table(events))
        return StaticTable(table, len(events), f"{self._run}-{side.uid}", new_attempt())

    def _placed(self, side: StaticSide, rows: RDD[Any]) -> StaticPartitions:
        pairs = side.pairs(rows, StablePartitioner(self._conf.shuffle_partitions))
        pairs.persist(StorageLevel.MEMORY_AND_DISK)
        pairs.count()  # read now, once
        return StaticPartitions(pairs)


def _release(rows: StaticTable | StaticPartitions) -> None:
    with suppress(Py4JError, OSError):  # after Spark has stopped, nothing is left
        if isinstance(rows, StaticTable):
            rows.table.unpersist()
        else:
            rows.pairs.unpersist()


def few_events(rows: RDD[Any], are_events: bool, limit_bytes: int) -> list[bytes] | None:
    """Return pickled lists of events, in one job; None if they are larger than the limit."""
    if limit_bytes < 0:
        return None
    frames = PipelinedRDD(rows, _PackEvents(are_events, limit_bytes)).collect()
    if _TOO_MANY in frames or sum(map(len, frames)) > limit_bytes:
        return None
    return list(frames)


@dataclass(frozen=True)
class _PackEvents:
    """Task: rows -> pickled lists of events, up to a limit of bytes."""

    are_events: bool
    limit_bytes: int

    def __call__(self, _: int, rows: Iterable[Any]) -> Iterator[bytes]:
        settle_worker()
        rest = iter(rows) if self.are_events else ((None, row) for row in rows)
        size_bytes = 0
        while chunk := list(islice(rest, CHUNK_ROWS)):
            frame = pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL)
            size_bytes += len(frame)
            if size_bytes <= self.limit_bytes:
                yield frame
            # The rest is read too, because Spark reuses a worker only then.
        if size_bytes > self.limit_bytes:
            yield _TOO_MANY

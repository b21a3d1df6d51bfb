"""A receiver as a source: received blocks wait in the driver for their batch."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from checkpoint import INPUT_BLOCKS, INPUT_END, InputPast, ReceivedBlocks, blocks_in
from dstreams.errors import InvalidStreamError
from dstreams.monitoring.events import ReceiverInfo
from dstreams.sources.received_blocks import BlockQueue, ReceivedBlock, decode_records
from dstreams.sources.receiver import Receiver, ReceiverSupervisor
from dstreams.sources.source import PlannedInput, Source, SourceEnvironment, SourceReader

logger = logging.getLogger(__name__)

_CLOSE_S = 2.0

# A smaller batch is one task: a second task costs more than it saves.
_PARTITION_BYTES = 16 << 10


@dataclass(frozen=True, eq=False)
class ReceiverSource(Source):
    """Records that *receiver* stores.

    A batch takes the blocks that are complete at its time. With a limit of records per second, it
    takes whole blocks until it has the records of a batch duration. Blocks wait in the driver, up
    to ``spark.dstreams.receiver.maxBufferBytes``; then the receiver waits.

    Without a write-ahead log, records that are received and not processed are lost when the driver
    dies. With one, a block is on disk before :meth:`Receiver.storeAll` returns, and the begin
    record of a batch names its blocks. After a restart, the first new batch reads the blocks that
    no earlier batch has read.
    """

    receiver: Receiver
    stream_id: int
    label: str

    @property
    def name(self) -> str:
        return self.label

    def open(self, environment: SourceEnvironment) -> ReceiverReader:
        return ReceiverReader(self, environment)


class ReceiverReader(SourceReader):
    """Runs the receiver and reads its blocks; an offset counts batches with blocks.

    Raises:
        InvalidStreamError: a write-ahead log is enabled without a checkpoint directory.
    """

    rate_limit = "receiver"

    def __init__(self, source: ReceiverSource, environment: SourceEnvironment) -> None:
        settings = environment.settings
        self._source = source
        self._environment = environment
        self._files = _received_blocks(source, environment)
        write = None if self._files is None else self._files.write
        self._queue = BlockQueue(source.name, settings.receiver_max_buffer_bytes, write)
        info = ReceiverInfo(source.stream_id, source.name, False, socket.gethostname(), "driver")
        self._supervisor = ReceiverSupervisor(source.receiver, info, self._queue.put, environment)
        self._stopping = False
        self._has_more = False
        self._closing = False
        rate = settings.receiver_max_rate
        self._batch_records = None if rate is None else rate * environment.batch_ms / 1000
        self._credit = 0.0
        self._taken: dict[int, list[ReceivedBlock]] = {}
        self._named: dict[int, list[str]] = {}  # names of blocks, by the offset of their batch

    @property
    def not_replayable_reason(self) -> str | None:
        if self._files is not None:
            return None
        return (
            "they were received without a write-ahead log; set "
            "spark.streaming.receiver.writeAheadLog.enable"
        )

    def start(self) -> None:
        """Restore blocks of earlier runs, and start to receive.

        Raises:
            CheckpointError: blocks of earlier runs cannot be read.
        """
        if self._files is not None:
            past = self._environment.past()
            self._named = {
                int(facts[INPUT_END]): [ref.name for ref in blocks]
                for facts in past.batches.values()
                if (blocks := blocks_in(facts, self._source.name))
            }
            self._restore(self._files, past)
        self._supervisor.start()

    def _restore(self, files: ReceivedBlocks, past: InputPast) -> None:
        """Queue the blocks that no batch has read."""
        retired = set((past.facts or {}).get(INPUT_BLOCKS, ()))
        left = retired.intersection(files.names())  # a crash interrupted their deletion
        if left:
            files.delete(sorted(left))
        found = files.read_others({name for names in self._named.values() for name in names})
        self._queue.restore(ReceivedBlock(payload, ref.records, ref) for ref, payload in found)

    def update_rate(self, records_per_second: float) -> None:
        """Limit the receiver, at most to ``maxRate``; received blocks are not held back."""
        self._supervisor.update_rate(records_per_second)

    def plan(self, start: Any, time_ms: int) -> PlannedInput:
        end = int(start or 0) + 1
        blocks = self._taken.get(end)  # set if the previous plan was not begun
        if blocks is None:
            blocks = self._queue.peek(self._next_credit())
            self._queue.take(blocks, end)
            self._credit -= sum(block.records for block in blocks)
        records = sum(block.records for block in blocks)
        size = sum(len(block.payload) for block in blocks)
        description = f"{records} records in {len(blocks)} blocks, {size} bytes"
        if not blocks:
            return PlannedInput(time_ms, start, start, description=description)
        self._taken[end] = blocks
        facts: dict[str, Any] = {}
        if self._files is not None:
            facts[INPUT_BLOCKS] = refs = [block.ref for block in blocks if block.ref]
            self._named[end] = [ref.name for ref in refs]
        return PlannedInput(time_ms, start, end, facts, records, description)

    def _next_credit(self) -> float | None:
        """Return the number of records for the next batch, None for all."""
        if self._batch_records is None or self._stopping:
            return None
        # Records above the limit, which complete a block, count against the next batch.
        self._credit = min(self._credit + self._batch_records, self._batch_records)
        return self._credit

    def read(self, planned: PlannedInput) -> RDD[Any]:
        """Return the records of the blocks of a batch.

        Raises:
            CheckpointError: a block of an earlier run is missing.
        """
        spark = self._environment.spark
        if planned.start == planned.end:
            return spark.emptyRDD()
        self._queue.make_room(planned.end)
        payloads = self.payloads(planned)
        if not payloads:  # received by an earlier run without a write-ahead log
            logger.warning(
                "%s: lost the records of the batch at %d ms, which were received without a "
                "write-ahead log",
                self._source.name,
                planned.time_ms,
            )
            return spark.emptyRDD()
        size = sum(map(len, payloads))
        most = min(spark.defaultParallelism, len(payloads), size // _PARTITION_BYTES)
        return spark.parallelize(payloads, max(1, most)).mapPartitions(decode_records)

    def payloads(self, planned: PlannedInput) -> list[bytes]:
        """Return the blocks of a batch from memory or from the write-ahead log."""
        taken = self._taken.get(planned.end)
        if taken is not None or self._files is None:
            return [block.payload for block in taken or ()]
        return [self._files.read(ref) for ref in blocks_in(planned.facts, self._source.name)]

    def commit(self, end: Any) -> None:
        # Copied, because another thread may plan a batch.
        for number in tuple(self._taken):
            if number <= int(end or 0):
                del self._taken[number]

    def release(self, end: Any) -> None:
        self._queue.make_room(int(end or 0))

    def snapshot_size(self) -> int | None:
        """Return the number of blocks that are not retired; None without a write-ahead log."""
        # Copied, because another thread may plan a batch.
        return None if self._files is None else sum(map(len, tuple(self._named.values())))

    def snapshot(self, end: Any) -> Mapping[str, object]:
        """Return the blocks of batches up to an offset, which are deleted next."""
        named, upto = tuple(self._named.items()), int(end or 0)
        return {INPUT_BLOCKS: [name for at, names in named if at <= upto for name in names]}

    def retire(self, end: Any) -> None:
        """Delete the blocks of batches up to an offset: no later run reads them again."""
        # Copied, because another thread may plan a batch.
        for at, names in tuple(self._named.items()):
            if self._files is not None and at <= int(end or 0):
                self._files.delete(names)
                del self._named[at]

    def stop_receiving(self) -> None:
        self._stopping = True
        # The last batch reads everything, so the receiver must not wait for room.
        self._queue.drain()
        self._supervisor.stop("stopped by the driver")
        settings = self._environment.settings
        timeout_ms = settings.stop_batch_timeout_ms
        if self._closing:
            self._supervisor.wait(_CLOSE_S)
        elif not self._supervisor.wait(timeout_ms / 1000) and not self._closing:
            self._has_more = True
            logger.warning(
                "%s: the receiver did not stop within %d ms; records not yet stored are lost",
                self._source.name,
                timeout_ms,
            )

    def has_pending(self) -> bool:
        return not self._queue.is_empty()

    def waiting_records(self) -> int | None:
        """Return the number of stored records without a batch; None if the receiver had more."""
        return None if self._has_more else self._queue.records()

    def close(self) -> None:
        self._closing = True
        self.stop_receiving()
        # Abandoned first, so that a block that the closed queue rejects is not reported.
        self._supervisor.abandon()
        self._queue.close()


def _received_blocks(
    source: ReceiverSource, environment: SourceEnvironment
) -> ReceivedBlocks | None:
    if not environment.settings.receiver_write_ahead_log:
        return None
    storage = environment.storage
    if storage is None:
        raise InvalidStreamError(
            f"{source.name}: spark.streaming.receiver.writeAheadLog.enable is true without a "
            "checkpoint directory; call ssc.checkpoint(directory) before start()"
        )
    return ReceivedBlocks(storage.files, storage.stream_id, storage.uid, storage.epoch)

"""What a receiver takes in, as a source: blocks that wait in the driver for their batch."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from checkpoint import BlockLog, FileRef
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.events import ReceiverInfo
from dstreams.receiving.block_queue import BlockQueue
from dstreams.receiving.blocks import ReceivedBlock, decode_records
from dstreams.receiving.receiver import Receiver, ReceiverSupervisor
from dstreams.sources.source import PlannedInput, SourceEnvironment

logger = logging.getLogger(__name__)

_CLOSE_S = 2.0

# A batch below this is one task: a second one costs more than it saves.
_PARTITION_BYTES = 16 << 10


@dataclass(frozen=True, eq=False)
class ReceiverSource:
    """Records that *receiver* stores.

    A batch takes the blocks that are complete at its time; with a limit of records a second, not
    more than that times the batch duration, to the next whole block. Blocks wait in the driver: at
    most ``spark.dstreams.receiver.maxBufferBytes``, then the receiver has to wait.

    Without a write-ahead log, what was received and not processed is lost when the driver dies.
    With one, a block is on disk before :meth:`Receiver.storeAll` returns, and so is the record of
    the blocks of a batch before the batch runs. A run that finds them there, of a run before it,
    plans the batches of that run as they were, and has the blocks without a batch in its first.

    Args:
        receiver: the receiver.
        stream_id: number of the input stream.
        name: operation and receiver.
    """

    receiver: Receiver
    stream_id: int
    name: str

    def open(self, environment: SourceEnvironment) -> ReceiverReader:
        return ReceiverReader(self, environment)


class ReceiverReader:
    """Runs the receiver, and gives each batch the blocks that are there.

    Raises:
        InvalidStreamError: a write-ahead log is wanted, and there is no checkpoint directory.
    """

    def __init__(self, source: ReceiverSource, environment: SourceEnvironment) -> None:
        settings = environment.settings
        self._source = source
        self._environment = environment
        self._log = _block_log(source, environment)
        write = None if self._log is None else self._log.write
        self._queue = BlockQueue(source.name, settings.receiver_max_buffer_bytes, write)
        info = ReceiverInfo(source.stream_id, source.name, False, socket.gethostname(), "driver")
        self._supervisor = ReceiverSupervisor(source.receiver, info, self._queue.put, environment)
        self._stopping = False
        self._has_more = False
        self._closing = False
        rate = settings.receiver_max_rate
        self._batch_records = None if rate is None else rate * environment.batch_ms / 1000
        self._credit = 0.0
        self._recorded: set[int] = set()
        # Of earlier runs; read when the first batch of theirs is planned again.
        self._allocated: Mapping[int, Sequence[FileRef]] | None = None
        self._planned_upto_ms = environment.planned_upto_ms
        if self._log is not None and self._planned_upto_ms is not None:
            # A run may have ended between the record of a batch's blocks and that of the batch.
            self._planned_upto_ms = max([self._planned_upto_ms, *self._log.times()])

    def start(self) -> None:
        if self._log is not None:
            self._log.require_allocated(self._environment.begun(self._environment.uid))
            refs = self._log.unallocated()
            self._queue.restore(_read_block(self._log, ref) for ref in refs)
        self._supervisor.start()

    def update_rate(self, records_per_second: float) -> None:
        """Let the receiver take that many records a second; ``maxRate`` is never exceeded.

        What waits already is in the next batch nevertheless: it would only grow older.
        """
        self._supervisor.update_rate(records_per_second)

    def plan(self, batch_time_ms: int) -> PlannedInput:
        before_ms = self._planned_upto_ms
        if self._log is not None and before_ms is not None and batch_time_ms <= before_ms:
            return _planned(batch_time_ms, self._planned_before(batch_time_ms))
        blocks = self._queue.peek(self._next_credit())
        if self._log is not None and blocks:
            refs = [block.ref for block in blocks if block.ref is not None]
            # When this fails, the blocks stay where they are, and the next batch has them.
            self._log.allocate(batch_time_ms, refs)
            self._recorded.add(batch_time_ms)
        self._queue.take(blocks, batch_time_ms)
        planned = _planned(batch_time_ms, blocks)
        self._credit -= planned.records or 0
        return planned

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        """How much; which blocks, the record of the batch says, if there is one."""
        is_logged = self._log is not None
        return {"blocks": len(planned.content), "records": planned.records, "logged": is_logged}

    def replay(self, batch_time_ms: int, recorded: Mapping[str, Any]) -> PlannedInput:
        """Take the blocks that the record of the batch names.

        Without a write-ahead log they are gone with the driver that had them; the log says so.

        Raises:
            SourceError: the record is not there any more.
        """
        blocks = self._planned_before(batch_time_ms)
        if len(blocks) == recorded["blocks"]:
            return _planned(batch_time_ms, blocks)
        if self._log is not None:
            raise SourceError(
                f"{self._source.name}: the batch at {batch_time_ms} ms has read "
                f"{recorded['blocks']} blocks, and {len(blocks)} of them are recorded; restore the "
                "directory 'received' of the checkpoint from a copy or an export"
            )
        logger.warning(
            "%s: %d records of the batch at %d ms were received without a write-ahead log, and are "
            "lost; set spark.streaming.receiver.writeAheadLog.enable",
            self._source.name,
            recorded["records"],
            batch_time_ms,
        )
        return _planned(batch_time_ms, ())

    def _planned_before(self, batch_time_ms: int) -> list[ReceivedBlock]:
        """The blocks that an earlier run gave to a batch; without a record it gave none."""
        if self._log is None:
            return []
        if self._allocated is None:
            self._allocated = self._log.allocated()
        self._recorded.add(batch_time_ms)
        return [_read_block(self._log, ref) for ref in self._allocated.get(batch_time_ms, ())]

    def _next_credit(self) -> float | None:
        """How many records the next batch may have, None for all."""
        if self._batch_records is None or self._stopping:
            return None
        # What a batch had too much, for the sake of a whole block, the next has less.
        self._credit = min(self._credit + self._batch_records, self._batch_records)
        return self._credit

    def rdd(self, planned: PlannedInput) -> RDD[Any]:
        self._queue.make_room(planned.batch_time_ms)
        blocks: tuple[ReceivedBlock, ...] = planned.content
        spark = self._environment.spark
        if not blocks:
            return spark.emptyRDD()
        payloads = [block.payload for block in blocks]
        size = sum(map(len, payloads))
        most = min(spark.defaultParallelism, len(payloads), size // _PARTITION_BYTES)
        return spark.parallelize(payloads, max(1, most)).mapPartitions(decode_records)

    @property
    def forgets(self) -> bool:
        """Whether what batches have read is gone with this driver."""
        return self._log is None

    def release(self, batch_time_ms: int) -> None:
        self._queue.make_room(batch_time_ms)

    def retire(self, batch_time_ms: int) -> None:
        """Delete the files of batches up to this time: no later run reads them again."""
        # A copy: another thread may plan a batch meanwhile.
        retired = {time_ms for time_ms in tuple(self._recorded) if time_ms <= batch_time_ms}
        if self._log is not None and retired:
            self._log.release(batch_time_ms)
            self._recorded -= retired

    def stop_receiving(self) -> None:
        self._stopping = True
        # The last batch takes all there is, so nothing that ends may have to wait for room.
        self._queue.drain()
        self._supervisor.stop("stopped by the driver")
        settings = self._environment.settings
        timeout_ms = settings.graceful_stop_timeout_ms or settings.wait_for_batches_ms
        if self._closing:
            self._supervisor.wait(_CLOSE_S)
        elif not self._supervisor.wait(timeout_ms / 1000) and not self._closing:
            self._has_more = True
            logger.warning(
                "%s did not end within %d ms; what it has not stored is lost",
                self._source.name,
                timeout_ms,
            )

    def has_pending(self) -> bool:
        return not self._queue.is_empty()

    def waiting_records(self) -> int | None:
        """Records that were stored and are in no batch; None if the receiver still had more."""
        return None if self._has_more else self._queue.records()

    def close(self) -> None:
        self._closing = True
        self.stop_receiving()
        # Abandoned first: then nobody reports a block that the closed queue refuses.
        self._supervisor.abandon()
        self._queue.close()


def _planned(batch_time_ms: int, blocks: Sequence[ReceivedBlock]) -> PlannedInput:
    records = sum(block.records for block in blocks)
    size = sum(len(block.payload) for block in blocks)
    description = f"{records} records in {len(blocks)} blocks, {size} bytes"
    return PlannedInput(batch_time_ms, tuple(blocks), records, description)


def _read_block(log: BlockLog, ref: FileRef) -> ReceivedBlock:
    return ReceivedBlock(log.read(ref), ref.records, ref)


def _block_log(source: ReceiverSource, environment: SourceEnvironment) -> BlockLog | None:
    if not environment.settings.receiver_write_ahead_log:
        return None
    if environment.open_files is None:
        raise InvalidStreamError(
            f"{source.name}: spark.streaming.receiver.writeAheadLog.enable is true, and there is "
            "no checkpoint directory to write to; call ssc.checkpoint(directory) before start()"
        )
    files = environment.open_files()
    ids = (environment.run_id, environment.uid)
    # A driver that has claimed its epoch has one that is newer than all there are.
    epoch = max(environment.epoch, BlockLog(files, *ids, 0).last_epoch() + 1)
    return BlockLog(files, *ids, epoch)

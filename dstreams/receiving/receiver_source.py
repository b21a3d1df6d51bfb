"""What a receiver takes in, as a source: blocks that wait in the driver for their batch."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from checkpoint import INPUT_BLOCKS, InputPast, ReceivedBlocks, blocks_in
from dstreams.errors import InvalidStreamError
from dstreams.events import ReceiverInfo
from dstreams.receiving.block_queue import BlockQueue
from dstreams.receiving.pickled_block import ReceivedBlock, decode_records
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
    With one, a block is on disk before :meth:`Receiver.storeAll` returns, and the begin record of a
    batch names its blocks. A run that finds them there, of a run before it, plans the batches of
    that run as they were, and has the blocks without a batch in its first.

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
        self._named: dict[int, list[str]] = {}  # names of blocks, by batch
        self._begun_upto_ms = -1

    def start(self) -> None:
        """Take up what earlier runs have received, and begin to receive.

        Raises:
            CheckpointError: what earlier runs have received cannot be read.
        """
        if self._files is not None:
            past = self._environment.past(self._environment.uid)
            self._begun_upto_ms = past.begun_ms
            self._named = {
                time_ms: [ref.name for ref in blocks_in(facts, self._source.name)]
                for time_ms, facts in past.batches.items()
            }
            self._take_up(self._files, past)
        self._supervisor.start()

    def _take_up(self, files: ReceivedBlocks, past: InputPast) -> None:
        """Let the first batch have the blocks that no batch has."""
        retired = set((past.facts or {}).get(INPUT_BLOCKS, ()))
        left = retired.intersection(files.names())  # its deletion was cut off
        if left:
            files.delete(sorted(left))
        found = files.read_others({name for names in self._named.values() for name in names})
        self._queue.restore(ReceivedBlock(payload, ref.records, ref) for ref, payload in found)

    def update_rate(self, records_per_second: float) -> None:
        """Let the receiver take that many records a second; ``maxRate`` is never exceeded.

        What waits already is in the next batch nevertheless: it would only grow older.
        """
        self._supervisor.update_rate(records_per_second)

    def plan(self, batch_time_ms: int) -> PlannedInput:
        if batch_time_ms <= self._begun_upto_ms:  # it did without this input, and does again
            return _planned(batch_time_ms, ())
        blocks = self._queue.peek(self._next_credit())
        self._queue.take(blocks, batch_time_ms)
        planned = _planned(batch_time_ms, blocks)
        self._credit -= planned.records or 0
        if self._files is not None:
            self._named[batch_time_ms] = [block.ref.name for block in blocks if block.ref]
        return planned

    def recorded(self, planned: PlannedInput) -> Mapping[str, object]:
        """Which blocks, and how much; without a write-ahead log, how much."""
        facts: dict[str, object] = {"records": planned.records}
        if self._files is not None and planned.content:
            facts[INPUT_BLOCKS] = [block.ref for block in planned.content]
        return facts

    def replay(self, batch_time_ms: int, recorded: Mapping[str, Any]) -> PlannedInput:
        """Take the same blocks again.

        Without a write-ahead log they are gone with the driver that had them; the log says so.

        Raises:
            CheckpointError: a block is not there any more.
        """
        refs = blocks_in(recorded, self._source.name)
        if refs and self._files is not None:
            read = self._files.read
            blocks = [ReceivedBlock(read(ref), ref.records, ref) for ref in refs]
            return _planned(batch_time_ms, blocks)
        if recorded["records"]:
            logger.warning(
                "%s: %d records of the batch at %d ms were received without a write-ahead log, and "
                "are lost; set spark.streaming.receiver.writeAheadLog.enable",
                self._source.name,
                recorded["records"],
                batch_time_ms,
            )
        return _planned(batch_time_ms, ())

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
        return self._files is None

    def release(self, batch_time_ms: int) -> None:
        self._queue.make_room(batch_time_ms)

    def snapshot_size(self) -> int | None:
        """How many blocks batches have that are not retired; None without a write-ahead log."""
        # A copy: another thread may plan a batch meanwhile.
        return None if self._files is None else sum(map(len, tuple(self._named.values())))

    def snapshot(self, upto_ms: int) -> Mapping[str, object]:
        """The blocks of batches up to a time, which are deleted next."""
        named = tuple(self._named.items())
        return {INPUT_BLOCKS: [name for ms, names in named if ms <= upto_ms for name in names]}

    def retire(self, batch_time_ms: int) -> None:
        """Delete the blocks of batches up to this time: no later run reads them again."""
        # A copy: another thread may plan a batch meanwhile.
        for time_ms, names in tuple(self._named.items()):
            if time_ms <= batch_time_ms:
                if self._files is not None and names:
                    self._files.delete(names)
                del self._named[time_ms]

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


def _received_blocks(
    source: ReceiverSource, environment: SourceEnvironment
) -> ReceivedBlocks | None:
    if not environment.settings.receiver_write_ahead_log:
        return None
    if environment.open_files is None:
        raise InvalidStreamError(
            f"{source.name}: spark.streaming.receiver.writeAheadLog.enable is true, and there is "
            "no checkpoint directory to write to; call ssc.checkpoint(directory) before start()"
        )
    files, run_id = environment.open_files(), environment.run_id
    return ReceivedBlocks(files, run_id, environment.uid, environment.epoch)

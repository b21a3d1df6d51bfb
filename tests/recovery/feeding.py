"""A receiver that a program feeds by hand: each block counts when ``feed`` returns."""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import Any

from pyspark import RDD, SparkContext

from dstreams import Receiver, Settings, StreamingContext, StreamLifecycleError
from tests.recovery.application import enter, total, with_id

_WAIT_S = 180

_blocks: queue.Queue[tuple[list[Any], threading.Event]] = queue.Queue()


def feed(records: list[Any]) -> None:
    """Have one block received, and return when it is stored."""
    stored = threading.Event()
    _blocks.put((records, stored))
    if not stored.wait(_WAIT_S):
        raise TimeoutError(f"{records} were not stored")


class HandFed(Receiver):
    """Stores what is fed, a block each."""

    def onStart(self) -> None:
        threading.Thread(target=self._receive, name="hand-fed", daemon=True).start()

    def onStop(self) -> None:
        pass

    def _receive(self) -> None:
        while not self.isStopped():
            try:
                records, stored = _blocks.get(timeout=0.1)
            except queue.Empty:
                continue
            try:
                self.storeAll(records)
            except StreamLifecycleError:  # stopped just now: they are for the next life
                _blocks.put((records, stored))
                return
            stored.set()


late: dict[int, list[Any]] = {}
"""What an output feeds once it has run, by the number of its batch: blocks without a batch."""


def enter_and_feed(directory: str, name: str, batch_id: int, rdd: RDD[Any]) -> None:
    """Write what an output saw into the ledger, and feed what comes late."""
    enter(directory, name, batch_id, rdd)
    if batch_id in late:
        feed(late.pop(batch_id))


def parity(number: int) -> tuple[int, int]:
    return number % 2, number


def define(directory: str, spark: SparkContext) -> StreamingContext:
    """Numbers from a receiver with a write-ahead log, and their sums by parity."""
    ssc = StreamingContext(spark, 1, settings=Settings(receiver_write_ahead_log=True))
    ssc.checkpoint(f"{directory}/checkpoint")
    numbers = ssc.receiverStream(HandFed(), uid="fed")
    numbers.foreachRDD(with_id(partial(enter_and_feed, directory, "numbers")))
    sums = numbers.map(parity).updateStateByKey(partial(total, 1), uid="sums").checkpoint(3)
    sums.foreachRDD(with_id(partial(enter, directory, "sums")))
    return ssc

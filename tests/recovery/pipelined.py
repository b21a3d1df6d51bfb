"""The application with a backlog: all batches are due at once, and map sides run early.

python pipelined.py DIRECTORY BATCHES
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from dstreams import StreamingContext, tuned_context
from dstreams.testing import ManualClock
from tests.recovery.application import define_streams

_WAIT_S = 120


class LastBatch:
    """A listener that waits for a batch."""

    def __init__(self, time_ms: int) -> None:
        self.time_ms = time_ms
        self.has_ended = threading.Event()

    def onBatchCompleted(self, completed: Any) -> None:
        if completed.batchInfo().batchTime().milliseconds() == self.time_ms:
            self.has_ended.set()


def main() -> None:
    directory, batches = sys.argv[1], int(sys.argv[2])
    logging.basicConfig(filename=f"{directory}/log", format="%(message)s")
    logging.getLogger("dstreams.streams.pipelining").setLevel(logging.DEBUG)
    conf = {
        "spark.default.parallelism": "2",
        "spark.ui.enabled": "false",
        "spark.dstreams.pipelining": "true",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = tuned_context("killed", "local[2,4]", conf)
    clock = ManualClock()

    def setup() -> StreamingContext:
        ssc = StreamingContext(spark, 1, clock=clock)
        define_streams(ssc, directory, 1)
        return ssc

    ssc = StreamingContext.restore(f"{directory}/checkpoint", setup)
    last = LastBatch(1000 * batches)
    ssc.addStreamingListener(last)
    ssc.start()
    clock.advance(1000 * batches)
    assert last.has_ended.wait(_WAIT_S)
    ssc.stop()


if __name__ == "__main__":
    main()

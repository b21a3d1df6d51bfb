"""A program that is killed while a receiver with a write-ahead log has taken in this and that.

    python received.py DIRECTORY BATCHES

Batch n, from 1 on, has the numbers 10 n and 10 n + 1; 99 is received while batch 3 runs.
"""

from __future__ import annotations

import sys
from functools import partial

from dstreams import StreamingContext, tuned_context
from tests.recovery.feeding import define, feed, late
from tests.support.jvms import OF_SPARK


def main() -> None:
    directory, batches = sys.argv[1], int(sys.argv[2])
    conf = {
        "spark.driver.extraJavaOptions": OF_SPARK,
        "spark.ui.enabled": "false",
    }
    spark = tuned_context("received", "local[2,4]", conf)
    late[3] = [99]
    ssc = StreamingContext.getOrCreate(f"{directory}/checkpoint", partial(define, directory, spark))
    ssc.step()
    for number in range(1, batches):
        feed([10 * number, 10 * number + 1])
        ssc.step()
    ssc.stop()


if __name__ == "__main__":
    main()

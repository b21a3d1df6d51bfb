"""A program that is killed while it reads a Kinesis stream, some of whose shards are split.

    python kinesis_sums.py DIRECTORY URL STREAM RECORDS

It ends when all records were seen. Its keys are in its first run alone: a later one has those of
its environment.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from dstreams import StreamingContext, tuned_context
from dstreams.kinesis import InitialPositionInStream, KinesisUtils
from tests.recovery.application import enter, total, with_id
from tests.recovery.feeding import parity
from tests.support.jvms import OF_SPARK

REGION = "us-east-1"
KEY_ID, KEY = "AKIAOFTHEFIRSTRUN", "secret-of-the-first-run"


def define(directory: str, url: str, stream: str) -> StreamingContext:
    """The numbers of a stream, and their sums by parity."""
    conf = {
        "spark.driver.extraJavaOptions": OF_SPARK,
        "spark.ui.enabled": "false",
    }
    ssc = StreamingContext(tuned_context("kinesis", "local[2,4]", conf), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    initial = InitialPositionInStream.TRIM_HORIZON
    numbers = KinesisUtils.createStream(
        ssc, "sums", stream, url, REGION, initial, 2, awsAccessKeyId=KEY_ID, awsSecretKey=KEY
    ).map(int)
    numbers.foreachRDD(with_id(partial(enter, directory, "numbers")))
    sums = numbers.map(parity).updateStateByKey(partial(total, 1), uid="sums").checkpoint(3)
    sums.foreachRDD(with_id(partial(enter, directory, "sums")))
    return ssc


def seen(directory: str) -> int:
    """How many records the outputs of all runs have seen, each once."""
    ledger = Path(directory, "ledger")
    if not ledger.exists():
        return 0
    lines = map(json.loads, ledger.read_text(encoding="utf-8").splitlines())
    return len({row for line in lines if line["output"] == "numbers" for row in line["rows"]})


def main() -> None:
    directory, url, stream, records = sys.argv[1:]
    setup = partial(define, directory, url, stream)
    ssc = StreamingContext.getOrCreate(f"{directory}/checkpoint", setup)
    ssc.start()
    while seen(directory) < int(records) and not ssc.awaitTerminationOrTimeout(0.2):
        pass
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main()

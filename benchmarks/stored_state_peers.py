"""The peers in ``stored_state.py``: Structured Streaming and Bytewax.

That benchmark runs them in an interpreter that has them. Each has its fastest safe settings.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from stored_state_data import (
    DIRECT,
    FACTOR,
    MODULUS,
    NOTHING,
    PARTITIONS,
    Span,
    answer,
    records,
    serve,
)

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ROW = "key string, total long"


def start_session(more: Mapping[str, str] | None = None) -> Any:
    """Start Spark with a store on RocksDB and changelogs, and without optional costs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    store = "spark.sql.streaming.stateStore"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": PARTITIONS,
        f"{store}.providerClass": ROCKSDB,
        f"{store}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{store}.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        **(more or {}),
    }
    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").appName("benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class MemoryInput:
    """Numbers in the memory of the JVM: the input that costs least."""

    def __init__(self, session: Any) -> None:
        self._jvm = session._jvm
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        self._stream = streaming.runtime.MemoryStream.apply(
            session._jsparkSession, PARTITIONS, self._jvm.org.apache.spark.sql.Encoders.LONG()
        )
        from pyspark.sql import DataFrame

        self.numbers = DataFrame(self._stream.toDF(), session)

    def add(self, span: Span) -> None:
        """Add the numbers of a batch."""
        longs = self._jvm.java.util.stream.LongStream.range(span.first, span.first + span.count)
        boxed = longs.boxed().collect(self._jvm.java.util.stream.Collectors.toList())
        self._stream.addData(self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(boxed))


def records_of(numbers: Any, keys: int) -> Any:
    """Return the records of numbers, by the rule of :func:`stored_state_data.record`."""
    place = (
        f"case when value >= {NOTHING} then value - {NOTHING} "
        f"when value >= {DIRECT} then value - {DIRECT} "
        f"else value * {FACTOR} % {MODULUS} % {keys} end"
    )
    return numbers.selectExpr(
        f"concat('key-', {place}) as key", f"if(value >= {NOTHING}, 0L, 1L) as value"
    )


def apply_in_pandas(pairs: Any) -> Any:
    """The running sum by applyInPandasWithState."""
    import pandas as pd
    from pyspark.sql.streaming.state import GroupStateTimeout

    def add(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        total = sum(int(frame["value"].sum()) for frame in frames)
        total += state.getOption[0] if state.exists else 0
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "total": [total]})

    return pairs.groupBy("key").applyInPandasWithState(
        add, ROW, "total long", "update", GroupStateTimeout.NoTimeout
    )


def transform_with_state(pairs: Any) -> Any:
    """The running sum by transformWithState, with rows."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Sum(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self._total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            before = self._total.get()
            total = sum(row.value for row in rows) + (before[0] if before else 0)
            self._total.update((total,))
            yield Row(key=key[0], total=total)

        def close(self) -> None:
            pass

    return pairs.groupBy("key").transformWithState(Sum(), ROW, "Update", "None")


def change_elements(pairs: Any, name: str) -> Any:
    """The number of values by key, each added to a list or counted in a map."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Elements(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            if name == "lists":
                self._list = handle.getListState("list", "element long")
            else:
                self._map = handle.getMapState("map", "element long", "count long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            elements = [row.value for row in rows]
            for element in elements:
                if name == "lists":
                    self._list.appendValue((element,))
                else:
                    before = self._map.getValue((element,))
                    self._map.updateValue((element,), ((before[0] if before else 0) + 1,))
            yield Row(key=key[0], total=len(elements))

        def close(self) -> None:
            pass

    return pairs.groupBy("key").transformWithState(Elements(), ROW, "Update", "None")


def aggregate(pairs: Any) -> Any:
    """The running sum by the JVM alone."""
    return pairs.groupBy("key").agg({"value": "sum"}).withColumnRenamed("sum(value)", "total")


QUERIES = {
    "applyInPandasWithState": apply_in_pandas,
    "transformWithState": transform_with_state,
    "lists": partial(change_elements, name="lists"),
    "maps": partial(change_elements, name="maps"),
    "groupBy().agg(sum)": aggregate,
}


def serve_query(name: str, keys: int, spans: list[Span], directory: str) -> None:
    """Run a query of Structured Streaming; batch times are those in its progress."""
    session = start_session()
    source = MemoryInput(session)
    sums = QUERIES[name](records_of(source.numbers, keys))
    looked_at = sums.observe("look", *totals())
    query = (
        looked_at.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", directory)
        .start()
    )
    rest = iter(spans)
    seen: dict[str, float] = {}

    def run(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            source.add(next(rest))
            query.processAllAvailable()
            progress = query.lastProgress
            seconds.append(progress.durationMs["triggerExecution"] / 1000)
            seen.update(progress.observedMetrics["look"].asDict())
        return seconds

    serve(run, lambda: {"total": seen["total"]})
    query.stop()
    session.stop()


def totals() -> list[Any]:
    """The sum of what comes out, gathered on the way."""
    from pyspark.sql import functions

    return [functions.sum("total").alias("total")]


def serve_bytewax(keys: int, spans: list[Span], directory: str) -> None:
    """Run a dataflow of Bytewax in this process, with a snapshot after each batch.

    The source always has the next batch ready, and there is only one thread, so the time between
    two requests is that of a batch with its snapshot.
    """
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import run_main

    batches = [records(span, keys) for span in spans]
    last: list[int] = []

    class Partition(StatefulSourcePartition[Any, int]):
        def __init__(self) -> None:
            self._next = 0
            self._upto = 0
            self._asked = threading.Semaphore(0)
            self._times: list[float] = []

        def next_batch(self) -> list[Any]:
            self._times.append(time.perf_counter())
            if self._next == self._upto:
                self._tell()
                line = sys.stdin.readline()
                if not line:
                    raise StopIteration
                self._upto += int(line)
                self._times = [time.perf_counter()]
            last.clear()
            batch = batches[self._next]
            self._next += 1
            return batch

        def _tell(self) -> None:
            if self._upto:
                ends, starts = self._times[1:], self._times[:-1]
                seconds = [end - start for start, end in zip(starts, ends, strict=True)]
                answer(seconds, {"total": sum(last)})

        def snapshot(self) -> int:
            return self._next

    class Source(FixedPartitionedSource[Any, int]):
        def list_parts(self) -> list[str]:
            return ["all"]

        def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Partition:
            return Partition()

    class Sink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
            return Written()

    class Written(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            last.extend(total for _, total in items)

    def add(total: int | None, value: int) -> tuple[int, int]:
        total = (total or 0) + value
        return total, total

    flow = Dataflow("benchmark")
    op.output("out", op.stateful_map("sum", op.input("in", flow, Source()), add), Sink())
    init_db_dir(pathlib.Path(directory), 1)
    run_main(
        flow,
        epoch_interval=datetime.timedelta(0),
        recovery_config=RecoveryConfig(directory),
    )


def main() -> None:
    """Run the side named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=[*QUERIES, "bytewax"])
    parser.add_argument("keys", type=int)
    parser.add_argument("spans", type=json.loads)
    options = parser.parse_args()
    spans = [Span(*span) for span in options.spans]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if options.side == "bytewax":
            serve_bytewax(options.keys, spans, directory)
        else:
            serve_query(options.side, options.keys, spans, directory)


if __name__ == "__main__":
    main()

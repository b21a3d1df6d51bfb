"""Programs whose checkpoints are kept in tests/golden: a stream, two queries and a state store.

``python -m tests.support.golden_programs DIRECTORY`` writes the archives.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext

from checkpoint import CommitLog, CommitRecord, StoreCommit, open_files
from checkpoint.state_store import EMPTY, LmdbBackend, StateStore, StoreId
from dstreams import Settings, StateSpec, StreamingContext
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock

BATCHES = [[("a", n), ("b", 1)] for n in range(1, 9)]
"""The input of the stream; the archive ends after STREAM_BATCHES of them."""

STREAM_BATCHES = 4

LINES = ["a b", "a c", "b a", "c a"]
"""The input of the queries, a batch each; the archives end after QUERY_BATCHES of them."""

QUERY_BATCHES = 2

STORED: dict[Any, Any] = {"spark": 3, ("nested", 1): [1, 2], "text": "value"}
"""The content of the state store."""

seen: dict[str, list[Any]] = {}
"""Rows of the last batch of each output."""


def note(name: str, rdd: RDD[Any]) -> None:
    seen[name] = sorted(rdd.collect())


def total(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def count(key: str, value: int, state: Any) -> None:
    state.update((state.getOption or 0) + value)


def define_stream(sc: SparkContext, directory: Path) -> StreamingContext:
    """Sums by ``updateStateByKey`` and ``mapWithState``, and of a window of three batches."""
    settings = Settings(state_local_directory=str(directory / "local"))
    ssc = StreamingContext(sc, 1, settings=settings, clock=ManualClock())
    ssc.checkpoint(str(directory / "stream"))
    pairs = ssc.queueStream(BATCHES, uid="in", replayable=True)
    sums = pairs.updateStateByKey(total, 2, uid="sums").checkpoint(2)
    sums.foreachRDD(partial(note, "sums"))
    spec = StateSpec.function(count).numPartitions(2)
    counts = pairs.mapWithState(spec, uid="counts").stateSnapshots()
    counts.foreachRDD(partial(note, "counts"))
    window = pairs.reduceByKeyAndWindow(add, None, 3, 1, 2)
    window.foreachRDD(partial(note, "window"))
    return ssc


def words_of(line: str) -> list[str]:
    return line.split()


def itself(word: str) -> str:
    return word


def keep_total(key: str, rows: Iterator[str], state: Any) -> Iterator[tuple[str, int]]:
    total_rows = sum(1 for _ in rows) + (state.getOption or 0)
    state.update(total_rows)
    yield key, total_rows


def keep_rows(name: str, rows: RDD[Any], batch_id: int) -> None:
    seen[name] = sorted(rows.collect())


def run_queries(sc: SparkContext, directory: Path, lines: list[str], done: int = 0) -> None:
    """Run an aggregation and ``flatMapGroupsWithState`` over *lines*, after the first *done*."""
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.dstreams.state.localDirectory": str(directory / "local"),
    }
    session = StreamSession(sc, conf, ManualClock(1000))
    try:
        for name in ("aggregation", "groups"):
            stream = session.memoryStream()
            groups = stream.toDS().flatMap(words_of).groupByKey(itself)
            rows = groups.count() if name == "aggregation" else None
            rows = rows or groups.flatMapGroupsWithState(keep_total, "update")
            writer = rows.writeStream.outputMode("update").foreachBatch(partial(keep_rows, name))
            writer = writer.option("checkpointLocation", str(directory / name))
            for line in lines[:done]:
                stream.addAll([line])
            query = writer.start()
            for line in lines[done:]:
                stream.addAll([line])
                query.processAllAvailable()
            query.stop()
    finally:
        session.stop()


def write_store(directory: Path) -> None:
    """Commit one version of a state store, and the record that names it."""
    files = open_files(str(directory / "store"))
    store = StateStore(LmdbBackend(files, str(directory / "local")))
    with store.writer(StoreId("stream-1", "counts", "default", 0, 1), EMPTY) as writer:
        for key, value in STORED.items():
            writer.put(key, value)
        committed = writer.commit()
    stored = StoreCommit("counts", "default", "stable", (committed,))
    CommitLog(files).commit(
        CommitRecord("stream-1", 1, 2000, 1, {}, {"python": "3.11"}, stores=(stored,))
    )


def expected_sums(batches: int) -> list[tuple[str, int]]:
    """Return the state of the stream's operators after some batches."""
    totals: Counter[str] = Counter()
    for batch in BATCHES[:batches]:
        for key, value in batch:
            totals[key] += value
    return sorted(totals.items())


def expected_words(lines: int) -> dict[str, int]:
    """Return the state of the queries after some lines."""
    return dict(Counter(word for line in LINES[:lines] for word in words_of(line)))


def _archive(directory: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                target.write(path, str(path.relative_to(directory)))


def main(target: Path) -> None:
    """Write the archives."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        sc = SparkContext("local[2]", "golden")
        ssc = define_stream(sc, work)
        ssc.step(STREAM_BATCHES)
        ssc.stop(stopSparkContext=False)
        run_queries(sc, work, LINES[:QUERY_BATCHES])
        write_store(work)
        for name in ("stream", "aggregation", "groups", "store"):
            _archive(work / name, target / f"{name}.zip")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The structured query of the drill: state by key, and files written exactly once.

It has the functions of an application, with ``start`` instead of ``setup``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dstreams import GroupState
from dstreams.cli.drill import oracle
from dstreams.cli.drill.job import CORES, Total, drill_context, feed
from dstreams.cli.drill.oracle import files_written, parse_record, records_in, states_in
from dstreams.cli.drill.results import OutputFindings
from dstreams.structured import StreamSession
from dstreams.structured.sources.committed_files import committed_lines

__all__ = ["check", "feed", "is_done", "start"]


def start(directory: str) -> StreamSession:
    """Start the query; called by each driver."""
    session = StreamSession(
        drill_context({}),
        {
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.streaming.minBatchesToRetain": "2",
        },
    )
    lines = session.readStream.text(f"{directory}/input", maxFilesPerTrigger=1)
    totals = lines.groupByKey(record_key).flatMapGroupsWithState(
        add_lines, "append", name=oracle.TOTALS
    )
    writer = totals.writeStream.format("text")
    writer.start(f"{directory}/output", checkpointLocation=f"{directory}/checkpoint")
    return session


def is_done(directory: str) -> bool:
    """Return whether all input has been processed."""
    given = records_in(files_written(Path(directory, "input")))
    return len(rows_in(directory)) >= len(given)


def check(directory: str) -> OutputFindings:
    """Compare the rows, and the state in the checkpoint, with the oracle."""
    fed = files_written(Path(directory, "input"))
    final = {key: tuple(total) for key, (total,) in states_in(directory, oracle.TOTALS)}
    return oracle.check_rows(rows_in(directory), fed, final)


def rows_in(directory: str) -> list[str]:
    """Return the rows of all committed batches."""
    batches = committed_lines(f"{directory}/output")
    return [line for number in sorted(batches) for line in batches[number]]


def record_key(line: str) -> str:
    """Return the key of a record."""
    return parse_record(line).key


def add_lines(key: str, lines: Iterator[str], state: GroupState[Total]) -> Iterator[str]:
    """Yield a row per record: the record, and the state of its key after it."""
    total = state.get if state.exists else oracle.NOTHING
    for line in lines:
        total = oracle.add_record(total, parse_record(line))
        yield f"{line} {' '.join(map(str, total))}"
    state.update(total)

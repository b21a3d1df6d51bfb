"""The structured query that is drilled: state by key, and files that must be exact.

It is written like a user's application, with ``start`` instead of ``setup``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dstreams import GroupState, tuned_context
from dstreams.cli.drill import oracle
from dstreams.cli.drill.oracle import files_written, parse_record, records_in, states_in, write_file
from dstreams.cli.drill.results import OutputFindings
from dstreams.structured import StreamSession
from dstreams.structured.sources.committed_files import committed_lines

CORES = 2

Total = tuple[int, int, int]


def start(directory: str) -> StreamSession:
    """Start the query, as each driver does."""
    conf = {
        # A short life: what the JVM would compile and clean up better is never run often enough.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
    }
    session = StreamSession(
        tuned_context("dstreams drill", f"local[{CORES},4]", conf),
        {
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.streaming.minBatchesToRetain": "2",
        },
    )
    lines = session.readStream.text(f"{directory}/input", maxFilesPerTrigger=1)
    totals = lines.groupByKey(key_of).flatMapGroupsWithState(
        add_lines, "append", name=oracle.TOTALS
    )
    writer = totals.writeStream.format("text")
    writer.start(f"{directory}/output", checkpointLocation=f"{directory}/checkpoint")
    return session


def feed(directory: str, number: int) -> None:
    """Give the query more input."""
    folder = Path(directory, "input")
    folder.mkdir(exist_ok=True)
    write_file(folder, number)


def is_done(directory: str) -> bool:
    """Return whether all input has been processed."""
    given = records_in(files_written(Path(directory, "input")))
    return len(rows_in(directory)) >= len(given)


def check(directory: str) -> OutputFindings:
    """Compare the rows, and the state in the checkpoint, with what they must be."""
    fed = files_written(Path(directory, "input"))
    final = {key: tuple(total) for key, (total,) in states_in(directory, oracle.TOTALS)}
    return oracle.check_rows(rows_in(directory), fed, final)


def rows_in(directory: str) -> list[str]:
    """Return the rows of all batches that count."""
    batches = committed_lines(f"{directory}/output")
    return [line for number in sorted(batches) for line in batches[number]]


def key_of(line: str) -> str:
    """Return the key of a record."""
    return parse_record(line).key


def add_lines(key: str, lines: Iterator[str], state: GroupState[Total]) -> Iterator[str]:
    """Give a row for each record: the record, and the state of its key after it."""
    total = state.get if state.exists else oracle.NOTHING
    for line in lines:
        total = oracle.add(total, parse_record(line))
        yield f"{line} {' '.join(map(str, total))}"
    state.update(total)

"""The oracle: computes the outputs that a job must have, and compares.

The job writes the records of each batch. Everything else follows from this assignment of records to
batches: the state after each batch, each window, each visit.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dstreams.cli.drill.results import OutputFindings

RECORDS, TOTALS, WINDOW, VISITS = "records", "totals", "window", "visits"
RECENT, STATES = "recent", "states"
OUTPUTS = (RECORDS, TOTALS, WINDOW, RECENT, VISITS, STATES)

_SHOWN = 5
_COMPLETED = "completed"
_LIMIT_S = 300

CHECKPOINT = "checkpoint"
"""Name of the checkpoint directory, in the directory of a drill."""

FILE_RECORDS = 200
KEYS = 40

_SUFFIX = ".txt"

Batches = Mapping[int, list[str]]
"""Lines of an output, by batch time."""


def check_outputs(
    output: Path,
    fed: Sequence[int],
    window_ms: int,
    completed: Iterable[int] = (),
    final: Mapping[str, list[Any]] | None = None,
) -> OutputFindings:
    """Compare the output files of a job with the oracle.

    Every output must have the batches that drivers reported as *completed*. *final* is the state
    in the checkpoint at the end, by output; None to skip it.
    """
    problems: list[str] = []
    outputs = {name: read_output(output, name, problems) for name in OUTPUTS}
    found = check_batches(outputs, fed, window_ms, completed, final)
    return replace(found, problems=(*problems, *found.problems))


def check_batches(
    outputs: Mapping[str, Batches],
    fed: Sequence[int],
    window_ms: int,
    completed: Iterable[int] = (),
    final: Mapping[str, list[Any]] | None = None,
) -> OutputFindings:
    """Compare the lines of outputs with the oracle; the records are required, others optional."""
    problems: list[str] = []
    known = records_in(fed)
    if not known:
        problems.append("no input was processed, so nothing was tested")
    seen = _places(outputs[RECORDS], known, problems)
    lost = [known[record_id] for record_id in sorted(known.keys() - seen.keys())]
    if lost:
        problems.append(
            f"{len(lost)} records are in no batch, such as record {lost[0].record_id} of "
            f"{input_file_name(lost[0].record_id // FILE_RECORDS)}"
        )
    twice = {record_id: times for record_id, times in seen.items() if len(times) > 1}
    if twice:
        record_id, times = min(twice.items())
        where = " and ".join(f"{time_ms} ms" for time_ms in times)
        problems.append(
            f"{len(twice)} records are in the output {RECORDS} more than once, such as record "
            f"{record_id}: in the batches at {where}"
        )
    compared, states = _compare(outputs, window_ms, final)
    differences = [*_missing(outputs, completed), *states]
    return OutputFindings(
        records=len(known),
        lost=len(lost),
        duplicated=sum(len(times) - 1 for times in seen.values()),
        states=compared,
        state_equal=not differences,
        problems=tuple(problems + _first(differences)),
    )


def check_rows(rows: Iterable[str], fed: Sequence[int], final: Mapping[str, Any]) -> OutputFindings:
    """Compare the rows of the drill's query with the oracle.

    Each record has one row, with the state of its key after it. The states of a key follow from
    each other in the order of their counts; the last one must equal *final*, from the checkpoint.
    """
    known, problems, differences = records_in(fed), [], []
    if not known:
        problems.append("no input was processed, so nothing was tested")
    seen: Counter[int] = Counter()
    by_key: dict[str, list[tuple[Record, tuple[int, ...]]]] = {}
    for row in rows:
        line, *total = row.rsplit(" ", len(NOTHING))
        record = record_of(line) if all(number.isdigit() for number in total) else None
        if record is None or known.get(record.record_id) != record:
            problems.append(f"the row {row!r} has no record of the input")
        else:
            seen[record.record_id] += 1
            by_key.setdefault(record.key, []).append((record, tuple(map(int, total))))
    totals = {}
    for key, states in by_key.items():
        expected = NOTHING
        for record, found in sorted(states, key=lambda state: state[1]):
            expected = add_record(expected, record)
            if found != expected:
                differences.append(f"{key} has the state {found}, expected {expected}")
                break
        totals[key] = expected
    if final != totals:
        differences.append("the final checkpoint has other states than the rows")
    lost, extra = known.keys() - seen.keys(), seen.total() - len(seen)
    return OutputFindings(
        records=len(known),
        lost=len(lost),
        duplicated=extra,
        states=seen.total() + len(totals),
        state_equal=not differences,
        problems=(*_first(problems), *_first(differences)),
    )


def _places(
    records: Batches, known: Mapping[int, Record], problems: list[str]
) -> dict[int, list[int]]:
    """Return the batch times of each record; add unknown records to *problems*."""
    places: dict[int, list[int]] = {}
    strange: list[str] = []
    for time_ms in sorted(records):
        for line in records[time_ms]:
            record = record_of(line)
            if record is None or known.get(record.record_id) != record:
                strange.append(f"{line!r} in the batch at {time_ms} ms")
            else:
                places.setdefault(record.record_id, []).append(time_ms)
    if strange:
        problems.append(f"{len(strange)} lines were never given, such as {strange[0]}")
    return places


def record_of(line: str) -> Record | None:
    """Return the record of a line, None if it is not one."""
    try:
        return parse_record(line)
    except ValueError:
        return None


def seen_ids(output: Path) -> set[int]:
    """Return the ids of all records that are in the output of a batch."""
    batches = read_output(output, RECORDS, [])
    records = (record_of(line) for lines in batches.values() for line in lines)
    return {record.record_id for record in records if record is not None}


def read_output(output: Path, name: str, problems: list[str]) -> Batches:
    """Read the output of ``saveAsTextFiles``; adds incomplete directories to *problems*."""
    batches = {}
    for directory in sorted(output.glob(f"{name}-*")):
        if not (directory / "_SUCCESS").exists():
            problems.append(f"{directory.name} is visible but incomplete")
            continue
        parts = sorted(directory.glob("part-*"))
        lines = [line for part in parts for line in part.read_text().splitlines()]
        batches[int(directory.name.rpartition("-")[2])] = lines
    return batches


def _missing(outputs: Mapping[str, Batches], completed: Iterable[int]) -> Iterator[str]:
    times = sorted(set(completed).union(*outputs.values()))
    for time_ms in times:
        for name in outputs:
            if time_ms not in outputs[name]:
                yield f"the batch at {time_ms} ms has no output {name}"


def _compare(
    outputs: Mapping[str, Batches], window_ms: int, final: Mapping[str, list[Any]] | None
) -> tuple[int, list[str]]:
    """Compare each batch; return the number of compared states, and the differences."""
    totals: dict[str, tuple[int, int, int]] = {}
    visits: Counter[str] = Counter()
    recent: dict[int, list[Record]] = {}
    compared, differences = 0, []
    for time_ms in sorted(outputs[RECORDS]):
        found = (record_of(line) for line in outputs[RECORDS][time_ms])
        records = [record for record in found if record is not None]
        recent[time_ms] = records
        recent = {time: kept for time, kept in recent.items() if time > time_ms - window_ms}
        for record in records:
            totals[record.key] = add_record(totals.get(record.key, NOTHING), record)
        windows = sorted(_window(recent.values()))
        expected: dict[str, list[Any]] = {
            TOTALS: sorted(totals.items()),
            WINDOW: windows,
            RECENT: windows,
            VISITS: sorted(_count(records, visits)),
        }
        expected[STATES] = sorted(visits.items())
        for name, wanted in expected.items():
            if time_ms in outputs.get(name, ()):
                compared += len(wanted)
                rows = sorted(map(_row, outputs[name][time_ms]), key=repr)
                if rows != sorted(wanted, key=repr):
                    where = f"{name} of the batch at {time_ms} ms"
                    differences.append(_difference(where, rows, wanted))
    if final is not None:
        for name, wanted in ((TOTALS, sorted(totals.items())), (STATES, sorted(visits.items()))):
            compared += len(wanted)
            rows = sorted(final[name], key=repr)
            if rows != sorted(wanted, key=repr):
                where = f"{name} in the final checkpoint"
                differences.append(_difference(where, rows, wanted))
    return compared, differences


def _row(line: str) -> Any:
    """Return the row of a line; an invalid line differs from every row."""
    try:
        return ast.literal_eval(line)
    except (ValueError, SyntaxError):
        return f"the line {line!r}"


NOTHING = (0, 0, 0)


def add_record(total: tuple[int, int, int], record: Record) -> tuple[int, int, int]:
    """Return the state of a key after a record: count, sum, and exclusive or of the ids.

    The latter reveals records that are counted twice, or instead of others.
    """
    count, amount, ids = total
    return count + 1, amount + record.amount, ids ^ (record.record_id + 1)


def _window(batches: Iterable[Iterable[Record]]) -> Iterable[tuple[str, int]]:
    amounts: Counter[str] = Counter()
    for records in batches:
        for record in records:
            amounts[record.key] += record.amount
    return amounts.items()


def _count(records: Iterable[Record], visits: Counter[str]) -> Iterator[tuple[str, int]]:
    for record in records:
        visits[record.key] += 1
        yield record.key, visits[record.key]


def _difference(where: str, found: list[Any], wanted: list[Any]) -> str:
    extra = [row for row in found if row not in wanted]
    absent = [row for row in wanted if row not in found]
    shown = [f"has {row}" for row in extra[:2]] + [f"lacks {row}" for row in absent[:2]]
    return f"{where}: {', '.join(shown) or 'has duplicate rows'}"


def _first(differences: list[str]) -> list[str]:
    more = len(differences) - _SHOWN
    return differences[:_SHOWN] + ([f"and {more} more differences"] if more > 0 else [])


class Record(NamedTuple):
    """One line of input."""

    record_id: int
    key: str
    amount: int

    def to_line(self) -> str:
        """Return the line of a file."""
        return f"{self.record_id} {self.key} {self.amount}"


def parse_record(line: str) -> Record:
    """Return the record of a line."""
    record_id, key, amount = line.split(" ")
    return Record(int(record_id), key, int(amount))


def records_of_file(number: int) -> Iterator[Record]:
    """Yield the records of file *number*."""
    for record_id in range(number * FILE_RECORDS, (number + 1) * FILE_RECORDS):
        mixed = record_id * 2654435761 % 2**32
        # Each file has few of the keys, so that the state of the others must be retained.
        key = (mixed >> 7) % 8 + number % (KEYS - 8)
        yield Record(record_id, f"key-{key:02}", mixed % 97 + 1)


def write_file(directory: Path, number: int) -> None:
    """Create file *number* in the input directory, atomically."""
    hidden = directory / f".records-{number:06}"
    hidden.write_text("".join(f"{record.to_line()}\n" for record in records_of_file(number)))
    hidden.rename(directory / input_file_name(number))


def input_file_name(number: int) -> str:
    """Return the name of file *number*."""
    return f"records-{number:06}{_SUFFIX}"


def files_written(directory: Path) -> list[int]:
    """Return the numbers of the files in the input directory, sorted."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob(f"*{_SUFFIX}"))


def records_in(numbers: Iterable[int]) -> dict[int, Record]:
    """Return the records of files by their ids."""
    return {record.record_id: record for number in numbers for record in records_of_file(number)}


def write_completed(directory: Path, times: Iterable[int]) -> None:
    """Write the times of completed batches, for :func:`completed_in`."""
    (directory / _COMPLETED).write_text("".join(f"{time_ms}\n" for time_ms in sorted(times)))


def completed_in(directory: str) -> list[int]:
    """Return the times of completed batches; empty before the end of the drill."""
    path = Path(directory, _COMPLETED)
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def problems_of(directory: Path) -> list[str]:
    """Verify the final checkpoint, and return its problems."""
    if not (directory / CHECKPOINT).exists():
        return []
    done = _checkpoint("verify", str(directory / CHECKPOINT))
    if done.returncode == 0:
        return []
    output = " ".join((done.stdout + done.stderr).split())
    return [f"the final checkpoint does not verify: {output[:1000]}"]


def states_in(directory: str, uid: str) -> list[tuple[Any, Any]]:
    """Return the keys and states of an operator as of the last commit; empty if unreadable."""
    done = _checkpoint("read", f"{directory}/{CHECKPOINT}", "--operator", uid, "--json")
    if done.returncode != 0:
        return []
    return [_pair(line) for line in done.stdout.splitlines()]


def _pair(line: str) -> tuple[Any, Any]:
    row = json.loads(line)
    state = row["value"]
    return row["key"], tuple(state) if isinstance(state, list) else state


def _checkpoint(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own module, without a shell
        [sys.executable, "-m", "checkpoint", *words],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )

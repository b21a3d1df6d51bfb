"""The oracle: what the outputs of the job must be, computed from which batch had which records.

The job writes the records of each batch, so their assignment to batches is known. From that alone
everything else follows: the state after each batch, each window, each visit.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstreams.drill.findings import Findings
from dstreams.drill.ledger import Record, parse, records_in

RECORDS, TOTALS, WINDOW, VISITS = "records", "totals", "window", "visits"
OUTPUTS = (RECORDS, TOTALS, WINDOW, VISITS)
STATES = (TOTALS, WINDOW, VISITS)

_SHOWN = 5

Batches = Mapping[int, list[str]]
"""Lines of an output, by batch time."""


def check(output: Path, fed: Sequence[int], window_ms: int) -> Findings:
    """Compare the outputs of a job with what they must be.

    Args:
        output: directory of its outputs.
        fed: numbers of the files that it was given.
        window_ms: width of its window.
    """
    problems: list[str] = []
    outputs = {name: read_output(output, name, problems) for name in OUTPUTS}
    known = records_in(fed)
    seen = Counter(parse(line).record_id for lines in outputs[RECORDS].values() for line in lines)
    strange = sorted(seen.keys() - known.keys())
    if strange:
        problems.append(f"{len(strange)} records were never given, such as {strange[0]}")
    differences = [
        *_missing(outputs),
        *_differences(outputs, window_ms),
    ]
    return Findings(
        records=len(known),
        lost=len(known.keys() - seen.keys()),
        duplicated=sum(times - 1 for times in seen.values()),
        state_equal=not differences,
        problems=tuple(problems + _first(differences)),
    )


def seen_ids(output: Path) -> set[int]:
    """Return the ids of all records that are in the output of a batch."""
    batches = read_output(output, RECORDS, [])
    return {parse(line).record_id for lines in batches.values() for line in lines}


def read_output(output: Path, name: str, problems: list[str]) -> Batches:
    """Read what ``saveAsTextFiles`` has written, as any reader would.

    A directory without ``_SUCCESS`` that can be seen goes to *problems*.
    """
    batches = {}
    for directory in sorted(output.glob(f"{name}-*")):
        if not (directory / "_SUCCESS").exists():
            problems.append(f"{directory.name} can be seen and is not complete")
            continue
        parts = sorted(directory.glob("part-*"))
        lines = [line for part in parts for line in part.read_text().splitlines()]
        batches[int(directory.name.rpartition("-")[2])] = lines
    return batches


def _missing(outputs: Mapping[str, Batches]) -> Iterator[str]:
    times = sorted(set().union(*outputs.values()))
    for time_ms in times:
        for name in OUTPUTS:
            if time_ms not in outputs[name]:
                yield f"the batch at {time_ms} ms has no output {name}"


def _differences(outputs: Mapping[str, Batches], window_ms: int) -> Iterator[str]:
    """Yield what differs in state, batch by batch."""
    totals: dict[str, tuple[int, int, int]] = {}
    visits: Counter[str] = Counter()
    recent: dict[int, list[Record]] = {}
    for time_ms in sorted(outputs[RECORDS]):
        records = [parse(line) for line in outputs[RECORDS][time_ms]]
        recent[time_ms] = records
        recent = {time: kept for time, kept in recent.items() if time > time_ms - window_ms}
        for record in records:
            totals[record.key] = add(totals.get(record.key, NOTHING), record)
        expected: dict[str, list[Any]] = {
            TOTALS: sorted(totals.items()),
            WINDOW: sorted(_window(recent.values())),
            VISITS: sorted(_count(records, visits)),
        }
        for name, wanted in expected.items():
            if time_ms in outputs[name]:
                found = sorted(map(ast.literal_eval, outputs[name][time_ms]))
                if found != wanted:
                    yield _difference(name, time_ms, found, wanted)


NOTHING = (0, 0, 0)


def add(total: tuple[int, int, int], record: Record) -> tuple[int, int, int]:
    """Return the state of a key after a record: how many, their sum, and their ids in one number.

    The last is an exclusive or: a record that is counted twice, or instead of another, shows.
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


def _difference(name: str, time_ms: int, found: list[Any], wanted: list[Any]) -> str:
    extra = [row for row in found if row not in wanted]
    absent = [row for row in wanted if row not in found]
    shown = [f"has {row}" for row in extra[:2]] + [f"lacks {row}" for row in absent[:2]]
    return f"{name} of the batch at {time_ms} ms: {', '.join(shown) or 'has rows twice'}"


def _first(differences: list[str]) -> list[str]:
    more = len(differences) - _SHOWN
    return differences[:_SHOWN] + ([f"and {more} more differences"] if more > 0 else [])

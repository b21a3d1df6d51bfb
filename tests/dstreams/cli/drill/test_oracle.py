"""The oracle finds each way in which outputs can be wrong, and nothing in those that are right."""

from __future__ import annotations

import ast
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dstreams.cli.drill.oracle import (
    NOTHING,
    add_record,
    check_outputs,
    check_rows,
    files_written,
    parse_record,
    read_output,
    records_in,
    records_of_file,
    seen_ids,
    write_file,
)

WINDOW_MS = 6000
FILES = {1000: [0], 3000: [1, 2], 5000: [], 9000: [3]}
"""Which files were read in the batch at which time."""


def write_output(output: Path, name: str, time_ms: int, rows: list[Any]) -> None:
    directory = output / f"{name}-{time_ms}"
    directory.mkdir(parents=True)
    half = len(rows) // 2
    for number, part in enumerate((rows[half:], rows[:half])):
        (directory / f"part-{number:05}").write_text("".join(f"{row}\n" for row in part))
    (directory / "_SUCCESS").touch()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Outputs of a job that did everything right."""
    output = tmp_path / "output"
    for time_ms, files in FILES.items():
        now = [record for number in files for record in records_of_file(number)]
        before = [
            record
            for time, numbers in FILES.items()
            for number in numbers
            for record in records_of_file(number)
            if time <= time_ms
        ]
        totals = {}
        for key in {record.key for record in before}:
            of_key = [record for record in before if record.key == key]
            ids = 0
            for record in of_key:
                ids ^= record.record_id + 1
            totals[key] = (len(of_key), sum(record.amount for record in of_key), ids)
        window: Counter[str] = Counter()
        for time, numbers in FILES.items():
            if time_ms - WINDOW_MS < time <= time_ms:
                for number in numbers:
                    for record in records_of_file(number):
                        window[record.key] += record.amount
        visits = []
        for key in {record.key for record in now}:
            known = totals[key][0]
            new = sum(1 for record in now if record.key == key)
            visits += [(key, count) for count in range(known - new + 1, known + 1)]
        write_output(output, "records", time_ms, [record.to_line() for record in now])
        write_output(output, "totals", time_ms, list(totals.items()))
        write_output(output, "window", time_ms, list(window.items()))
        write_output(output, "recent", time_ms, list(window.items()))
        write_output(output, "visits", time_ms, visits)
        counts = {key: count for key, (count, _, _) in totals.items()}
        write_output(output, "states", time_ms, list(counts.items()))
    return output


FED = [0, 1, 2, 3]
STATEFUL = ["totals", "window", "recent", "visits", "states"]


def edit(output: Path, name: str, change: Any) -> None:
    """Change the lines of the first part of an output."""
    path = output / name / "part-00000"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))


def test_outputs_that_are_right(output: Path) -> None:
    """Nothing lost, nothing twice, all state equal."""
    found = check_outputs(output, FED, WINDOW_MS)
    assert found.is_clean, found
    assert found.records == 800
    assert found.states > 500
    assert seen_ids(output) == records_in(FED).keys()


def test_a_record_that_is_missing(output: Path) -> None:
    """It is lost, and the state that knows it is not what the outputs say."""
    edit(output, "records-3000", lambda lines: lines[1:])
    found = check_outputs(output, FED, WINDOW_MS)
    assert (found.lost, found.duplicated, found.state_equal) == (1, 0, False)
    assert re.match(
        r"1 records are in no batch, such as record \d+ of records-00000[12].txt", found.problems[0]
    )


def test_a_file_that_was_never_read(output: Path) -> None:
    """All of its records are lost, though state and outputs agree."""
    found = check_outputs(output, [*FED, 4], WINDOW_MS)
    assert (found.lost, found.duplicated, found.state_equal) == (200, 0, True)
    assert not found.is_clean


def test_a_record_that_is_there_twice(output: Path) -> None:
    """In one batch, or in a later one."""
    line = next(records_of_file(0)).to_line()
    edit(output, "records-1000", lambda lines: [*lines, line])
    edit(output, "records-9000", lambda lines: [*lines, line])
    found = check_outputs(output, FED, WINDOW_MS)
    assert found.duplicated == 2
    assert found.problems[0].endswith(
        "such as record 0: in the batches at 1000 ms and 1000 ms and 9000 ms"
    )


@pytest.mark.parametrize("line", ["99999 key-01 5", "0 key-01 5", "0 key", "\u00e9 x 1"])
def test_a_line_that_nobody_gave(output: Path, line: str) -> None:
    """It is named: a record of no file, one that was changed, or half a line."""
    edit(output, "records-9000", lambda lines: [*lines, line])
    problems = check_outputs(output, FED, WINDOW_MS).problems
    assert f"1 lines were never given, such as {line!r} in the batch at 9000 ms" in problems


def test_no_input_at_all(tmp_path: Path) -> None:
    """A drill without input is a problem."""
    found = check_outputs(tmp_path, [], WINDOW_MS)
    assert found.problems == ("no input was processed, so nothing was tested",)


def test_a_batch_that_is_gone(output: Path) -> None:
    """A reported batch without outputs is a problem: its commit was lost."""
    found = check_outputs(output, FED, WINDOW_MS, completed=[1000, 7000])
    assert "the batch at 7000 ms has no output records" in found.problems
    assert not found.state_equal


@pytest.mark.parametrize("name", ["totals", "states"])
@pytest.mark.parametrize("change", ["none", "less", "other"])
def test_the_state_at_the_end(output: Path, name: str, change: str) -> None:
    """The final checkpoint has the state after the last batch."""
    final = {
        each: [ast.literal_eval(line) for line in read_output(output, each, [])[9000]]
        for each in ("totals", "states")
    }
    if change == "less":
        del final[name][3]
    elif change == "other":
        final[name][3] = (final[name][3][0], 0)
    found = check_outputs(output, FED, WINDOW_MS, final=final)
    assert found.is_clean == (change == "none")
    if change != "none":
        (problem,) = found.problems
        assert problem.startswith(f"{name} in the final checkpoint: ")


def test_half_a_line_of_state(output: Path) -> None:
    """It is shown as it is."""
    edit(output, "totals-3000", lambda lines: [lines[0][:9], *lines[1:]])
    found = check_outputs(output, FED, WINDOW_MS)
    assert found.problems[0].startswith("totals of the batch at 3000 ms: has the line \"('key-")


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("change", ["less", "more", "twice"])
def test_state_that_is_wrong(output: Path, name: str, change: str) -> None:
    """A row too few, one too many, or one twice; the problem names the output and the batch."""

    def edited(lines: list[str]) -> list[str]:
        if change == "less":
            return lines[1:]
        return [*lines, lines[0] if change == "twice" else "('key-99', 1)"]

    edit(output, f"{name}-3000", edited)
    found = check_outputs(output, FED, WINDOW_MS)
    assert not found.state_equal
    assert (found.lost, found.duplicated) == (0, 0)
    assert found.problems[0].startswith(f"{name} of the batch at 3000 ms: ")


@pytest.mark.parametrize("name", ["records", *STATEFUL])
def test_an_output_that_is_missing(output: Path, name: str) -> None:
    """Each batch has all outputs."""
    shutil.rmtree(output / f"{name}-5000")
    found = check_outputs(output, FED, WINDOW_MS)
    assert f"the batch at 5000 ms has no output {name}" in found.problems
    assert not found.is_clean


def test_half_a_directory(output: Path) -> None:
    """A visible but incomplete directory is a problem, even during a drill."""
    (output / "window-5000" / "_SUCCESS").unlink()
    found = check_outputs(output, FED, WINDOW_MS)
    assert "window-5000 is visible but incomplete" in found.problems


def test_many_differences_are_counted(output: Path) -> None:
    """The report stays short."""
    for name in ("totals", "window", "visits"):
        for time_ms in (1000, 3000, 9000):
            edit(output, f"{name}-{time_ms}", lambda lines: lines[1:])
    problems = check_outputs(output, FED, WINDOW_MS).problems
    assert len(problems) == 6
    assert problems[-1] == "and 4 more differences"


def test_files_of_the_ledger(tmp_path: Path) -> None:
    """They hold what their numbers say, appear complete, and no two share an id."""
    for number in (3, 0):
        write_file(tmp_path, number)
    assert files_written(tmp_path) == [0, 3]
    lines = (tmp_path / "records-000003.txt").read_text().splitlines()
    assert [parse_record(line) for line in lines] == list(records_of_file(3))
    assert len(records_in([0, 3])) == 400
    assert all(record.amount > 0 for record in records_in([0, 3]).values())


def rows_of_a_query() -> list[str]:
    """The rows of a query that did everything right with two files."""
    totals: dict[str, tuple[int, int, int]] = {}
    rows = []
    for number in (0, 1):
        for record in records_of_file(number):
            total = totals[record.key] = add_record(totals.get(record.key, NOTHING), record)
            rows.append(f"{record.to_line()} {' '.join(map(str, total))}")
    return rows


def states_after(rows: list[str]) -> dict[str, tuple[int, ...]]:
    return {row.split()[1]: tuple(map(int, row.split()[3:])) for row in rows}


def test_rows_of_a_query() -> None:
    """In any order: what belongs together follows from the states of a key."""
    rows = rows_of_a_query()
    findings = check_rows(rows[::-1], (0, 1), states_after(rows))
    assert findings.is_clean, findings
    assert findings.records == len(rows)


@pytest.mark.parametrize(
    ("break_rows", "found"),
    [
        (lambda rows: rows[1:], (1, 0, False)),
        (lambda rows: [*rows, rows[0]], (0, 1, False)),
        (lambda rows: [f"{rows[0]}1", *rows[1:]], (0, 0, False)),
        (lambda rows: rows, (0, 0, True)),
    ],
)
def test_rows_that_are_wrong(
    break_rows: Callable[[list[str]], list[str]], found: tuple[int, int, bool]
) -> None:
    """A row that is lost, or there twice, or has another state."""
    rows = rows_of_a_query()
    findings = check_rows(break_rows(rows), (0, 1), states_after(rows))
    assert (findings.lost, findings.duplicated, findings.state_equal) == found


def test_states_of_a_query_that_are_wrong() -> None:
    """The checkpoint must equal the last row of each key."""
    rows = rows_of_a_query()
    findings = check_rows([*rows, "x"], (0, 1), states_after(rows[:-1]))
    assert not findings.state_equal
    assert findings.problems == (
        "the row 'x' has no record of the input",
        "the final checkpoint has other states than the rows",
    )

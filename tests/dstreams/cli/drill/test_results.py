"""The results of a drill as text and as JSON."""

from __future__ import annotations

import io
import json

import pytest

from dstreams.cli.drill.results import (
    DrillReport,
    DrillResult,
    OutputFindings,
    percentile,
    result_table,
)

PASSED = DrillResult(
    7,
    3,
    ("commit.start",),
    40,
    (5000, 4000, 9000),
    OutputFindings(records=1200, states=4800),
    ways={"driver killed": 2, "killed at a step": 1},
    phases={"recovery": 0, "commit": 3},
    deepest=2,
    seconds=75,
)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 50, None),
        ([3], 95, 3),
        ([4, 1, 3, 2], 50, 2),
        ([4, 1, 3, 2], 95, 4),
        (list(range(1, 101)), 95, 95),
    ],
)
def test_percentiles(values: list[int], share: int, expected: int | None) -> None:
    """One of the values, so that it was really measured."""
    assert percentile(values, share) == expected


def test_all_promises_held() -> None:
    """Every figure is there, and the verdict."""
    assert PASSED.is_passed
    assert result_table(PASSED).splitlines() == [
        "",
        "kills                           3, of them 1 at steps of a batch",
        "  driver killed                 2",
        "  killed at a step              1",
        "killed in",
        "  recovery                      0",
        "  commit                        3",
        "most kills between two batches  2",
        "batches                         40",
        "records                         1,200",
        "records lost                    0",
        "records duplicated              0",
        "states compared                 4,800",
        "state equal                     yes",
        "recovery p50 / p95 / max        5.0 s / 9.0 s / 9.0 s",
        "duration                        1 min 15 s",
        "seed                            7",
        "",
        "all promises held",
    ]


@pytest.mark.parametrize(
    "findings",
    [
        OutputFindings(lost=1),
        OutputFindings(duplicated=1),
        OutputFindings(state_equal=False),
        OutputFindings(problems=("window-1000 is visible but incomplete",)),
    ],
)
def test_a_broken_promise(findings: OutputFindings) -> None:
    """Any of them decides the verdict."""
    result = DrillResult(7, 3, (), 40, (), findings)
    assert not result.is_passed
    text = result_table(result)
    assert text.endswith("PROMISES WERE BROKEN")
    assert all(f"- {problem}" in text for problem in findings.problems)


@pytest.mark.parametrize("problems", [(), ("'to 2' is in the output twice",)])
def test_an_application_that_counts_no_records(problems: tuple[str, ...]) -> None:
    """Figures that were not counted are not shown."""
    text = result_table(DrillResult(7, 3, (), 40, (), OutputFindings(problems=problems)))
    assert f"problems that check found       {len(problems)}\n" in text
    assert "records" not in text
    assert "state" not in text


def test_a_drill_that_could_not_go_on() -> None:
    """Clean outputs are not enough."""
    result = DrillResult(7, 1, (), 0, (), OutputFindings(), ("a driver ended by itself",))
    assert not result.is_passed
    assert "- a driver ended by itself" in result_table(result)


def test_the_result_for_programs() -> None:
    """One JSON object and nothing else, with milliseconds."""
    out = io.StringIO()
    report = DrillReport(out, as_json=True)
    report.progress("progress")
    report.end(PASSED)
    assert json.loads(out.getvalue()) == {
        "passed": True,
        "seed": 7,
        "kills": 3,
        "kills_at_steps": ["commit.start"],
        "kills_by_way": {"driver killed": 2, "killed at a step": 1},
        "kills_by_phase": {"recovery": 0, "commit": 3},
        "deepest": 2,
        "seconds": 75,
        "batches": 40,
        "records": 1200,
        "lost": 0,
        "duplicated": 0,
        "states": 4800,
        "state_equal": True,
        "recovery_ms": {"p50": 5000, "p95": 9000, "max": 9000},
        "recoveries": 3,
        "problems": [],
    }


def test_the_result_for_people() -> None:
    """Progress, then the table."""
    out = io.StringIO()
    report = DrillReport(out)
    report.progress("progress")
    report.end(PASSED)
    assert out.getvalue() == f"progress\n{result_table(PASSED)}\n"


def test_a_quiet_drill() -> None:
    """The result alone, and where the directory is kept."""
    out = io.StringIO()
    report = DrillReport(out, is_quiet=True)
    report.progress("progress")
    report.add("the directory of the drill is kept")
    report.end(PASSED)
    assert out.getvalue() == f"the directory of the drill is kept\n{result_table(PASSED)}\n"


def test_the_verdict_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line is green or red where colours are wanted."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    report = DrillReport(out)
    report.end(PASSED)
    report.end(DrillResult(7, 3, (), 40, (), OutputFindings(lost=1)))
    lines = out.getvalue().splitlines()
    assert "\033[32mall promises held\033[0m" in lines
    assert lines[-1] == "\033[31mPROMISES WERE BROKEN\033[0m"

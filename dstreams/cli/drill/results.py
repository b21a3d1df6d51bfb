"""The result of a drill, and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TextIO

from checkpoint.cli import painted


@dataclass(frozen=True)
class OutputFindings:
    """The result of checking the outputs of an application."""

    records: int = 0  # number of input records
    lost: int = 0  # number of those that are missing in the outputs
    duplicated: int = 0  # number of superfluous copies of records in the outputs
    states: int = 0  # number of states that were compared with the oracle
    state_equal: bool = True  # whether all of them are equal
    problems: tuple[str, ...] = ()  # the problems, a sentence each

    @property
    def has_figures(self) -> bool:
        """True if records or states were counted, which is optional."""
        return bool(self.records or self.states or self.lost or self.duplicated)

    @property
    def is_clean(self) -> bool:
        """True if the outputs are complete and correct."""
        return self.state_equal and not (self.lost or self.duplicated or self.problems)


@dataclass(frozen=True)
class DrillResult:
    """The result of a drill."""

    seed: int  # seed of the random moments
    kills: int  # number of kills, at random moments and at steps
    at_steps: tuple[str, ...]  # the steps of these, in order
    batches: int  # number of completed batches
    recovery_ms: tuple[int, ...]
    """Times from the start of a driver after a kill to its first new batch."""
    findings: OutputFindings  # the result of checking the outputs
    problems: tuple[str, ...] = ()  # problems during the drill, a sentence each
    ways: Mapping[str, int] = field(default_factory=dict)  # number of kills in each way
    phases: Mapping[str, int] = field(default_factory=dict)
    """Number of kills in each phase of a driver."""
    deepest: int = 0  # largest number of consecutive drivers killed before one completed a batch
    seconds: int = 0  # duration

    @property
    def is_passed(self) -> bool:
        """True if all promises held."""
        return self.findings.is_clean and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        times = {
            "p50": percentile(self.recovery_ms, 50),
            "p95": percentile(self.recovery_ms, 95),
            "max": max(self.recovery_ms, default=None),
        }
        return {
            "passed": self.is_passed,
            "seed": self.seed,
            "kills": self.kills,
            "kills_at_steps": list(self.at_steps),
            "kills_by_way": dict(self.ways),
            "kills_by_phase": dict(self.phases),
            "deepest": self.deepest,
            "seconds": self.seconds,
            "batches": self.batches,
            **asdict(self.findings),
            "recovery_ms": times,
            "recoveries": len(self.recovery_ms),
            "problems": [*self.problems, *self.findings.problems],
        }


def percentile(values: Sequence[int], share: int) -> int | None:
    """Return the smallest of *values* that *share* percent of them do not exceed.

    >>> percentile([40, 10, 30, 20], 50), percentile([40, 10, 30, 20], 95), percentile([], 50)
    (20, 40, None)
    """
    if not values:
        return None
    return sorted(values)[math.ceil(share / 100 * len(values)) - 1]


class DrillReport:
    """Prints the progress and the result of a drill."""

    def __init__(self, out: TextIO, *, as_json: bool = False, is_quiet: bool = False) -> None:
        self._out = out
        self._as_json = as_json
        self._is_quiet = is_quiet

    def progress(self, line: str) -> None:
        """Print progress."""
        if not self._is_quiet:
            self.add(line)

    def add(self, line: str) -> None:
        """Print a line in addition to the result."""
        if not self._as_json:
            self._write(line)

    def end(self, result: DrillResult) -> None:
        """Print the result."""
        if self._as_json:
            self._write(json.dumps(result.to_json(), indent=2))
        else:
            table, line, verdict = result_table(result).rpartition("\n")
            colour: Literal["green", "red"] = "green" if result.is_passed else "red"
            self._write(f"{table}{line}{painted(verdict, colour, self._out)}")

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


def result_table(result: DrillResult) -> str:
    """Return the result as text."""
    found = result.to_json()
    times = found["recovery_ms"]
    recovery = " / ".join(
        "-" if times[name] is None else f"{times[name] / 1000:.1f} s"
        for name in ("p50", "p95", "max")
    )
    rows = [
        ("kills", f"{result.kills}, of them {len(result.at_steps)} at steps of a batch"),
        *((f"  {way}", str(count)) for way, count in result.ways.items()),
        ("killed in", ""),
        *((f"  {phase}", str(count)) for phase, count in result.phases.items()),
        ("most kills between two batches", str(result.deepest)),
        ("batches", f"{result.batches:,}"),
        *_figures(result.findings),
        ("recovery p50 / p95 / max", recovery),
        ("duration", f"{result.seconds // 60} min {result.seconds % 60} s"),
        ("seed", str(result.seed)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"{name.ljust(width)}  {value}".rstrip() for name, value in rows), ""]
    lines += [f"- {problem}" for problem in found["problems"]]
    verdict = "all promises held" if result.is_passed else "PROMISES WERE BROKEN"
    return "\n".join([*lines, verdict])


def _figures(findings: OutputFindings) -> list[tuple[str, str]]:
    if not findings.has_figures and findings.state_equal:
        return [("problems that check found", f"{len(findings.problems):,}")]
    return [
        ("records", f"{findings.records:,}"),
        ("records lost", f"{findings.lost:,}"),
        ("records duplicated", f"{findings.duplicated:,}"),
        ("states compared", f"{findings.states:,}"),
        ("state equal", "yes" if findings.state_equal else "NO"),
    ]

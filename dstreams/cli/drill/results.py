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
    """The result of checking the outputs of an application.

    Args:
        records: how many records it was given.
        lost: how many of them are in no output.
        duplicated: how often records are in outputs beyond the once that each should be.
        states: how many states of a key after a batch were compared with the oracle's.
        state_equal: whether all of them are what the oracle says.
        problems: what is wrong, a sentence each.
    """

    records: int = 0
    lost: int = 0
    duplicated: int = 0
    states: int = 0
    state_equal: bool = True
    problems: tuple[str, ...] = ()

    @property
    def has_figures(self) -> bool:
        """Return whether records or states were counted, which is optional."""
        return bool(self.records or self.states or self.lost or self.duplicated)

    @property
    def is_clean(self) -> bool:
        """Return whether the outputs are complete and correct."""
        return self.state_equal and not (self.lost or self.duplicated or self.problems)


@dataclass(frozen=True)
class DrillResult:
    """The result of a drill.

    Args:
        seed: of its random moments.
        kills: how many times the driver was killed, at random moments and at steps.
        at_steps: at which steps, in order.
        batches: how many batches were completed.
        recovery_ms: from the start of each driver that followed a killed one to its first new
            batch, as far as it came so far.
        findings: what the outputs show.
        problems: what went wrong while it ran, a sentence each.
        ways: how many kills of each way there were.
        phases: what the drivers were doing when they were killed, and how often.
        deepest: how many drivers were killed one after another before one completed a batch.
        seconds: how long it took.
    """

    seed: int
    kills: int
    at_steps: tuple[str, ...]
    batches: int
    recovery_ms: tuple[int, ...]
    findings: OutputFindings
    problems: tuple[str, ...] = ()
    ways: Mapping[str, int] = field(default_factory=dict)
    phases: Mapping[str, int] = field(default_factory=dict)
    deepest: int = 0
    seconds: int = 0

    @property
    def is_passed(self) -> bool:
        """Return whether all promises held."""
        return self.findings.is_clean and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the result for programs."""
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

    def tell(self, line: str) -> None:
        """Print progress."""
        if not self._is_quiet:
            self.add(line)

    def add(self, line: str) -> None:
        """Print a line next to the result."""
        if not self._as_json:
            self._write(line)

    def end(self, result: DrillResult) -> None:
        """Write what was found."""
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
    """Return the result for people."""
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

"""Comparing the runs of one program by pyspark.streaming and by dstreams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.testing import ManualClock
from tests.conformance.programs import Program, is_ordered
from tests.conformance.recording import ProgramRunner
from tests.conformance.runs import Batch, Run, run_programs, text_of

GROUP = 24
"""Programs of one StreamingContext: more would make a batch's one Spark job too large."""


@dataclass(frozen=True)
class Compared:
    """A program and what came out of it on either side."""

    program: Program
    theirs: Run
    ours: Run

    @property
    def equal(self) -> bool:
        return self._arranged(self.theirs) == self._arranged(self.ours)

    def require_equal(self) -> None:
        """Fail with the program and all batches, unless both sides did the same."""
        if not self.equal:
            raise AssertionError(self.report())

    def report(self) -> str:
        """Show the program as text that can be run, and the batches side by side."""
        lines = ["", f"# {self.program.name}", *str(self.program).splitlines()]
        pairs = zip(_padded(self.theirs, self.ours), _padded(self.ours, self.theirs), strict=True)
        for number, (theirs, ours) in enumerate(pairs, 1):
            mark = " " if self._batch(theirs) == self._batch(ours) else ">"
            lines += [f"{mark} batch {number}: pyspark.streaming {theirs!r}"]
            lines += [f"{mark}          dstreams          {ours!r}"]
        if self.program.slices:
            lines += [f"slices: pyspark.streaming {self.theirs.slices}"]
            lines += [f"        dstreams          {self.ours.slices}"]
        return "\n".join(lines)

    def _arranged(self, run: Run) -> tuple[list[str], list[list[str]]]:
        slices = [[self._batch(rdd) for rdd in rdds] for rdds in run.slices]
        return [self._batch(batch) for batch in run.batches], slices

    def _batch(self, batch: Batch) -> str:
        return text_of(batch, is_ordered(self.program.output))


def compare_all(
    spark: SparkContext, oracle: ProgramRunner, programs: Sequence[Program]
) -> list[Compared]:
    """Run programs on both sides at the same time, many in one StreamingContext.

    None may fail where its RDDs are made: that would end the run of all.
    """
    groups: list[list[Program]] = []
    for program in sorted(programs, key=lambda program: program.batches):
        last = groups[-1] if groups else []
        if not last or len(last) == GROUP or last[0].batches != program.batches:
            groups.append(last := [])
        last.append(program)
    return [found for group in groups for found in _compare_group(spark, oracle, group)]


def compare_alone(spark: SparkContext, oracle: ProgramRunner, program: Program) -> Compared:
    """Run a program in a StreamingContext of its own: it may fail."""
    (found,) = _compare_group(spark, oracle, [program])
    return found


def _compare_group(
    spark: SparkContext, oracle: ProgramRunner, programs: Sequence[Program]
) -> list[Compared]:
    oracle.ask(programs)
    ours = run_here(spark, programs)
    theirs = oracle.answer()
    return [Compared(*found) for found in zip(programs, theirs, ours, strict=True)]


def run_here(spark: SparkContext, programs: Sequence[Program]) -> list[Run]:
    """Run programs on dstreams in one StreamingContext."""

    def step(ssc: Any, has_passed: Callable[[], bool]) -> None:
        ssc.step()
        assert has_passed()

    return run_programs(
        spark, programs, lambda: StreamingContext(spark, 1, clock=ManualClock()), step
    )


def _padded(run: Run, other: Run) -> list[Any]:
    missing = len(other.batches) - len(run.batches)
    return [*run.batches, *["not run"] * missing]

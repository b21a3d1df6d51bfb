"""A differential test: random programs here and in the real pyspark.streaming."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams.testing import run_batches
from tests.conformance.oracle import UPDATES, Pairs, Program, random_program

ROOT = Path(__file__).parents[2]

SEEDS = range(4)
MORE_SEEDS = range(4, 60)


class Oracle:
    """Programs that run in another process meanwhile."""

    def __init__(self, programs: list[Program], results: Path) -> None:
        self._results = results
        self._errors = results.with_suffix(".log").open("w+")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.oracle", str(results)],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._child.stdin is not None
        with self._child.stdin as stdin:
            pickle.dump(programs, stdin)

    def states(self) -> list[list[Pairs]]:
        """Wait for the state of each program after each batch."""
        code = self._child.wait(300)
        self._errors.seek(0)
        assert code == 0, self._errors.read()[-3000:]
        states: list[list[Pairs]] = pickle.loads(self._results.read_bytes())
        return states

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        self._errors.close()


def run_here(spark: SparkContext, program: Program) -> list[Pairs]:
    states = run_batches(
        spark,
        program.batches,
        lambda pairs: pairs.updateStateByKey(
            UPDATES[program.update], program.partitions, program.initial
        ),
    )
    return [batch or [] for batch in states]


def compare(spark: SparkContext, seeds: range, results: Path) -> None:
    programs = [random_program(seed) for seed in seeds]
    oracle = Oracle(programs, results)
    try:
        ours = [run_here(spark, program) for program in programs]
        theirs = oracle.states()
    finally:
        oracle.close()
    for seed, program, here, there in zip(seeds, programs, ours, theirs, strict=True):
        for batch, (mine, wanted) in enumerate(zip(here, there, strict=True)):
            assert sorted(mine, key=repr) == sorted(wanted, key=repr), (
                f"seed {seed}, batch {batch + 1} of {program}"
            )


def test_programs_are_what_they_should_be() -> None:
    """The seeds cover all update functions, with and without initial state, and empty batches."""
    programs = [random_program(seed) for seed in SEEDS]
    assert {program.update for program in programs} == set(UPDATES)
    assert {program.initial is None for program in programs} == {True, False}
    assert [] in [batch for program in programs for batch in program.batches]
    assert random_program(3) == random_program(3)


def test_states_are_those_of_pyspark_streaming(sc: SparkContext, tmp_path: Path) -> None:
    """For batches that have an RDD both give the same state, key by key, in every batch."""
    compare(sc, SEEDS, tmp_path / "states")


@pytest.mark.slow
def test_more_states_are_those_of_pyspark_streaming(sc: SparkContext, tmp_path: Path) -> None:
    """The same for many more programs."""
    compare(sc, MORE_SEEDS, tmp_path / "states")

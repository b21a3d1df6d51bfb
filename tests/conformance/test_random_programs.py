"""Differential tests: random programs, here and in the real pyspark.streaming.

All programs are drawn first and run together, many in one StreamingContext. Only when one of them
differs are they drawn again, with what is known of each, so that hypothesis can make it smaller.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from pyspark import SparkContext

from tests.conformance.comparison import Compared, compare_all, compare_alone
from tests.conformance.oracle import Oracle
from tests.conformance.programs import Program
from tests.conformance.random_programs import programs
from tests.conformance.runs import Run

SEED = 2
FEW, MANY = 24, 240
_SHRINKING = 40
"""Programs that are run, each alone, to find a smaller one that differs."""


def each_program(number: int, count: int, examine: Callable[[Program], None]) -> None:
    """Draw random programs, the same for the same number, and hand over each."""

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def draw(program: Program) -> None:
        examine(program)

    draw()


def drawn(number: int, count: int) -> list[Program]:
    """Draw random programs, each once."""
    found: dict[str, Program] = {}
    each_program(number, count, lambda program: found.setdefault(str(program), program) and None)
    return list(found.values())


def is_good(found: Compared) -> bool:
    return found.equal and not found.ours.failed


def compare(
    several: Callable[[list[Program]], list[Compared]],
    one: Callable[[Program], Compared],
    number: int,
    count: int,
) -> list[Compared]:
    """Compare random programs; fail with the smallest that differs."""
    print(f"random programs of seed {number}")
    known = {str(found.program): found for found in several(drawn(number, count))}
    differing = [found for found in known.values() if not is_good(found)]
    if not differing:
        return list(known.values())
    more = iter(range(_SHRINKING))

    def examine(program: Program) -> None:
        text = str(program)
        if text not in known:
            if next(more, None) is None:
                return
            known[text] = one(program)
        if not is_good(known[text]):
            raise AssertionError(known[text].report())

    each_program(number, count, examine)
    raise AssertionError(differing[0].report())


@pytest.mark.deep
def test_random_programs(sc: SparkContext, oracle: Oracle) -> None:
    """Every batch of every program is that of pyspark.streaming."""
    found = compare(
        lambda several: compare_all(sc, oracle, several),
        lambda program: compare_alone(sc, oracle, program),
        SEED,
        FEW,
    )
    assert sum(any(compared.ours.batches) for compared in found) > len(found) / 2


@pytest.mark.slow
def test_more_random_programs(sc: SparkContext, oracle: Oracle) -> None:
    """The same for many more programs, of another seed."""
    compare(
        lambda several: compare_all(sc, oracle, several),
        lambda program: compare_alone(sc, oracle, program),
        SEED + 1,
        MANY,
    )


@pytest.mark.deep
def test_a_program_that_differs_is_made_smaller() -> None:
    """What fails is the smallest program that was found, as text, and the runs are bounded."""
    alone: list[Program] = []

    def one(program: Program) -> Compared:
        batches = [["same"]] * program.batches
        differs = "countByValue" in program.operations()
        return Compared(program, Run(batches), Run([["other"]] if differs else batches))

    def counted(program: Program) -> Compared:
        alone.append(program)
        return one(program)

    with pytest.raises(AssertionError) as failure:
        compare(lambda several: list(map(one, several)), counted, 3, 100)
    lines = [line for line in str(failure.value).splitlines() if line.startswith("s")]
    assert lines[-1].endswith(".countByValue()")
    assert len(lines) <= 4
    assert 0 < len(alone) <= _SHRINKING


@pytest.mark.deep
def test_programs_that_are_drawn_cover_the_operations() -> None:
    """The same programs come for the same seed, and many of them have each operation in one."""
    many = drawn(SEED + 1, MANY)
    assert many == drawn(SEED + 1, MANY)
    assert len(many) >= 200
    drawn_operations = {operation for program in many for operation in program.operations()}
    assert drawn_operations >= {"join", "cogroup", "updateStateByKey", "window", "ssc.union"}

"""Differential tests: random states, here and in the real pyspark.streaming."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark import SparkContext

from tests.conformance import functions
from tests.conformance.comparison import compare_all
from tests.conformance.oracle import Oracle
from tests.conformance.programs import Program, Queue, functions_of, use
from tests.conformance.recording import ProgramRunner, Recording

SEEDS = range(4)
MORE_SEEDS = range(4, 60)
UPDATES = ["bounded_list", "idle_batches", "last_text", "running_sum"]
KEYS: list[Any] = ["a", "b", "", 0, -7, 2**40, 1.5, None, ("a", 1), (), "Grüße"]


def random_program(seed: int) -> Program:
    """Make the program of a seed; the update functions take turns."""
    chance = random.Random(seed)
    update = UPDATES[seed % len(UPDATES)]
    initial = None
    if seed % 2:
        first = getattr(functions, update)
        initial = [(key, first([chance.randrange(9)], None)) for key in chance.sample(KEYS, 3)]
    batches = []
    for _ in range(8):
        size = chance.choice([0, 1, 3, 10])
        few = chance.sample(KEYS, chance.randrange(1, 6))
        batches.append([(chance.choice(few), chance.randrange(-3, 10)) for _ in range(size)])
    states = Queue(*batches).updateStateByKey(use(update), chance.randrange(1, 4), initial)
    return Program(f"seed {seed}", states, len(batches))


def compare(sc: SparkContext, oracle: ProgramRunner, seeds: range) -> None:
    for found in compare_all(sc, oracle, [random_program(seed) for seed in seeds]):
        found.require_equal()
        assert not found.ours.failed, found.report()


def test_programs_are_what_they_should_be() -> None:
    """The seeds cover all update functions, with and without initial state, and empty batches."""
    programs = [random_program(seed) for seed in SEEDS]
    states = [(program, node) for program in programs for node in program.streams()]
    used = {function.name for _, node in states for function in functions_of(node)}
    assert used == set(UPDATES)
    assert {str(program).endswith("None)\noutput(s2)") for program in programs} == {True, False}
    assert any("[]," in str(program) for program in programs)
    assert random_program(3) == random_program(3)


@pytest.mark.deep
def test_states_are_those_of_pyspark_streaming(sc: SparkContext, recording: Recording) -> None:
    """For batches that have an RDD both give the same state, key by key, in every batch."""
    compare(sc, recording, SEEDS)


@pytest.mark.slow
def test_more_states_are_those_of_pyspark_streaming(sc: SparkContext, oracle: Oracle) -> None:
    """The same for many more programs."""
    compare(sc, oracle, MORE_SEEDS)

"""The recorded results are still those of pyspark.streaming."""

from __future__ import annotations

import pytest

from tests.conformance.comparison import GROUP
from tests.conformance.oracle import Oracle
from tests.conformance.programs import Program, Queue
from tests.conformance.recording import Recording


@pytest.mark.parametrize(
    "every", [pytest.param(4, marks=pytest.mark.deep), pytest.param(1, marks=pytest.mark.slow)]
)
def test_pyspark_streaming_repeats_its_recorded_results(
    oracle: Oracle, recording: Recording, every: int
) -> None:
    """Run recorded programs again; each batch and slice is the recorded one."""
    different = []
    for group in recording.groups(GROUP)[::every]:
        oracle.ask(group)
        for program, run in zip(group, oracle.answer(), strict=True):
            different += recording.differences(program, run)
    assert not different, f"recorded with {recording.versions}: " + "\n\n".join(different)


def test_a_program_that_is_not_recorded_is_named(recording: Recording) -> None:
    """The error says what to run."""
    with pytest.raises(AssertionError, match=r"RECORD_PYSPARK=1 .*\n.*queueStream\(\[\[12345\]\]"):
        recording.ask([Program("new", Queue([12345]))])

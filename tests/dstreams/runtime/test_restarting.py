"""Restarting: the SparkContext that an earlier run is taken up with."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from dstreams.runtime import restarting
from dstreams.runtime.restarting import spark_for


class FakeContext:
    """A SparkContext as far as it can be stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> FakeContext:
    """The context that is made, in a process that has none."""
    made = FakeContext()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(restarting, "context_like", lambda conf_of: made)
    return made


def test_a_context_that_was_made_in_vain_is_stopped(made: FakeContext) -> None:
    """So that who begins anew can make another one, and nobody is left with two."""
    with pytest.raises(ValueError, match="in vain"), spark_for({}):
        raise ValueError("in vain")
    assert made.is_stopped


def test_a_context_that_was_made_stays(made: FakeContext) -> None:
    """For the streams that were taken up with it."""
    with spark_for({}) as spark:
        assert spark is made
    assert not made.is_stopped


def test_the_context_of_the_process_stays(sc: SparkContext) -> None:
    """It is that of the program, whatever happens."""
    with pytest.raises(ValueError, match="in vain"), spark_for({}):
        raise ValueError("in vain")
    with spark_for({}) as spark:
        assert spark is sc
    assert sc.parallelize([1]).count() == 1

"""Contexts that tests of the public surface start, step and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import Settings, StreamingContext
from dstreams.testing import ManualClock
from tests.support.shared_spark import set_checkpoint_directory

MakeContext = Callable[..., StreamingContext]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_ssc(sc: SparkContext, clock: ManualClock) -> Iterator[MakeContext]:
    """Make contexts of one second on *clock*, with settings by name; the test's end stops them."""
    contexts: list[StreamingContext] = []

    def make(batch_duration: float = 1, **settings: Any) -> StreamingContext:
        ssc = StreamingContext(sc, batch_duration, clock=clock, settings=Settings(**settings))
        contexts.append(ssc)
        return ssc

    yield make
    for ssc in contexts:
        ssc.stop(stopSparkContext=False)


@pytest.fixture
def ssc(make_ssc: MakeContext) -> StreamingContext:
    return make_ssc()


@pytest.fixture
def no_checkpoint_directory(sc: SparkContext) -> Iterator[None]:
    """Let the SparkContext forget the checkpoint directory that another test has set."""
    known = set_checkpoint_directory(sc, None)
    yield
    set_checkpoint_directory(sc, known)

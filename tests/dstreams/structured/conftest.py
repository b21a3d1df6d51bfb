"""Sessions that tests of structured queries start queries in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import py4j.java_gateway
import pytest
from pyspark import SparkContext

from dstreams.structured import StreamSession
from dstreams.testing import ManualClock

MakeSession = Callable[..., StreamSession]


@pytest.fixture(autouse=True)
def errors_of_py4j(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back, after each test, that a SparkSession gives errors of jobs another class."""
    known = py4j.java_gateway.get_return_value
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", known)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def make_session(sc: SparkContext, clock: ManualClock, tmp_path: Path) -> Iterator[MakeSession]:
    """Make sessions of two partitions of state, with settings; the test's end stops them."""
    sessions: list[StreamSession] = []

    def make(**settings: str) -> StreamSession:
        conf = {
            "spark.sql.shuffle.partitions": "2",
            "spark.dstreams.state.localDirectory": str(tmp_path / "local"),
            **settings,
        }
        sessions.append(StreamSession(sc, conf, clock))
        return sessions[-1]

    yield make
    for session in sessions:
        session.stop()


@pytest.fixture
def session(make_session: MakeSession) -> StreamSession:
    return make_session()

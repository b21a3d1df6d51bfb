"""Look-ups in checkpoints: of running and stopped programs, with and without trust."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import UntrustedFileError
from dstreams import (
    CheckpointState,
    InvalidStreamError,
    Settings,
    State,
    StateSpec,
    StreamingContext,
)
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.dstreams.monitoring.test_live_state import BUILD, EXPECTED, UPDATES, Pages

pytestmark = pytest.mark.usefixtures("active_stopped")


VISITS = [("ann", "/"), ("ann", "/shop"), ("bob", "/")]


@dataclass(frozen=True)
class Total:
    """A state of its own class."""

    sum: int


def add_up(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def running(key: Any, value: int | None, state: State[Total]) -> Any:
    before = state.getOption or Total(0)
    state.update(Total(before.sum + (value or 0)))
    return key, state.get.sum


def ignore(rdd: Any) -> None: ...


def define(sc: SparkContext, directory: Path, **settings: Any) -> StreamingContext:
    ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=Settings(**settings))
    ssc.checkpoint(str(directory))
    pairs = ssc.queueStream([[("a", 1), ("b", 2)], [("a", 10), (("c", 1), 5)], [("a", 100)]])
    pairs.mapWithState(StateSpec.function(running).timeout(60), uid="stored").foreachRDD(ignore)
    totals = pairs.updateStateByKey(add_up, uid="totals").checkpoint(2)
    totals.foreachRDD(ignore)
    return ssc


@pytest.mark.parametrize("values", ["data", "pickle"])
def test_states_of_a_stream(sc: SparkContext, tmp_path: Path, values: Any) -> None:
    """Stored state is that of the last commit, other state that of the newest snapshot."""
    ssc = define(sc, tmp_path, state_values=values)
    ssc.step(2)
    with CheckpointState(str(tmp_path)) as states:
        assert states.uids == ["totals", "stored"]
        stored, totals = states.state("stored"), states.state("totals")
        assert [stored.get(key) for key in ("a", ("c", 1), "z")] == [Total(11), Total(5), None]
        assert stored.look_up("a").batch_time_ms == totals.look_up("a").batch_time_ms == 2000
        assert stored.look_up("a").timeout_ms == 62_000
        assert [totals.get(key) for key in ("a", ("c", 1), "z")] == [11, 5, None]
        ssc.step()
        assert (stored.get("a"), stored.look_up("a").batch_time_ms) == (Total(111), 3000)
        assert (totals.get("a"), totals.look_up("a").batch_time_ms) == (11, 2000)
        assert stored.range("a", "b") == [("a", Total(111))]
        assert totals.range("a", "b") == [("a", 11)]
        assert dict(totals.range()) == {"a": 11, "b": 2, ("c", 1): 5}
        ssc.stop(stopSparkContext=False, stopGraceFully=True)  # adds a record, a millisecond later
        assert (totals.get("a"), totals.look_up("a").batch_time_ms) == (111, 3001)
        assert stored.get("a") == Total(111)


@pytest.mark.parametrize("kind", BUILD)
def test_states_of_a_query(sc: SparkContext, tmp_path: Path, kind: str) -> None:
    """Keys and states are those of a live look-up."""
    session = StreamSession(sc, clock=ManualClock(10_000))
    source = session.memoryStream("visits")
    mode = "update" if kind in UPDATES else "append"
    try:
        query = (
            BUILD[kind](source.toDS())
            .writeStream.format("memory")
            .queryName("q")
            .outputMode(mode)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        source.addData(*VISITS)
        query.processAllAvailable()
        with CheckpointState(str(tmp_path)) as states:
            state = states.state()
            assert {key: state.get(key) for key in EXPECTED[kind]} == EXPECTED[kind]
            assert state.get("nobody") is None
            assert state.look_up("ann").batch_time_ms == query.state().look_up("ann").batch_time_ms
            if kind != "processor":
                assert dict(state.range()) == EXPECTED[kind]
    finally:
        session.stop()


def test_processor_of_a_stream(sc: SparkContext, tmp_path: Path) -> None:
    """Its state is a dict of its variables, live and from the checkpoint, by the keys of pairs."""
    ssc = StreamingContext(sc, 1, clock=ManualClock(10_000))
    ssc.checkpoint(str(tmp_path))
    pairs = ssc.queueStream([[(user, (user, page)) for user, page in VISITS]])
    pairs.transformWithState(Pages(), timeMode="processingTime", uid="pages").foreachRDD(ignore)
    ssc.step()
    with CheckpointState(str(tmp_path)) as states:
        for state in (ssc.state("pages"), states.state("pages")):
            assert {key: state.get(key) for key in EXPECTED["processor"]} == EXPECTED["processor"]
            assert state.get(("ann",)) is None
            found = state.look_up("ann")
            assert found.timeout_ms == found.batch_time_ms + 5
            with pytest.raises(InvalidStreamError, match="has several entries for a key"):
                state.range()


def test_replicas_are_kept(sc: SparkContext, tmp_path: Path) -> None:
    """In a directory of the caller; else they are temporary."""
    ssc = define(sc, tmp_path / "checkpoint")
    ssc.step()
    local = tmp_path / "local"
    with CheckpointState(str(tmp_path / "checkpoint"), localDirectory=str(local)) as states:
        states.state("stored").get("a")
    assert list(local.rglob("data.mdb"))
    with CheckpointState(str(tmp_path / "checkpoint")) as states:
        states.state("stored").get("a")
        scratch = Path(states._scratch.name) if states._scratch else local
        assert list(scratch.rglob("data.mdb"))
    assert not scratch.exists()


@pytest.fixture
def others_can_write(tmp_path: Path) -> Iterator[None]:
    yield
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o700)


@pytest.mark.usefixtures("others_can_write")
@pytest.mark.parametrize("values", ["data", "pickle"])
def test_what_others_can_write_is_not_unpickled(
    sc: SparkContext, tmp_path: Path, values: Any
) -> None:
    """Snapshots and pickled values are refused; encoded data is read without running code."""
    ssc = define(sc, tmp_path, state_values=values)
    ssc.step(2)
    ssc.stop(stopSparkContext=False)
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.is_dir():
            path.chmod(0o777)
    with CheckpointState(str(tmp_path)) as states:
        with pytest.raises(UntrustedFileError):
            states.state("totals").get("a")
        if values == "data":
            assert states.state("stored").get("a") == Total(11)
        else:
            with pytest.raises(UntrustedFileError):
                states.state("stored").get("a")


def test_errors(sc: SparkContext, tmp_path: Path) -> None:
    """A location without a checkpoint, a wrong uid and a wrong key are named."""
    with pytest.raises(InvalidStreamError, match=r"the checkpoint .*/missing' cannot be opened"):
        CheckpointState(str(tmp_path / "missing"))
    ssc = define(sc, tmp_path)
    ssc.step(2)
    with CheckpointState(str(tmp_path)) as states:
        with pytest.raises(InvalidStreamError, match="known uids: stored, totals"):
            states.state("other")
        with pytest.raises(InvalidStreamError, match="several operators have state"):
            states.state()
        for uid in states.uids:
            with pytest.raises(InvalidStreamError, match=r"\{'a': 1\} cannot be a key"):
                states.state(uid).get({"a": 1})


PROGRAM = """
import sys
from pyspark import SparkContext
from dstreams import CheckpointState
from tests.dstreams.test_checkpoint_state import Total

with CheckpointState(sys.argv[1]) as states:
    print(states.state("stored").get("a"), states.state("totals").get("a"))
assert SparkContext._gateway is None
"""


@pytest.mark.deep
def test_another_process(sc: SparkContext, tmp_path: Path) -> None:
    """It reads while the stream runs, and starts no JVM."""
    ssc = define(sc, tmp_path)
    ssc.step(2)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "Total(sum=11) 11\n"), ended.stderr

"""Restarts: the contents of a checkpoint directory, and the SparkContext of the restart."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import pytest
from pyspark import SparkContext

from checkpoint import open_files
from checkpoint.cli.verify import verify_stream
from dstreams.engine.recovery import recover as recovery
from dstreams.engine.recovery.recover import recover, spark_for
from dstreams.errors import RestartError
from tests.support.stream_model import STREAM, Driver, World


class FakeContext:
    """A stand-in for a SparkContext that records whether it was stopped."""

    def __init__(self) -> None:
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> FakeContext:
    """The context that is created, in a process without one."""
    made = FakeContext()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(recovery, "context_like", lambda conf_of: made)
    return made


def test_a_context_that_was_made_in_vain_is_stopped(made: FakeContext) -> None:
    """A SparkContext that was created is stopped on failure, so the program can make its own."""
    with pytest.raises(ValueError, match="in vain"), spark_for({}):
        raise ValueError("in vain")
    assert made.is_stopped


def test_a_context_that_was_made_stays(made: FakeContext) -> None:
    """The SparkContext lives on if the streams resume with it."""
    with spark_for({}) as spark:
        assert spark is made
    assert not made.is_stopped


def test_the_context_of_the_process_stays(sc: SparkContext) -> None:
    """A SparkContext of the program is never stopped."""
    with pytest.raises(ValueError, match="in vain"), spark_for({}):
        raise ValueError("in vain")
    with spark_for({}) as spark:
        assert spark is sc
    assert sc.parallelize([1]).count() == 1


PARTS = ("batches", "commits", "epochs", "graph", "state")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stream with two runs, up to 7000 ms."""
    root = tmp_path_factory.mktemp("stream")
    world = World()
    for upto_ms in (5000, 7000):
        Driver(open_files(root / STREAM), world).run(upto_ms)
    return root / STREAM


@pytest.mark.parametrize("count", range(1, len(PARTS)))
def test_directories_that_are_lost_together_are_missed(
    stream: Path, tmp_path: Path, count: int
) -> None:
    """A restart is refused, or finds everything that was committed; verify reports the loss."""
    for lost in combinations(PARTS, count):
        shutil.copytree(stream, tmp_path / STREAM)
        for part in lost:
            shutil.rmtree(tmp_path / STREAM / part)
        with suppress(RestartError):
            found = recover(str(tmp_path))
            assert found is not None, lost
            assert found.records.last_ms == 7000, lost
        findings = verify_stream(open_files(tmp_path / STREAM))
        assert findings.problems or findings.notes, lost
        shutil.rmtree(tmp_path / STREAM)


def test_a_stream_without_its_graph_is_refused_with_what_can_be_done(
    stream: Path, tmp_path: Path
) -> None:
    """Also after a code change: the error says what was lost, where, and where the state is."""
    shutil.copytree(stream, tmp_path / STREAM)
    *_, newest = sorted((tmp_path / STREAM / "graph").iterdir())
    remedy = "read shows it, and a stream in another directory can have it as its initial state"
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes()[:-3])
    with pytest.raises(RestartError, match=rf"{newest.name} ends after .*; restore .*{remedy}"):
        recover(str(tmp_path))
    shutil.rmtree(tmp_path / STREAM / "graph")
    with pytest.raises(RestartError, match=rf"{STREAM}/graph/.* is missing; .*{remedy}"):
        recover(str(tmp_path))

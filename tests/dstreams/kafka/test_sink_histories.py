"""Output topics after different histories of a checkpoint: written, kept or an error."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams import DurabilityError, OutputConflictError, StreamingContext
from dstreams.testing import ManualClock
from tests.dstreams.engine.test_output_histories import Lines
from tests.support.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.usefixtures("active_stopped")


class KafkaLines(Lines):
    """A stream of the lines of files into a topic."""

    def __init__(self, sc: SparkContext, root: Path, kafka: KafkaCluster, missed: Any = "all"):
        super().__init__(sc, root, missed)
        self.kafka = kafka
        self.topic = kafka.create_topic(2)
        self.name = uuid.uuid4().hex[:8]
        self.once = True

    def define(self, more: str | None = None) -> StreamingContext:
        ssc = StreamingContext(self.sc, 1, clock=ManualClock(), settings=self.settings)
        ssc.checkpoint(str(self.checkpoint))
        lines = ssc.textFileStream(str(self.inputs), uid="lines")
        brokers = {"bootstrap.servers": self.kafka.bootstrap, "delivery.timeout.ms": 30_000}
        lines.saveToKafka(self.topic, brokers, value=str, name=self.name, exactlyOnce=self.once)
        return ssc

    def found(self) -> tuple[list[str], list[str]]:
        lines = sorted(value.decode() for value in self.kafka.values(self.topic) if value)
        return lines, lines


@pytest.mark.deep
@pytest.mark.parametrize("step", ["out.start", "out.done", "commit.start"])
def test_a_batch_that_a_crash_cut_off(
    sc: SparkContext,
    kafka: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Records of the dead driver are kept, the rest is written."""
    stream = KafkaLines(sc, tmp_path, kafka)
    stream.put(1, 2, 3)
    stream.crash_in(monkeypatch, step, 1)
    stream.put(4)
    stream.run(3)
    stream.require(1, 2, 3, 4)


@pytest.mark.deep
def test_a_batch_that_a_crash_cut_off_at_least_once(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without transactions the batch is written again."""
    stream = KafkaLines(sc, tmp_path, kafka)
    stream.once = False
    stream.put(1, 2, 3)
    stream.crash_in(monkeypatch, "out.done", 1)
    stream.run(2)
    stream.require(1, 2, 2, 3)


@pytest.mark.deep
def test_an_older_copy_that_is_put_back(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Its batches are others than those that the topic has under their numbers."""
    stream = KafkaLines(sc, tmp_path, kafka)
    stream.put(1, 2, 3)
    stream.run(2)
    stream.backup()
    stream.run(2)
    stream.put_back()
    stream.put(4)
    stream.refuse(1, rf"sink '{stream.name}', by its commits in __dstreams_commits, has batch 2 of")


@pytest.mark.deep
def test_an_older_copy_that_leaves_out_batches(
    sc: SparkContext, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The next batch detects batches in between, which would be written again."""
    stream = KafkaLines(sc, tmp_path, kafka, missed="merge")
    stream.put(1, 2, 3)
    stream.run(2)
    stream.backup()
    stream.run(2)
    stream.put_back()
    stream.put(4)
    before = stream.found()
    with pytest.raises(DurabilityError, match=r"has batch 2 of .*; this is batch 7") as stopped:
        stream.run(1, clock=8)
    assert isinstance(stopped.value.__cause__, OutputConflictError)
    assert stream.found() == before

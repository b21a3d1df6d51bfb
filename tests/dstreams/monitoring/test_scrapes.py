"""Scrapes while a stream and a query run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark import SparkContext

from dstreams import BatchFailedError, Settings, State, StateSpec, StreamingContext
from dstreams.monitoring.metrics import render_metrics
from dstreams.structured import StreamSession
from dstreams.testing import ManualClock
from tests.dstreams.conftest import MakeContext


def count(key: str, value: int | None, state: State[int]) -> tuple[str, int]:
    state.update((state.get if state.exists else 0) + (value or 0))
    return key, state.get


def scrape(stream: str, *labelled: str) -> dict[str, float]:
    """Return the samples of a stream by name and one label."""
    _, body = render_metrics()
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("stream") == stream:
                names = ("outcome", "uid", *labelled)
                shown = next((labels[name] for name in names if name in labels), "")
                found[f"{sample.name.removeprefix('dstreams_')} {shown}".strip()] = sample.value
    return found


@pytest.mark.deep
def test_an_output_that_fails_is_seen_by_who_scrapes(
    make_ssc: MakeContext, clock: ManualClock, tmp_path: Path
) -> None:
    """One batch succeeds, and an output of the other fails."""
    ssc = make_ssc()
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    pairs = ssc.queueStream([[("a", 1), ("b", 2)], [("a", 3)]], uid="pairs")
    counts = pairs.mapWithState(StateSpec.function(count), uid="counts")

    def save(rdd: Any) -> None:
        if rdd.collect() == [("a", 4)]:
            raise ValueError("no disk")

    counts.foreachRDD(save)
    name = ssc.sparkContext.appName
    ssc.step()
    before = scrape(name)
    assert before["batches_total succeeded"] == 1
    assert before["output_failures_total"] == 0
    with pytest.raises(BatchFailedError, match="no disk"):
        ssc.step()
    after = scrape(name)
    assert (after["batches_total succeeded"], after["batches_total failed"]) == (1, 1)
    assert after["output_failures_total"] == 1
    assert after["records_total"] == 3
    assert after["batch_processing_seconds_count"] == 2
    assert after["batch_last_completed_timestamp_seconds"] == clock.now_ms() / 1000
    assert (after["state_keys counts"], after["checkpoint_epoch"]) == (2, 1)
    assert after["state_bytes counts"] > 0
    for disk in ("checkpoint", "local_state"):
        assert 0 < after[f"{disk}_free_bytes"] <= after[f"{disk}_size_bytes"]
    ssc.stop(stopSparkContext=False)
    ended = scrape(name)
    assert (ended["stream_active"], ended["output_failures_total"]) == (0, 1)
    assert "state_keys counts" not in ended


def test_lag_and_rejected_records_of_a_topic_are_scraped(sc: SparkContext) -> None:
    """A batch reads two of seven records per partition; the first one is not JSON."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    from dstreams.cli.demo import MockCluster  # noqa: PLC0415
    from dstreams.kafka import (  # noqa: PLC0415
        ConsumerStrategies,
        JsonDecoder,
        KafkaUtils,
        LocationStrategies,
    )
    from tests.support.kafka_cluster import KafkaCluster  # noqa: PLC0415 - skips without parts

    with MockCluster() as cluster:
        KafkaCluster(cluster.brokers).produce("clicks", ["{", *["1"] * 6], 0)
        settings = Settings(kafka_max_rate=2)
        ssc = StreamingContext(sc, 1, clock=ManualClock(), settings=settings)
        parameters = {
            "bootstrap.servers": cluster.brokers,
            "auto.offset.reset": "earliest",
            "value.deserializer": JsonDecoder(int),
        }
        strategy = ConsumerStrategies.Subscribe(["clicks"], parameters)
        KafkaUtils.createDirectStream(
            ssc, LocationStrategies.PreferConsistent, strategy, badRecords="DROPMALFORMED"
        ).foreachRDD(lambda rdd: rdd.count())
        try:
            ssc.step()
            found = scrape(sc.appName, "partition")
            assert found["source_lag_records 0"] == 5
            assert found["source_lag_records 1"] == 0
            assert found["rejected_records_total"] == 1
            ssc.step()
            assert scrape(sc.appName, "partition")["source_lag_records 0"] == 3
        finally:
            ssc.stop(stopSparkContext=False)


def test_a_query_is_scraped_by_its_name(sc: SparkContext) -> None:
    """Data drives it, so that it has no interval; its end is seen, too."""
    session = StreamSession(sc, clock=ManualClock(10_000))
    words = session.memoryStream("words")
    counts = words.toDS().groupByKey(lambda word: word).count()
    query = counts.writeStream.format("memory").queryName("counts").outputMode("complete").start()
    try:
        words.addData("a", "b", "a")
        query.processAllAvailable()
        found = scrape("counts")
        assert (found["batches_total succeeded"], found["records_total"]) == (1, 3)
        assert [value for name, value in found.items() if name.startswith("state_keys")] == [2]
        assert "batch_interval_seconds" not in found
        assert found["stream_active"] == 1
    finally:
        session.stop()
    assert scrape("counts")["stream_active"] == 0

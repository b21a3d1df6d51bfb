"""Instruments of OpenTelemetry, collected by a reader in memory. No Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dstreams import EnvironmentNotReadyError
from dstreams.metrics import opentelemetry as module
from dstreams.metrics.catalogue import METRICS
from dstreams.metrics.opentelemetry import observe
from dstreams.monitor.status import StreamStatus
from tests.support.statuses import CLICKS, SAVE, a_status

pytest.importorskip("opentelemetry.sdk.metrics", reason="pip install -e '.[dev]'")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, Sum


class Known:
    """An application of known statuses, which counts how often it is asked."""

    def __init__(self, *statuses: StreamStatus) -> None:
        self.known, self.times = statuses, 0

    def statuses(self) -> tuple[StreamStatus, ...]:
        self.times += 1
        return self.known


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    known = Known(a_status())
    monkeypatch.setattr(module, "application", lambda: known)
    return known


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe(provider)
    yield reader
    provider.shutdown()


def collected(reader: InMemoryMetricReader) -> dict[str, Metric]:
    data = reader.get_metrics_data()
    [of_resource] = data.resource_metrics
    [scope] = of_resource.scope_metrics
    assert scope.scope.name == "dstreams"
    return {metric.name: metric for metric in scope.metrics}


def values(metric: Metric) -> dict[tuple[str, ...], float]:
    """Return the values by the attributes beside that of the stream."""
    return {
        tuple(value for name, value in point.attributes.items() if name != "stream"): point.value
        for point in metric.data.data_points
    }


def test_each_metric_is_observed(known: Known, reader: InMemoryMetricReader) -> None:
    """By its name without unit and suffix; times of batches by their sum and count."""
    found = collected(reader)
    assert len(found) == len(METRICS) + 2
    assert {name.removeprefix("dstreams.") for name in found} >= {
        "batches",
        "batch_processing_sum",
        "batch_processing_count",
        "checkpoint_age",
        "checkpoint_free",
        "source_lag_records",
        "stream_started_timestamp",
    }
    units = {name: metric.unit for name, metric in found.items()}
    assert set(units.values()) == {"", "s", "By", "{record}"}
    assert (units["dstreams.checkpoint_age"], units["dstreams.state"]) == ("s", "By")
    for metric in METRICS:
        told = [one for one in found.values() if one.description == metric.meaning]
        assert len(told) == (2 if metric.kind == "histogram" else 1)
        for one in told:
            assert isinstance(one.data, Gauge if metric.kind == "gauge" else Sum)
            if isinstance(one.data, Sum):
                assert one.data.is_monotonic


def test_values_are_those_of_the_status(known: Known, reader: InMemoryMetricReader) -> None:
    """With labels as attributes."""
    found = collected(reader)
    assert values(found["dstreams.batches"])[("failed",)] == 1
    assert values(found["dstreams.output_failures"]) == {(SAVE,): 1}
    assert values(found["dstreams.batch_processing_sum"]) == {(): 0.3}
    assert values(found["dstreams.batch_processing_count"]) == {(): 1}
    assert values(found["dstreams.checkpoint_free"]) == {(): 250}
    lag = {(CLICKS, "clicks", "0"): 7, (CLICKS, "clicks", "1"): 3}
    assert values(found["dstreams.source_lag_records"]) == lag
    [point] = found["dstreams.batches_waiting"].data.data_points
    assert point.attributes == {"stream": "app"}


def test_a_collection_asks_once(known: Known, reader: InMemoryMetricReader) -> None:
    """All instruments see the same statuses, and the next collection newer ones."""
    collected(reader)
    assert known.times == 1
    known.known = (a_status(waiting=()),)
    assert values(collected(reader)["dstreams.batches_waiting"]) == {(): 0}
    assert known.times == 2


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"pip install 'dstreams\[otel\]'"):
        observe()

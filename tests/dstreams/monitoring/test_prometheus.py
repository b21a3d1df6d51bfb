"""The text that Prometheus scrapes. No Spark."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, openmetrics, parser
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dstreams.kafka.offsets import TopicPartition
from dstreams.monitoring.events import InputInfo
from dstreams.monitoring.metrics import (
    METRICS,
    OTHER,
    PARTITIONS,
    SERIES,
    Metric,
    StreamCollector,
    families,
    render_metrics,
)
from dstreams.monitoring.status import BUCKETS_S, StateStatus, StreamStatus, Totals
from tests.support.promtool import require_promtool
from tests.support.statuses import CLICKS, SAVE, a_batch, a_status

Labels = tuple[tuple[str, str], ...]


class Collected:
    def __init__(self, *statuses: StreamStatus) -> None:
        self.statuses = statuses

    def collect(self) -> Iterator[Family]:
        return families(self.statuses)


def samples(*statuses: StreamStatus) -> dict[str, dict[Labels, float]]:
    """Return the values of some statuses by sample name and labels."""
    values: dict[str, dict[Labels, float]] = {}
    text = generate_latest(Collected(*statuses)).decode()
    for family in parser.text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            at = values.setdefault(name, {})
            labelled = tuple(labels.items())
            assert labelled not in at, "a series is there twice"
            at[labelled] = value
    return values


def of_app(values: dict[Labels, float]) -> dict[str, float]:
    """Return values of one stream by its other label, empty without one."""
    return {dict(labels).get(other_label(labels), ""): value for labels, value in values.items()}


def other_label(labels: Labels) -> str:
    names = [name for name, _ in labels if name != "stream"]
    return names[0] if names else ""


def test_what_is_asked_for_is_given() -> None:
    """OpenMetrics if the header accepts it, otherwise the text format of Prometheus."""
    assert render_metrics(None)[0] == "text/plain; version=0.0.4; charset=utf-8"
    assert render_metrics("*/*")[0] == "text/plain; version=0.0.4; charset=utf-8"
    content_type, body = render_metrics("application/openmetrics-text; version=1.0.0, */*")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


def test_every_metric_has_something_to_say_of_a_whole_stream() -> None:
    """In both formats, which parsers of theirs read; that of OpenMetrics is strict."""
    names = {f"dstreams_{metric.name}" for metric in METRICS}
    text = generate_latest(Collected(a_status())).decode()
    read = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert set(read) == names
    strict = generate_openmetrics(Collected(a_status())).decode()
    again = {family.name: family for family in text_string_to_metric_families(strict)}
    assert set(again) == names
    for metric in METRICS:
        family = again[f"dstreams_{metric.name}"]
        assert (family.type, family.unit) == (metric.kind, metric.unit)
        assert family.documentation == metric.meaning
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {"stream", *metric.labels}


def test_values_are_those_of_the_status() -> None:
    """In base units: seconds, bytes and plain counts."""
    values = samples(a_status())
    one = {name: next(iter(of.values())) for name, of in values.items() if len(of) == 1}
    assert one["dstreams_batches_waiting"] == 1
    assert one["dstreams_batch_running_seconds"] == 1.5
    assert one["dstreams_batch_last_completed_timestamp_seconds"] == 1.32
    assert one["dstreams_batch_interval_seconds"] == 1
    assert one["dstreams_batch_processing_seconds_sum"] == 0.3
    assert one["dstreams_watermark_lag_seconds"] == 9.7
    assert one["dstreams_checkpoint_age_seconds"] == 9.5
    assert one["dstreams_checkpoint_recomputed_batches"] == 1
    assert one["dstreams_state_commit_seconds_total"] == 0.25
    assert of_app(values["dstreams_batches_total"]) == {
        "succeeded": 0,
        "failed": 1,
        "empty": 0,
        "cancelled": 0,
    }
    assert of_app(values["dstreams_state_bytes"]) == {"sessions": 4096, "counts": 20}
    assert of_app(values["dstreams_state_largest_partition_keys"])["sessions"] == 30
    assert of_app(values["dstreams_records_total"])[CLICKS] == 100
    assert of_app(values["dstreams_rejected_records_total"])[CLICKS] == 2
    buckets = values["dstreams_batch_processing_seconds_bucket"]
    counts = {dict(labels)["le"]: count for labels, count in buckets.items()}
    assert counts == {
        **{str(bound): float(bound >= 0.3) for bound in BUCKETS_S},
        "+Inf": 1,
    }


def test_an_output_has_its_counter_before_it_fails() -> None:
    """So that the first failure is an increase."""
    values = samples(a_status(totals=Totals()))
    assert of_app(values["dstreams_output_failures_total"]) == {SAVE: 0}
    assert set(of_app(values["dstreams_batches_total"]).values()) == {0}


def test_changelogs_say_nothing_of_the_size_of_a_state() -> None:
    """They have the changes of a batch alone, which would be taken for a state that shrank."""
    state = StateStatus("sessions", "map", 1000, 40, None, 20, (), has_changelogs=True)
    assert "dstreams_state_bytes" not in samples(a_status(states=(state,)))


def test_what_has_ended_keeps_its_counts() -> None:
    """Counters remain, gauges such as the lag do not."""
    values = samples(a_status(phase="failed", failure="no disk", ended_ms=9000))
    gauges = {f"dstreams_{metric.name}" for metric in METRICS if metric.kind == "gauge"}
    assert gauges & set(values) == {
        "dstreams_stream_active",
        "dstreams_stream_failed",
        "dstreams_stream_started_timestamp_seconds",
        "dstreams_batch_last_completed_timestamp_seconds",
    }
    assert of_app(values["dstreams_stream_active"]) == {"": 0}
    assert of_app(values["dstreams_stream_failed"]) == {"": 1}
    assert of_app(values["dstreams_batches_total"])["failed"] == 1


def test_what_begins_is_told() -> None:
    """A restart may take long: what is known of a stream before its first batch is there."""
    begun = {name for name in samples(a_status()) if name.startswith("dstreams_")}
    beginning = samples(a_status(phase="initialized"))
    assert begun <= set(beginning)
    assert of_app(beginning["dstreams_stream_active"]) == {"": 1}


def streams(values: dict[Labels, float]) -> Sequence[str]:
    return sorted(dict(labels)["stream"] for labels in values)


def test_each_series_is_there_once() -> None:
    """A running stream replaces an ended one of its name; two running ones have ids."""
    ended = a_status(phase="stopped", id="before")
    assert streams(samples(a_status(), ended)["dstreams_stream_active"]) == ["app"]
    assert of_app(samples(a_status(), ended)["dstreams_stream_active"]) == {"": 1}
    assert of_app(samples(ended, a_status(phase="failed"))["dstreams_stream_failed"]) == {"": 0}
    both = samples(a_status(), a_status(id="stream-2"), ended, a_status(name="other"))
    assert streams(both["dstreams_stream_active"]) == ["app stream-1", "app stream-2", "other"]


def test_partitions_have_a_bounded_number_of_series() -> None:
    """The rest is added up: the sum over all is the lag of the source."""
    lags = {TopicPartition("clicks", number): 1 for number in range(PARTITIONS + 50)}
    known = a_batch(0, inputs=(InputInfo(0, CLICKS, 0, "", {"lag": lags}),))
    status = a_status(recent=(known, a_batch(1, inputs=())), running=None, waiting=())
    values = samples(status)["dstreams_source_lag_records"]
    assert len(values) == PARTITIONS + 1
    assert sum(values.values()) == PARTITIONS + 50
    [rest] = [count for labels, count in values.items() if ("topic", OTHER) in labels]
    assert rest == 50
    shown = {int(dict(labels)["partition"]) for labels in values if ("topic", OTHER) not in labels}
    assert shown == set(range(PARTITIONS))


def test_a_metric_that_cannot_be_read_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """The log names it once."""
    broken = a_status(rate_limits=cast("Any", None))
    found = samples(broken, a_status(id="stream-2"))
    assert "dstreams_input_rate_limit" not in found
    assert len(found) > 20
    samples(broken)
    [told] = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert told == "skipped metric dstreams_input_rate_limit in /metrics"


def test_names_have_a_bounded_number_of_series() -> None:
    """A program that made names without end would else fill the server that scrapes it."""
    totals = replace(Totals(), records={f"source-{number}": 1 for number in range(SERIES * 3)})
    values = of_app(samples(a_status(totals=totals))["dstreams_records_total"])
    assert len(values) == SERIES + 1
    assert values[OTHER] == SERIES * 2


def test_names_come_from_strangers() -> None:
    """Any name makes one line per sample, and secrets in URLs are removed."""
    name = 'a"} 1\nfake_total{x="\\ \ud800 é'
    sources = {"https://me:secret@host/x?sig=abc": 1, "x\n": 2}
    values = samples(a_status(name=name, totals=replace(Totals(), records=sources)))
    assert {one for one in values if not one.startswith("dstreams_")} == set()
    assert set(streams(values["dstreams_stream_active"])) == {name.replace("\ud800", "?")}
    assert of_app(values["dstreams_records_total"]) == {
        "https://me:***@host/x?sig=***": 1,
        "x\n": 2,
    }
    same = replace(Totals(), records={"s3://a:1@b": 1, "s3://a:2@b": 2})
    assert of_app(samples(a_status(totals=same))["dstreams_records_total"]) == {"s3://a:***@b": 3}


def test_a_program_can_serve_them_among_its_own() -> None:
    """A registry knows the names, and refuses them a second time."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(StreamCollector())
    with pytest.raises(ValueError, match="dstreams_stream_info"):
        registry.register(StreamCollector())
    assert isinstance(generate_latest(registry), bytes)


def test_the_library_is_loaded_by_who_scrapes() -> None:
    """It takes a good part of a second, which no start of a stream waits for."""
    program = "import sys, dstreams.monitoring.metrics\nprint('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


BASE_UNITS = {"", "seconds", "bytes"}
OTHER_UNITS = r"_(ms|milliseconds|minutes|hours|days|kb|mb|kilobytes|megabytes|percent)(_|$)"
OF_THE_FORMAT = ("_total", "_count", "_sum", "_bucket", "_created")
RESERVED_LABELS = {"le", "quantile", "job", "instance", "alertname", "severity"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_prometheus(metric: Metric) -> None:
    """Base units at the end, no suffixes of the format, no reserved labels."""
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert metric.unit in BASE_UNITS
    assert metric.name.endswith(f"_{metric.unit}") or not metric.unit
    for unit in BASE_UNITS - {metric.unit, ""}:
        assert unit not in metric.name.split("_")
    assert not re.search(OTHER_UNITS, metric.name)
    assert not metric.name.endswith(OF_THE_FORMAT), "the format adds those of counters"
    assert not {"counter", "gauge", "histogram"} & set(metric.name.split("_"))
    assert re.fullmatch(r"[A-Z1][^\n]*[^.]\.", metric.meaning)
    labels = {"stream", *metric.labels}
    assert len(labels) == 1 + len(metric.labels)
    assert all(re.fullmatch(r"[a-z][a-z_]*[a-z]", label) for label in labels)
    assert not labels & RESERVED_LABELS
    assert not any(label.startswith("__") for label in labels)


def test_names_are_unique() -> None:
    """Also with what the format adds to those of counters and histograms."""
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    added = {f"{metric.name}_total" for metric in METRICS if metric.kind == "counter"}
    assert not added & set(names)


def test_the_linter_of_prometheus_has_nothing_to_say() -> None:
    """It has rules of its own, and parses the text once more."""
    text = generate_latest(Collected(a_status()))
    done = subprocess.run(
        [require_promtool(), "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_both_formats_have_the_same_samples() -> None:
    """OpenMetrics writes numbers and units in another way, and nothing else."""
    plain = samples(a_status())
    text = openmetrics.exposition.generate_latest(Collected(a_status())).decode()
    strict: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            strict.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    assert {
        name: {tuple(sorted(labels)): value for labels, value in values.items()}
        for name, values in plain.items()
    } == strict

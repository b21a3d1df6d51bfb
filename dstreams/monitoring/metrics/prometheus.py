"""What runs, as the text that Prometheus scrapes; made anew for each scrape."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from dstreams.monitoring.application import application
from dstreams.monitoring.metrics.catalogue import METRICS, Metric, labelled
from dstreams.monitoring.status import StreamStatus
from dstreams.monitoring.totals import BUCKETS_S, Histogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

logger = logging.getLogger(__name__)

PREFIX = "dstreams_"
_FAILED: set[str] = set()
_BOUNDS = (*(str(bound) for bound in BUCKETS_S), "+Inf")


def render_metrics(accept: str | None = None) -> tuple[str, bytes]:
    """Return content type and body of the metrics of all streams and queries of this process.

    Args:
        accept: the header ``Accept`` of who asks. OpenMetrics where that names it, else the text
            format of Prometheus.

    Semantics: the exposition formats of Prometheus (text 0.0.4) and OpenMetrics (1.0.0).
    """
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - takes time to load

    encode, content_type = choose_encoder(accept or "")
    return content_type, encode(StreamCollector())


class StreamCollector:
    """Collects the metrics of all streams and queries of this process.

    A program that serves metrics of its own adds them to those:
    ``prometheus_client.REGISTRY.register(StreamCollector())``.
    """

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric that has something to say."""
        return families(application().statuses())

    def describe(self) -> Iterator[Family]:
        """Yield the families without samples: so a registry learns their names."""
        return (_family(metric, ()) for metric in METRICS)


def families(statuses: Sequence[StreamStatus]) -> Iterator[Family]:
    """Yield a family for each metric that has a sample of one of the statuses."""
    streams = labelled(statuses)
    for metric in METRICS:
        try:
            family = _family(metric, streams)
        except Exception:
            _failed(metric.name)
            continue
        if family.samples:
            yield family


def _failed(name: str) -> None:
    """Log once that a metric cannot be read; the others are served."""
    level = logging.DEBUG if name in _FAILED else logging.WARNING
    _FAILED.add(name)
    logger.log(level, "left metric %s%s out of /metrics", PREFIX, name, exc_info=True)


def _family(metric: Metric, streams: Iterable[tuple[str, StreamStatus]]) -> Family:
    from prometheus_client.metrics_core import Metric as Family  # noqa: PLC0415 - the same

    family = Family(PREFIX + metric.name, metric.meaning, metric.kind, metric.unit)
    for stream, status in streams:
        for values, value in metric.samples(status):
            labels = dict(zip(("stream", *metric.labels), (stream, *values), strict=True))
            match value:
                case Histogram():
                    _add_histogram(family, labels, value)
                case _ if metric.kind == "counter":
                    family.add_sample(f"{family.name}_total", labels, value)
                case _:
                    family.add_sample(family.name, labels, value)
    return family


def _add_histogram(family: Family, labels: dict[str, str], histogram: Histogram) -> None:
    counts = list(accumulate(histogram.counts))
    for bound, count in zip(_BOUNDS, counts, strict=True):
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{family.name}_count", labels, counts[-1])
    family.add_sample(f"{family.name}_sum", labels, histogram.sum_s)

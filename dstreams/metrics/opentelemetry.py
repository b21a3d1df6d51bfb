"""What runs, as instruments of OpenTelemetry, which ask for it whenever a reader collects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dstreams.errors import EnvironmentNotReadyError
from dstreams.metrics.catalogue import METRICS, Metric, Number, labelled
from dstreams.monitor.application import application
from dstreams.monitor.status import StreamStatus
from dstreams.monitor.totals import Histogram

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

PREFIX = "dstreams."
_UNITS = {"seconds": "s", "bytes": "By", "records": "{record}"}
_IN_NAME = ("seconds", "bytes")  # of which OpenTelemetry wants the unit beside the name


def observe(meter_provider: MeterProvider | None = None) -> None:
    """Let a meter provider observe all streams and queries of this process, now and later.

    Once for each provider is enough. Instruments have the names of Prometheus after ``dstreams.``,
    without a unit that is told as such (``s``, ``By``) and without ``_total``; exported to
    Prometheus again they have the names that :func:`dstreams.metrics.prometheus.render_metrics`
    gives. Labels are attributes. No instrument of OpenTelemetry observes a histogram: of the times
    of batches there are two counters, ``..._sum`` in seconds and ``..._count``.

    Args:
        meter_provider: None for that of the process (``opentelemetry.metrics``).

    Raises:
        EnvironmentNotReadyError: OpenTelemetry is not installed.
    """
    library = _opentelemetry()
    provider = library.get_meter_provider() if meter_provider is None else meter_provider
    meter, snapshot = provider.get_meter("dstreams"), _Snapshot()
    for metric in METRICS:
        for instrument in _instruments(metric):
            make = (
                meter.create_observable_gauge
                if metric.kind == "gauge"
                else meter.create_observable_counter
            )
            observed = _Observed(instrument, snapshot, library.Observation)
            make(PREFIX + instrument.name, [observed], instrument.unit, metric.meaning)


def _opentelemetry() -> ModuleType:
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise EnvironmentNotReadyError(
            "metrics are observed by the package opentelemetry-api, which cannot be imported here "
            f"({error}); install it where the driver runs: pip install 'dstreams[otel]'"
        ) from error
    return metrics


@dataclass(frozen=True)
class _Instrument:
    """An instrument for a metric, and the number that it takes of each of its values."""

    name: str
    unit: str
    metric: Metric
    number: Callable[[Any], Number]


def _instruments(metric: Metric) -> Iterator[_Instrument]:
    is_known = metric.unit in _IN_NAME
    name = metric.name.removesuffix(f"_{metric.unit}") if is_known else metric.name
    unit = _UNITS.get(metric.unit, "")
    if metric.kind == "histogram":
        yield _Instrument(f"{name}_sum", unit, metric, _sum)
        yield _Instrument(f"{name}_count", "", metric, _count)
    else:
        yield _Instrument(name, unit, metric, lambda value: value)


def _sum(histogram: Histogram) -> float:
    return histogram.sum_s


def _count(histogram: Histogram) -> int:
    return sum(histogram.counts)


class _Snapshot:
    """The statuses that all instruments of one collection see.

    A reader asks the instruments one after another, and does not say where a collection begins: it
    does when an instrument asks that has seen these statuses.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: Sequence[tuple[str, StreamStatus]] | None = None
        self._seen: set[str] = set()

    def streams(self, instrument: str) -> Sequence[tuple[str, StreamStatus]]:
        """Return the statuses for an instrument, each with the label of its stream."""
        with self._lock:
            if self._streams is None or instrument in self._seen:
                self._streams, self._seen = labelled(application().statuses()), set()
            self._seen.add(instrument)
            return self._streams


@dataclass(frozen=True)
class _Observed:
    """What an instrument calls when it is collected."""

    instrument: _Instrument
    snapshot: _Snapshot
    observation: Callable[..., Any]

    def __call__(self, options: object) -> Iterator[Any]:
        metric = self.instrument.metric
        for stream, status in self.snapshot.streams(self.instrument.name):
            for values, value in metric.samples(status):
                labels = dict(zip(("stream", *metric.labels), (stream, *values), strict=True))
                yield self.observation(self.instrument.number(value), labels)

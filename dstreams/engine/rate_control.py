"""Backpressure: after each batch an estimator sets the rate limit of each source."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dstreams.common.settings import Settings
from dstreams.errors import InvalidStreamError
from dstreams.graph.node import InputDStream
from dstreams.monitoring.events import BatchCompleted, BatchInfo, Event
from dstreams.sources.source import SourceReader

logger = logging.getLogger(__name__)


class PidEstimator:
    """A PID controller that estimates the rate at which records can be processed.

    The defaults are Spark's. Rates are in records per second; *minimum* is the lowest estimate.
    *proportional* is the weight of the error (the last estimate minus the rate just measured),
    *integral* that of the accumulated error (the backlog, as the rate that would process it in one
    batch), *derived* that of the change of the error per second.

    Semantics: Spark's PIDRateEstimator.
    """

    def __init__(
        self,
        batch_ms: int,
        proportional: float = 1.0,
        integral: float = 0.2,
        derived: float = 0.0,
        minimum: float = 100.0,
    ) -> None:
        if min(proportional, integral, derived) < 0 or min(batch_ms, minimum) <= 0:
            raise InvalidStreamError(
                "the weights of a rate estimator must be at least 0, its batch duration and "
                f"minimum above 0; got proportional={proportional!r}, integral={integral!r}, "
                f"derived={derived!r}, minimum={minimum!r}, batch_ms={batch_ms!r}"
            )
        self._batch_ms = batch_ms
        self._proportional = proportional
        self._integral = integral
        self._derived = derived
        self._minimum = minimum
        self._latest_ms = -1
        self._latest_rate: float | None = None
        self._latest_error = 0.0

    def compute(
        self, completed_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> float | None:
        """Return the new estimate from the measurements of a batch, which ended at *completed_ms*.

        Return None after the first batch, and after a batch that had no records, took no time, or
        did not end later than an earlier one.
        """
        if records <= 0 or processing_ms <= 0:
            return None
        if completed_ms <= self._latest_ms:
            # Batches end one after another, so the clock was set back.
            self._latest_ms = completed_ms
            return None
        measured = records / processing_ms * 1000
        if self._latest_rate is None:
            self._latest_ms, self._latest_rate = completed_ms, measured
            return None
        seconds = (completed_ms - self._latest_ms) / 1000
        error = self._latest_rate - measured
        waiting = scheduling_ms * measured / self._batch_ms
        change = (error - self._latest_error) / seconds
        rate = (
            self._latest_rate
            - self._proportional * error
            - self._integral * waiting
            - self._derived * change
        )
        self._latest_ms, self._latest_error = completed_ms, error
        self._latest_rate = max(self._minimum, rate)
        return self._latest_rate


class RateControl:
    """Sets the rate limit of each source that can be limited, now and after each batch.

    The first batch with records of a process sets no limit: it pays for imports, workers and
    caches. The delay that it causes is not counted while it shrinks. The limit of a receiver is
    never above ``spark.streaming.receiver.maxRate``.

    Attributes:
        limits: current limits in records per second, by input stream id.
    """

    def __init__(
        self,
        sources: Mapping[int, SourceReader],
        settings: Settings,
        batch_ms: int,
    ) -> None:
        self._sources = sources
        self.limits: dict[int, int] = {}
        self._max_rates = {
            stream_id: settings.receiver_max_rate if source.rate_limit == "receiver" else None
            for stream_id, source in sources.items()
        }
        self._is_adaptive = settings.backpressure
        self._estimators = {
            stream_id: PidEstimator(batch_ms, minimum=settings.pid_minimum) for stream_id in sources
        }
        self._left_ms: dict[int, int] = {}
        self._primed: set[int] = set()
        initial = settings.backpressure_initial_rate if settings.backpressure else None
        for stream_id, source in sources.items():
            both = (initial, self._max_rates[stream_id])
            limits = [rate for rate in both if rate is not None]
            if limits:
                source.update_rate(min(limits))
                self.limits[stream_id] = min(limits)

    def observe(self, event: Event) -> None:
        """Set new limits after a batch that succeeded; other events change nothing."""
        if (
            self._is_adaptive
            and isinstance(event, BatchCompleted)
            and event.batch.outcome == "succeeded"
        ):
            for stream_id in self._sources:
                self._adapt(stream_id, event.batch)

    def _adapt(self, stream_id: int, batch: BatchInfo) -> None:
        given = [one.records for one in batch.inputs if one.stream_id == stream_id]
        records, processing_ms = given[0] or 0 if given else 0, batch.processing_delay_ms
        if records <= 0 or processing_ms <= 0:
            return
        if stream_id not in self._left_ms:
            self._left_ms[stream_id] = batch.total_delay_ms
            return
        left_ms = min(self._left_ms[stream_id], batch.scheduling_delay_ms)
        self._left_ms[stream_id] = left_ms
        estimator = self._estimators[stream_id]
        if stream_id not in self._primed:
            self._primed.add(stream_id)
            estimator.compute(batch.completed_ms - 1, records, processing_ms, 0)
        estimate = estimator.compute(
            batch.completed_ms, records, processing_ms, batch.scheduling_delay_ms - left_ms
        )
        limit = self._max_rates[stream_id]
        rate = 0 if estimate is None else int(min(estimate, limit or estimate))
        if rate > 0:
            try:
                self._sources[stream_id].update_rate(rate)
                self.limits[stream_id] = rate
            except Exception:
                message = "failed to set the rate of stream %d to %d records/s"
                logger.warning(message, stream_id, rate, exc_info=True)


def limit_rates(
    readers: Mapping[InputDStream, SourceReader], settings: Settings, batch_ms: int
) -> RateControl:
    """Set the limits of the first batch of opened readers; return the control of later ones."""
    limitable = (each for each in readers.items() if each[1].rate_limit != "none")
    sources = {stream.stream_id: reader for stream, reader in limitable}
    return RateControl(sources, settings, batch_ms)

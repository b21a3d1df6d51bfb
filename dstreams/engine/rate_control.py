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

_PROPORTIONAL, _INTEGRAL, _DERIVED = 1.0, 0.2, 0.0
"""Weights of the PID estimator: Spark's defaults."""


class PidEstimator:
    """Estimates the rate at which records can be processed, as a PID controller.

    Args:
        batch_ms: batch duration in milliseconds.
        proportional: weight of the error: the last estimate less the rate just measured.
        integral: weight of the error summed up: what waits, as a rate that would work it off in a
            batch.
        derived: weight of the change of the error, per second.
        minimum: records a second; no estimate is below.

    Raises:
        InvalidStreamError: a weight is negative, or *batch_ms* or *minimum* not positive.

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
        """Take the measurements of a batch and return the new estimate.

        Args:
            completed_ms: clock when the batch had run.
            records: how many it processed.
            processing_ms: how long that took.
            scheduling_ms: how long the batch had waited.

        Returns:
            Records a second. None when the batch tells nothing: it is no newer than one before, or
            had no records or no time; and after the first, which gives something to compare with.
        """
        if records <= 0 or processing_ms <= 0:
            return None
        if completed_ms <= self._latest_ms:
            # Batches end one after another: before the last one only by a clock that was set back.
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
    """Sets the rate of each source that can be limited, at first and after each batch.

    The first batch of a process with records sets no limit, and the delay that it leaves behind
    does not count as long as it shrinks. The limit of a receiver is never above
    ``spark.streaming.receiver.maxRate``, the first batch included.

    Args:
        sources: the readers that can be limited, by input stream id.
        settings: settings of the streaming context.
        batch_ms: batch duration in milliseconds.

    Attributes:
        limits: records a second that each source may give now, by input stream id.
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
        self._initial_rate = settings.backpressure_initial_rate if settings.backpressure else None
        self._estimators = {
            stream_id: PidEstimator(
                batch_ms,
                _PROPORTIONAL,
                _INTEGRAL,
                _DERIVED,
                settings.pid_minimum,
            )
            for stream_id in sources
        }
        self._left_ms: dict[int, int] = {}
        self._primed: set[int] = set()

    def begin(self) -> None:
        """Set the limits of the first batch, before the readers start."""
        for stream_id, source in self._sources.items():
            both = (self._initial_rate, self._max_rates[stream_id])
            limits = [rate for rate in both if rate is not None]
            if limits:
                source.update_rate(min(limits))
                self.limits[stream_id] = min(limits)

    def observe(self, event: Event) -> None:
        """Set new limits after a batch that went well; other events change nothing.

        One that failed, or in which no output ran, says nothing about how fast records are
        processed.
        """
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
            # The first batch of a process pays for its start: imports, workers, caches. Neither its
            # speed nor the delay that it leaves to others, while that shrinks, says anything.
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
                logger.warning(
                    "the rate of stream %d could not be set to %d records/s",
                    stream_id,
                    rate,
                    exc_info=True,
                )


def limit_rates(
    readers: Mapping[InputDStream, SourceReader], settings: Settings, batch_ms: int
) -> RateControl:
    """Limit the first batch of readers that can be limited; return what limits the next ones.

    Args:
        readers: opened, not started.
        settings: settings of the streaming context.
        batch_ms: batch duration in milliseconds.
    """
    sources = {
        stream.stream_id: reader
        for stream, reader in readers.items()
        if reader.rate_limit != "none"
    }
    control = RateControl(sources, settings, batch_ms)
    control.begin()
    return control

"""Record counts of the inputs whose sources could not say: the batch's own jobs find them out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark import RDD

from dstreams.events import InputInfo
from dstreams.graph.input import InputDStream
from dstreams.kernel.source import PlannedInput
from dstreams.rdd.counting import RecordCount, counted


class InputCounts:
    """The counts of one batch at a time."""

    def __init__(self) -> None:
        self._counts: dict[int, RecordCount] = {}

    def clear(self) -> None:
        """Forget the batch before: what its tasks may still say is dropped."""
        self._counts.clear()

    def watch(
        self, stream: InputDStream, planned: PlannedInput, rdd: RDD[Any] | None
    ) -> RDD[Any] | None:
        """Return the RDD to run instead of *rdd*, which counts where the count is not known."""
        if rdd is None or planned.records is not None:
            return rdd
        watched, self._counts[stream.stream_id] = counted(rdd)
        return watched

    def complete(self, infos: Iterable[InputInfo]) -> tuple[InputInfo, ...]:
        """Return *infos* with the counts that are known now."""
        counts = self._counts
        return tuple(
            replace(info, records=counts[info.stream_id].records())
            if info.stream_id in counts
            else info
            for info in infos
        )

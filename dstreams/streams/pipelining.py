"""Pipelining: the map side of a batch that is due runs while the batch before it has its turn.

Only tasks run early, those in front of the shuffle of a state, of a batch whose begin record is
written. Nothing of what they make is durable: where a stop, a failure or a function that is another
one by then comes between, the batch makes it in its turn, as without pipelining.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any
from uuid import uuid4  # noqa: TID251

from pyspark import RDD, InheritableThread, SparkContext  # noqa: TID251

from dstreams.graph.history import History
from dstreams.graph.input import InputDStream
from dstreams.graph.map_sides import EarlyView, MapSides, shuffles_of
from dstreams.graph.node import Node
from dstreams.graph.plan import Plan
from dstreams.rdd import jvm
from dstreams.rdd.job_labels import (
    begin_stream_batch,
    label_jobs,
    labelled_jobs,
    next_job_id,
)
from dstreams.streams.batch import Batch
from dstreams.streams.batch_inputs import BatchInputs, Watched

logger = logging.getLogger(__name__)

_LOOK_S = 0.005
_JOIN_S = 2.0


@dataclass
class _EarlyBatch:
    """What was made of a batch before it has its turn, which *has_turn* says it has now."""

    batch: Batch
    inputs: dict[InputDStream, Watched]
    made: EarlyView
    digest: bytes
    shuffles: list[Any]
    first_job: int
    has_turn: Event = field(default_factory=Event)


class Pipelining:
    """Makes the map side of the batch that is next, and runs it behind the jobs of this one.

    All but :meth:`cancel` and :meth:`close` is called by the thread that runs the batches. Spark
    runs tasks of jobs in the order in which they began, so those of this batch come first, as far
    as its first job has them.
    """

    def __init__(self, plan: Plan, history: History, inputs: BatchInputs) -> None:
        self._history = history
        self._inputs = inputs
        self._batch_ms = plan.batch_ms
        self._sides = MapSides.of(plan)
        self._early: _EarlyBatch | None = None
        self._waiting: SimpleQueue[_EarlyBatch | None] = SimpleQueue()
        self._stages: list[jvm.MapStage] = []
        self._lock = Lock()
        self._is_cancelled = False
        self._thread: InheritableThread | None = None

    @property
    def _spark(self) -> SparkContext:
        return self._history.spark

    def begin(self, batch: Batch) -> None:
        """Make the map side of a batch that is planned, and let it run; never raises.

        Where it cannot be made early, its batch makes it, or fails, in its turn.
        """
        if not self._sides.states or batch.failure is not None or batch.after_ms is not None:
            return
        if self._is_cancelled or not jvm.has_own_properties(self._spark):
            return
        try:
            early = self._made(batch)
        except Exception as error:
            logger.debug("the batch at %d ms is not made early: %s", batch.time_ms, error)
            return
        self._early = early
        if early.shuffles:
            self._start()
            self._waiting.put(early)

    def _made(self, batch: Batch) -> _EarlyBatch:
        digest = self._sides.digest()
        inputs = self._inputs.read_early(batch, self._sides.inputs)
        rdds: dict[Node, RDD[Any] | None] = {node: one.rdd for node, one in inputs.items()}
        view = EarlyView(self._spark, batch.time_ms, rdds)
        view.make(self._sides.states)
        shuffles = shuffles_of(view.frames)
        return _EarlyBatch(batch, inputs, view, digest, shuffles, next_job_id(self._spark) or 0)

    def hand_over(self, batch: Batch) -> None:
        """Give a batch that has its turn what was made of it early, where that is the same still.

        It is not where a function would be another one now, by what it captures of the driver.
        """
        early, self._early = self._early, None
        if early is None:
            return
        early.has_turn.set()
        if early.batch is not batch or not self._is_same(early):
            self._cancel_stages()
            return
        self._inputs.feed_early(batch.time_ms, early.inputs)
        for node, rdd in early.made.rdds.items():
            if not isinstance(node, InputDStream):
                self._history.feed(node, batch.time_ms, rdd)
        for state, frames in early.made.frames.items():
            self._history.feed_frames(state, batch.time_ms, frames)
        logger.debug("the batch at %d ms has its map side", batch.time_ms)

    def _is_same(self, early: _EarlyBatch) -> bool:
        try:
            return self._sides.digest() == early.digest
        except Exception:
            return False

    def _start(self) -> None:
        if self._thread is None:
            self._thread = InheritableThread(
                target=self._run, name="dstreams-pipelining", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        try:
            # Not the group of the batches: by that it is known which jobs are an output's.
            self._spark.setJobGroup(f"dstreams-{uuid4()}", "dstreams", interruptOnCancel=True)
            with labelled_jobs(self._spark):
                while (early := self._waiting.get()) is not None:
                    if self._wait_for_job(early):
                        self._submit(early)
        except Exception as error:
            logger.debug("no batch is made early any more: %s", error)

    def _wait_for_job(self, early: _EarlyBatch) -> bool:
        """Wait for the first job of the batch before; False when the batch itself has its turn."""
        while not early.has_turn.is_set():
            if (next_job_id(self._spark) or 0) > early.first_job:
                return True
            early.has_turn.wait(_LOOK_S)
        return False

    def _submit(self, early: _EarlyBatch) -> None:
        begin_stream_batch(early.batch.time_ms, self._batch_ms)
        label_jobs("early map side")
        with self._lock:
            if not self._is_cancelled and not early.has_turn.is_set():
                self._stages = [stage for stage in self._stages if not stage.is_completed()]
                self._stages += [jvm.MapStage(self._spark, one) for one in early.shuffles]

    def cancel(self) -> None:
        """Run nothing early any more, and end what does; on any thread."""
        self._is_cancelled = True
        self._cancel_stages()

    def _cancel_stages(self) -> None:
        with self._lock:
            stages, self._stages = self._stages, []
            try:
                for stage in stages:
                    stage.cancel()
            except Exception as error:  # Spark has gone
                logger.debug("an early map side could not be cancelled: %s", error)

    def close(self) -> None:
        """End the thread, and what runs early."""
        self.cancel()
        self._early = None
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_JOIN_S)

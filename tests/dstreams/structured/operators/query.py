"""Runs a plan batch by batch on Spark, as a query does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from checkpoint import open_files
from checkpoint.state_store import LmdbBackend, StateStore
from dstreams.state.state_versions import StateVersions
from dstreams.structured.operators.execution_context import (
    ExecutionContext,
    StatefulOperatorStateInfo,
)
from dstreams.structured.operators.fusion import fuse_stateful_operators
from dstreams.structured.operators.physical_operator import (
    NarrowExec,
    PhysicalOperator,
    RDDScanExec,
    Task,
)
from dstreams.structured.operators.stateful_operator import StateStoreReader, StateStoreWriter
from dstreams.structured.operators.stateless import EventTimeWatermarkExec


@dataclass(frozen=True)
class MapPartitionsExec(NarrowExec):
    """Any function of the rows of a partition."""

    func: Callable[[Iterator[Any]], Iterable[Any]]

    def task(self, context: ExecutionContext) -> Task:
        func = self.func
        return lambda _, rows: func(iter(rows))


class SparkQuery:
    """A plan whose scans get the records of a batch, and its watermark.

    Args:
        sc: where it runs.
        plan: the plan, without the facts of a batch.
        directory: where state is.
        partitions: of the state.
        fuses: whether operators are fused.
    """

    def __init__(
        self,
        sc: SparkContext,
        plan: PhysicalOperator,
        directory: Path,
        partitions: int = 2,
        *,
        fuses: bool = True,
    ) -> None:
        self._sc, self._plan, self._fuses = sc, plan, fuses
        backend = LmdbBackend(open_files(str(directory / "files")), str(directory / "local"))
        self.states = StateVersions(sc, StateStore(backend))
        stateful = [node for node in plan.walk() if isinstance(node, StateStoreWriter)]
        self._infos = {
            number: StatefulOperatorStateInfo.empty(partitions, number)
            for number in range(len(stateful))
        }
        self._batch = 0
        self.late_ms = self.watermark_ms = 0
        self.metrics: dict[str, Any] = {}
        self.read_metrics: dict[str, dict[str, int]] = {}

    def add(self, *records: list[Any]) -> list[Any]:
        """Run a batch, and one without data if an operator needs it; return all rows."""
        rows, wants_more = self._run(list(records))
        if wants_more:
            rows += self._run([[] for _ in records])[0]
        return rows

    def contents(self) -> dict[Any, Any]:
        """Return the keys of all states, each with what the store has, by operator and key."""
        return {
            (number, key): (value, timeout_ms)
            for number in self._infos
            for key, value, timeout_ms in self.states.entries(str(number), "state").collect()  # type: ignore[union-attr]
        }

    def _run(self, records: list[list[Any]]) -> tuple[list[Any], bool]:
        plan = self._filled(records)
        context = ExecutionContext(self._sc, self.states, self._batch)
        rows = plan.execute(context).collect()
        made = context.versions
        for number, version in made.items():
            self._infos[number] = replace(self._infos[number], before=version)
            self.states.evict(str(number), self._batch)
        stateful = [node for node in plan.walk() if isinstance(node, StateStoreWriter)]
        self.metrics = {
            node.shortName: made[node.getStateInfo().operatorId].metrics for node in stateful
        }
        self.read_metrics = {
            node.nodeName: context.metrics(node)
            for node in plan.walk()
            if isinstance(node, StateStoreReader)
        }
        self._batch += 1
        self.late_ms = self.watermark_ms
        self.watermark_ms = max(self.watermark_ms, self._candidate_ms(plan, context))
        return rows, any(node.shouldRunAnotherBatch(self.watermark_ms) for node in stateful)

    def _candidate_ms(self, plan: PhysicalOperator, context: ExecutionContext) -> int:
        seen = context.event_times()
        candidates = []
        for node in plan.walk():
            if isinstance(node, EventTimeWatermarkExec):
                stats = seen[node.name]
                candidates.append(0 if stats is None else stats.max_ms - node.delayMs)
        return min(candidates, default=0)

    def _filled(self, records: list[list[Any]]) -> PhysicalOperator:
        batches = iter(records)

        def scan(node: PhysicalOperator) -> PhysicalOperator:
            if isinstance(node, RDDScanExec):
                return replace(node, rdd=self._sc.parallelize(next(batches), 2))
            return node

        infos = [self._infos[number] for number in sorted(self._infos)]
        plan = self._plan.transform(scan).filled(infos, self.late_ms, self.watermark_ms)
        return fuse_stateful_operators(plan) if self._fuses else plan

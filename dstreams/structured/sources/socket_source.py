"""Lines from a TCP server; for trials only, because nothing can be read twice."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD

from dstreams.errors import RestartError, SourceError
from dstreams.sources.socket import LineReceiver, SocketTextSource, TakenLines
from dstreams.structured.sources.micro_batch_reader import ReaderEnvironment

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SocketStreamSource:
    """Lines as ``str``.

    Semantics: the source ``socket`` of Spark. Lines that were read by a batch and not committed
    are lost with the driver; a restart says so and does not go on as if nothing had happened.

    Args:
        host: name or address.
        port: 1 to 65535.
    """

    host: str
    port: int

    @property
    def name(self) -> str:
        return f"socket[{self.host}:{self.port}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("value",)

    def open(self, environment: ReaderEnvironment) -> SocketReader:
        return SocketReader(SocketTextSource(self.host, self.port), environment)


class SocketReader:
    """Takes what has come in whenever it is asked how far it has come; an offset counts takes."""

    def __init__(self, source: SocketTextSource, environment: ReaderEnvironment) -> None:
        self._error: Exception | None = None
        self._receiver = LineReceiver(source, environment.settings, environment.clock, self._report)
        self._spark = environment.spark
        self._name = source.name
        self._taken: dict[int, TakenLines] = {}
        # The offsets of this run follow those of the runs before.
        self._count = int(environment.newest or 0)
        self._is_pinned = False
        self._receiver.start()

    def latest(self, start: Any, now_ms: int) -> Any:
        if self._error is not None:
            raise SourceError(f"{self._name} failed: {self._error}") from self._error
        if not self._is_pinned and self._receiver.waiting_lines():
            self._count += 1
            self._taken[self._count] = self._receiver.take(self._count)
        return self._count or None

    def pin(self, now_ms: int, *, in_one_batch: bool) -> None:
        self._is_pinned = True

    def facts(self, start: Any, end: Any) -> Mapping[str, Any]:
        return {}

    def rdd(self, start: Any, end: Any) -> RDD[Any]:
        numbers = _numbers(start, end)
        if any(number not in self._taken for number in numbers):
            raise RestartError(
                f"{self._name} cannot be read again: the lines of a batch that was not finished "
                "are lost; begin a new checkpoint"
            )
        self._receiver.make_room(int(end or 0))
        rdds = [self._taken[number].rdd(self._spark) for number in numbers]
        if not rdds:
            return self._spark.emptyRDD()
        return rdds[0] if len(rdds) == 1 else self._spark.union(rdds)

    def rows(self, start: Any, end: Any) -> int | None:
        taken = (self._taken.get(number, TakenLines()) for number in _numbers(start, end))
        return sum(lines.count for lines in taken)

    def commit(self, end: Any) -> None:
        for number in [number for number in self._taken if number <= int(end or 0)]:
            del self._taken[number]

    def stop(self) -> None:
        self._receiver.close()

    def _report(self, error: Exception) -> None:
        logger.error("%s", error)
        self._error = error


def _numbers(start: Any, end: Any) -> range:
    return range(int(start or 0) + 1, int(end or 0) + 1)

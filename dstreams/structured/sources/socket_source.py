"""Lines from a TCP server; for trials only, because nothing can be read twice."""

from __future__ import annotations

from dataclasses import dataclass

from dstreams.sources.socket import SocketTextReader, SocketTextSource
from dstreams.sources.source import Source, SourceEnvironment


@dataclass(frozen=True)
class SocketStreamSource(Source):
    """Lines as ``str``.

    Semantics: the source ``socket`` of Spark. Lines that were read by a batch and not committed
    are lost with the driver; a restart says so and does not go on as if nothing had happened.

    Args:
        lines: where they come from.
    """

    lines: SocketTextSource

    @property
    def name(self) -> str:
        return f"socket[{self.lines.host}:{self.lines.port}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("value",)

    def open(self, environment: SourceEnvironment) -> SocketTextReader:
        return self.lines.open(environment)

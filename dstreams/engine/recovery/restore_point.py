"""What a start goes on from: the identity of a stream, and what was found of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint import StreamLog


@dataclass(frozen=True)
class RestorePoint:
    """What a start goes on from; of a new stream its id and zero time alone.

    Args:
        added: uids of streams that its graph did not have, None where it is the same graph.
        began: of streams that starts before this one have added, after which batch, in ms, by uid.
        log: its records, as far as they were read.
    """

    stream_id: str
    zero_ms: int
    added: frozenset[str] | None = None
    began: Mapping[str, int] = field(default_factory=dict)
    log: StreamLog | None = None

    def began_after(self, last_ms: int) -> dict[str, int]:
        """Return after which batch each stream began that was not there from the first one on."""
        return {**self.began, **dict.fromkeys(self.added or (), last_ms)}

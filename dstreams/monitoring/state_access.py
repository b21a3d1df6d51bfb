"""Looking into the state of something that runs, for people: each look is a job of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class StateOfKey:
    """What the state has for one key.

    Args:
        uid: identity of the operator.
        batch_time_ms: the batch after which it was so.
        partition: where the key belongs.
        is_there: whether it has a state; the rest says nothing where it has none.
        value: the state.
        timeout_ms: when its timer is due; None without one.
    """

    uid: str
    batch_time_ms: int
    partition: int
    is_there: bool
    value: Any = None
    timeout_ms: int | None = None


@dataclass(frozen=True)
class KeySize:
    """A key of which the state is large: key and state have *size_bytes* when they are pickled."""

    key: Any
    partition: int
    size_bytes: int


class StateAccess(Protocol):
    """What can be asked of the state of a stream or query, as of its last commit.

    Both run a job on the calling thread, beside the batches; neither changes anything.
    """

    def look_up(self, uid: str, key: Any) -> StateOfKey:
        """Return what there is for a key.

        Raises:
            InvalidStreamError: there is no such operator, it has no state yet, or *key* is nothing
                that a state can be kept for.
            Exception: whatever the job raises.
        """
        ...

    def largest(self, uid: str, count: int) -> tuple[KeySize, ...]:
        """Return the keys with the largest states, the largest first. Raises as ``look_up``."""
        ...

"""The life of a reader or writer: open, and then over for good."""

from __future__ import annotations

import enum

from checkpoint.errors import CheckpointError
from checkpoint.stored_state import Reference, StoreId

_REMEDY = {
    "committed": "open a writer of what the commit returned",
    "aborted": "open another writer",
    "closed": "open another reader",
}


class StateStoreUseError(CheckpointError, RuntimeError):
    """A reader or writer was used after it had come to its end."""


class CodecMismatchError(CheckpointError, ValueError):
    """A content was written by another codec, or with another schema, than it is opened with."""


class WriterState(enum.Enum):
    """Where a writer is in its life."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Life:
    """Whether a reader or writer may still be used.

    Args:
        what: ``reader`` or ``writer``.
        store: its store.
        reference: the content that it has open.
    """

    __slots__ = ("_reference", "_store", "_what", "end", "is_open")

    def __init__(self, what: str, store: StoreId, reference: Reference) -> None:
        self._what = what
        self._store = store
        self._reference = reference
        self.is_open = True
        self.end = ""

    def finish(self, end: str) -> None:
        """Come to an end: ``committed``, ``aborted`` or ``closed``."""
        self.is_open = False
        self.end = end

    def require(self) -> None:
        """Raise unless it is open.

        Raises:
            StateStoreUseError: it is not.
        """
        if not self.is_open:
            raise StateStoreUseError(
                f"the {self._what} of version {self._reference.version} of store "
                f"{self._store.store!r} of operator {self._store.operator_uid!r}, partition "
                f"{self._store.partition}, is {self.end}; {_REMEDY[self.end]}"
            )

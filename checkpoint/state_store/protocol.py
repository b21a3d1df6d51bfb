"""What a user of a state store sees: a reader of one content, and a writer that makes the next one.

A writer begins open. What its calls do then, and afterwards:

=========== ==================== ==================== ===========
state       get, scans, put ...  commit               abort
=========== ==================== ==================== ===========
open        done                 then committed       then aborted
committed   StateStoreUseError   StateStoreUseError   nothing
aborted     StateStoreUseError   StateStoreUseError   nothing
=========== ==================== ==================== ===========

A commit that fails aborts, whatever the error: the attempt has failed, and the next one is another
writer. As a context manager a writer aborts what was not committed. None of this changes the
content it was opened on, nor disturbs another writer on it.

Any key may have a timeout. A store finds the keys that are due; whether they are removed is up to
who asked.

Keys: see :mod:`checkpoint.state_store.keys`. Values: whatever the codec takes, but None, which
means that there is none. What a store hands out is new at each call; to change it in place changes
nothing in the store until it is put.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from checkpoint.errors import CheckpointError
from checkpoint.stored_state import Reference, StoredPartition, StoreId


class StateStoreUseError(CheckpointError, RuntimeError):
    """A reader or writer was used after it had come to its end."""


class CodecMismatchError(CheckpointError, ValueError):
    """A content was written by another codec, or with another schema, than it is opened with."""


class WriterState(enum.Enum):
    """Where a writer is in its life."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class StateReader(Protocol):
    """One content of a store.

    Every method but :meth:`close` raises :class:`StateStoreUseError` after it, and so do the
    iterators. Keys that cannot be are refused with ``TypeError`` or ``ValueError``.
    """

    @property
    def reference(self) -> Reference:
        """The content that was opened."""
        ...

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        ...

    def timeout_ms(self, key: Any) -> int | None:
        """Return when a key is due, None if never or if it is not there."""
        ...

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value), in the order of encoded keys.

        Keys come as they were put last, or as the plainest key that equals that.
        """
        ...

    def prefix(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs whose keys begin with *prefix*, in order.

        Args:
            prefix: str, bytes, or a tuple of the first elements.
        """
        ...

    def range(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """Iterate over the pairs with keys from *start* up to before *stop*, in order.

        Args:
            start: int, str, bytes, date, datetime without zone, timedelta, UUID or tuple; None for
                the first key of the kind of *stop*.
            stop: of the same kind; None for no end.
        """
        ...

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Iterate over (key, value, timeout in ms) of the keys that are due before *until_ms*.

        They are found without a scan. Keys come in the order of the timeouts they had when they
        entered the index, so that running again gives the same order.
        """
        ...

    def count(self) -> int:
        """Return the number of keys."""
        ...

    def size_bytes(self) -> int:
        """Return about how much room the content takes."""
        ...

    def close(self) -> None:
        """Give the content back; again is fine."""
        ...

    def __enter__(self) -> StateReader: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class StateWriter(Protocol):
    """A content, and changes to it that only this writer sees until they count.

    It reads as :class:`StateReader` does, its own changes included. A store may be changed while it
    is iterated over: an iterator shows what was there when its first pair was asked for.
    """

    @property
    def reference(self) -> Reference:
        """The content that was opened."""
        ...

    @property
    def state(self) -> WriterState:
        """Where this writer is in its life."""
        ...

    def get(self, key: Any) -> Any:
        """See :meth:`StateReader.get`."""
        ...

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of the first of *keys*, in less time than one by one.

        Of all of them unless they are large, of one at least if there is one. To put or remove
        these keys next takes less time, too.
        """
        ...

    def has_many(self, keys: Sequence[Any]) -> list[bool]:
        """Return which of *keys* are there, in less time than to get them.

        To put those that are not takes less time next.
        """
        ...

    def timeout_ms(self, key: Any) -> int | None:
        """See :meth:`StateReader.timeout_ms`."""
        ...

    def items(self) -> Iterator[tuple[Any, Any]]:
        """See :meth:`StateReader.items`."""
        ...

    def prefix(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """See :meth:`StateReader.prefix`."""
        ...

    def range(self, start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
        """See :meth:`StateReader.range`."""
        ...

    def due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """See :meth:`StateReader.due`.

        A key that is put or removed while this iterates is not shown later, unless it was due all
        the same. Entries of the index that stand too early are moved, which is a change.
        """
        ...

    def count(self) -> int:
        """Return the number of keys."""
        ...

    def size_bytes(self) -> int:
        """Return about how much room the content takes."""
        ...

    def put(self, key: Any, value: Any, timeout_ms: int | None = None) -> None:
        """Give a key a value, and a timeout or none.

        Args:
            timeout_ms: when the key is due, in ms since the epoch. None: never, whatever it was.

        Raises:
            TypeError: the codec does not take the value.
            ValueError: the value is None or too large, or the timeout is no time.
        """
        ...

    def put_many(self, values: Mapping[Any, Any], timeouts_ms: Sequence[int] | None = None) -> None:
        """Give many keys a value, in less time than one by one.

        Raises as :meth:`put` does; some may have been put then.

        Args:
            timeouts_ms: when each of them is due, in ms since the epoch, in the order of *values*.
                None: never, whatever it was.
        """
        ...

    def remove(self, key: Any) -> None:
        """Remove a key and its timeout; that there is none is fine."""
        ...

    def take_due(self, until_ms: int) -> Iterator[tuple[Any, Any, int]]:
        """Remove the keys that are due before *until_ms*, and iterate as :meth:`due` does.

        In less time than one by one; to be read to its end, because many are removed before the
        first of them is shown.
        """
        ...

    def remove_due(self, until_ms: int) -> int:
        """Remove the keys that are due before *until_ms*, and return how many.

        In less time than :meth:`take_due`, because nothing is shown.
        """
        ...

    def update(self, pairs: Iterable[tuple[Any, Any]], step: Callable[[Any, Any], Any]) -> None:
        """Get, step and put for many keys, faster than one by one, in their order.

        Args:
            pairs: (key, given); some are pulled before the first is stepped. Fastest if they are in
                the order of their keys: what is near is then read and written together.
            step: ``(given, value or None) -> new value``, or None to remove the key. The new value
                has no timeout. It must not change the store itself.
        """
        ...

    def commit(self) -> StoredPartition:
        """Write the changes, durably, and end this writer.

        Whether they count is decided by who writes the commit record. A commit without changes is
        a commit.

        Raises:
            CheckpointError: they were not, or perhaps not, written. The writer is aborted.
        """
        ...

    def abort(self) -> None:
        """Drop all changes and end this writer, if it has not come to its end."""
        ...

    def __enter__(self) -> StateWriter: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class StateStores(Protocol):
    """All stores of a checkpoint."""

    def reader(self, store: StoreId, reference: Reference) -> StateReader:
        """Open one content for reading."""
        ...

    def writer(self, store: StoreId, reference: Reference) -> StateWriter:
        """Open one content for an attempt to make the next one."""
        ...

"""What readers may be asked for, of streams and of queries alike."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from dstreams.errors import SourceError

logger = logging.getLogger(__name__)


@runtime_checkable
class SnapshotReader(Protocol):
    """A reader that has to know what all batches before have read, also those of earlier runs."""

    def snapshot_size(self) -> int | None:
        """About how many things a snapshot would name; None where nothing has to be known."""
        ...

    def snapshot(self, upto: Any) -> Mapping[str, Any]:
        """What batches have read up to a batch time, or in queries to an offset, as JSON.

        It stands for what their begin records say; a restart gives it back as the facts of
        :class:`checkpoint.InputPast`.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A reader whose input may vanish before it has been read."""

    def explain(self, failure: str) -> str | None:
        """Say what to do where a job has failed because an input file is not there."""
        ...


def remedy_of(error: BaseException, readers: Iterable[object]) -> str | None:
    """Return what to do about an error of a batch; None where no input has to do with it.

    A reader that cannot be asked is logged and passed over: its trouble does not hide the error.
    """
    if isinstance(error, SourceError):
        return None
    for reader in readers:
        if isinstance(reader, Explaining):
            try:
                remedy = reader.explain(str(error))
            except Exception:
                logger.warning("%s could not be asked about an error", reader, exc_info=True)
                continue
            if remedy is not None:
                return remedy
    return None

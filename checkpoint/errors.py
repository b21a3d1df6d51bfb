"""The kinds of error that checkpoint raises, chosen by what the caller has to do next.

======================== ==============================================================
StorageRefusedError      it did not happen: repair the storage, then do it again
AlreadyExistsError       it did not happen, the name is taken: look at what is there
StorageUncertainError    it may have happened: read back and decide, never guess
NotDurableError          it happened, but a power loss may undo it: stop, do not go on
CorruptCheckpointError   what is on disk is not what was written: restore or go back
UntrustedFileError       the same, and maybe on purpose: find out who writes there
ConcurrentWriterError    another writer committed this: stop, it owns the checkpoint now
======================== ==============================================================

Errors cross process borders (a task fails on a worker, the driver reports it), so each of them
pickles with its attributes.
"""

from __future__ import annotations

RESTORE = (
    "restore the file from a copy or an export, or go back to a batch before it with python -m "
    "checkpoint rewind; verify says to which"
)
"""What to do about a file that is damaged or missing."""

UPGRADE = "read this checkpoint with the release that wrote it, or a newer one"
"""What to do about a file in another format."""


class CheckpointError(Exception):
    """Base of every error that checkpoint raises on purpose."""


class StorageRefusedError(CheckpointError):
    """The storage did not do it: nothing has changed."""


class AlreadyExistsError(StorageRefusedError):
    """The name is taken by a complete and durable file; it was left as it is."""


class StorageUncertainError(CheckpointError):
    """The storage may have done it, or may still do it: only reading back can tell."""


class NotDurableError(StorageUncertainError):
    """It can be seen now, but a power loss may undo it, and no second sync can be trusted.

    After a failed ``fsync`` Linux forgets the pages that it could not write, and the next
    ``fsync`` of the same file succeeds without having written them.
    """


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is damaged, missing, or not the one it should be.

    Args:
        file: the whole location of the file.
        found: what is wrong with it.
        expected: what should have been there.
        remedy: what the reader can do.
    """

    def __init__(self, file: str, found: str, expected: str, remedy: str) -> None:
        super().__init__(f"{file} {found}; expected {expected}; {remedy}")
        self.file = file
        self.found = found
        self.expected = expected
        self.remedy = remedy

    @property
    def is_missing(self) -> bool:
        """Whether the file is not there at all."""
        return self.found == "is missing"

    def __reduce__(self) -> tuple[type[CorruptCheckpointError], tuple[str, str, str, str]]:
        return (type(self), (self.file, self.found, self.expected, self.remedy))


class UntrustedFileError(CorruptCheckpointError):
    """A file is not signed, or not with the key of this checkpoint, or others can write it."""


class ConcurrentWriterError(CheckpointError):
    """Another writer is, or was, at work on this checkpoint.

    Args:
        message: what the other one did, and what to do.
        epoch: epoch of the writer that got this error.
        other_epoch: epoch of the other writer.
    """

    def __init__(self, message: str, epoch: int, other_epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.other_epoch = other_epoch

    def __reduce__(self) -> tuple[type[ConcurrentWriterError], tuple[str, int, int]]:
        return (type(self), (str(self), self.epoch, self.other_epoch))

"""The errors of checkpoint, distinguished by the action that the caller has to take.

======================== ==============================================================
StorageRefusedError      it did not happen: repair the storage, then retry
AlreadyExistsError       it did not happen, because the name is taken: read that file
StorageUncertainError    it may have happened: read back and decide, never guess
NotDurableError          it happened, but a power loss may undo it: stop
CorruptCheckpointError   a file is not what was written: restore it, or rewind
UntrustedFileError       the same, perhaps on purpose: find out who can write there
ConcurrentWriterError    another driver owns the checkpoint now: stop
======================== ==============================================================

A task raises them on a worker and the driver reports them, so each pickles with its attributes.
"""

from __future__ import annotations

from enum import Enum

COMMAND = "dstreams checkpoint"
"""The command that inspects and repairs checkpoints, in messages."""

RESTORE = (
    f"restore the file from a copy or an export, or go back to a batch before it with {COMMAND} "
    "rewind; verify names that batch"
)
"""Remedy for a damaged or missing file."""

UPGRADE = "read this checkpoint with the release that wrote it, or a newer one"
"""Remedy for a file in another format."""


class CheckpointError(Exception):
    """Base of the errors of checkpoint."""


class StorageRefusedError(CheckpointError):
    """The storage did not do it: nothing has changed."""


class AlreadyExistsError(StorageRefusedError):
    """The name is taken by a complete and durable file, which was not changed."""


class StorageUncertainError(CheckpointError):
    """The storage may have done it, or may still do it: read back to find out."""


class NotDurableError(StorageUncertainError):
    """It is visible now, but a power loss may undo it, and a second sync proves nothing.

    After a failed ``fsync`` Linux forgets the pages that it could not write, and the next
    ``fsync`` of the same file succeeds without having written them.
    """


class Damage(Enum):
    """Kinds of damage to a file; each is a heading of the runbook."""

    MISSING = "missing"  # a record names it
    DAMAGED = "damaged"  # its bytes are not those that were written
    REPLACED = "replaced"  # it is whole, but its content is not the one that a record names
    MISPLACED = "misplaced"  # it is whole, but of another batch, partition, epoch, kind or stream
    ANOTHER_COPY = "another-copy"  # a copy of this stream that ran on separately wrote it
    CONTRADICTING = "contradicting"  # whole records contradict each other
    WRONG_CONTENT = "wrong-content"  # whole files of a store lead to a state that never existed
    NO_CLAIM = "no-claim"  # the newest epoch has lost its claim, which fences older drivers
    FORMAT = "format"  # another release wrote it in another format
    FOREIGN = "foreign"  # no stream writes files with this name
    NO_FILE = "no-file"  # it is a link, a directory, a pipe or a device
    UNREADABLE = "unreadable"  # the storage, or the key, refuses to let it be read
    BUSY = "busy"  # records are deleted faster than they can be read
    UNSIGNED = "unsigned"  # a key is set, and it is not signed
    NO_KEY = "no-key"  # it is signed, and no key is set
    OTHER_KEY = "other-key"  # it is signed with another key than the one that is set
    FORGED = "forged"  # its signature does not match its content and name
    WRITABLE = "writable"  # others than this user and root can write it, or a directory above it


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is damaged, missing, or not the one it should be."""

    def __init__(self, file: str, found: str, expected: str, remedy: str, damage: Damage) -> None:
        super().__init__(f"{file} {found}; expected {expected}; {remedy}")
        self.file = file
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.damage = damage

    @property
    def is_missing(self) -> bool:
        """Whether the file is missing."""
        return self.damage is Damage.MISSING

    def __reduce__(self) -> tuple[type[CorruptCheckpointError], tuple[str, str, str, str, Damage]]:
        return (type(self), (self.file, self.found, self.expected, self.remedy, self.damage))


class UntrustedFileError(CorruptCheckpointError):
    """A file is not signed, or not with the key of this checkpoint, or others can write it."""


class ConcurrentWriterError(CheckpointError):
    """A driver of *other_epoch* writes, or wrote, to the checkpoint of a driver of *epoch*."""

    def __init__(self, message: str, epoch: int, other_epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.other_epoch = other_epoch

    def __reduce__(self) -> tuple[type[ConcurrentWriterError], tuple[str, int, int]]:
        return (type(self), (str(self), self.epoch, self.other_epoch))

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

from enum import Enum

COMMAND = "dstreams checkpoint"
"""The command that looks into a checkpoint and mends it, as it is called by default."""

RESTORE = (
    f"restore the file from a copy or an export, or go back to a batch before it with {COMMAND} "
    "rewind; verify says to which"
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


class Damage(Enum):
    """What is wrong with a file, by what the reader has to do: a heading of the runbook each."""

    MISSING = "missing"
    """A record names it, and it is not there."""

    DAMAGED = "damaged"
    """Its bytes are not those that were written."""

    REPLACED = "replaced"
    """It is whole, and its content is not that which a record says of it."""

    MISPLACED = "misplaced"
    """It is whole, and of another name: another batch, partition, epoch, kind or stream."""

    ANOTHER_COPY = "another-copy"
    """It was written by a copy of this stream that went on by itself."""

    CONTRADICTING = "contradicting"
    """Records that are whole say different things."""

    WRONG_CONTENT = "wrong-content"
    """Files of a store that are whole lead to a state that their writer did not have."""

    NO_CLAIM = "no-claim"
    """The newest epoch has lost its claim, which keeps out the drivers before it."""

    FORMAT = "format"
    """It is written in a format of another release."""

    FOREIGN = "foreign"
    """No stream writes files of this name."""

    NO_FILE = "no-file"
    """It is a link, a directory, a pipe or a device."""

    UNREADABLE = "unreadable"
    """The storage, or the key, refuses to let it be read."""

    BUSY = "busy"
    """Records are deleted faster than they can be read."""

    UNSIGNED = "unsigned"
    """A key is set, and it is not signed."""

    NO_KEY = "no-key"
    """It is signed, and no key is set."""

    OTHER_KEY = "other-key"
    """It is signed with another key than the one that is set."""

    FORGED = "forged"
    """Its signature is not that of its content and its name."""

    WRITABLE = "writable"
    """Others than this user and root can write it, or on the way to it."""


class CorruptCheckpointError(CheckpointError):
    """A file of the checkpoint is damaged, missing, or not the one it should be.

    Args:
        file: the whole location of the file.
        found: what is wrong with it.
        expected: what should have been there.
        remedy: what the reader can do.
        damage: what is wrong with it, for who looks it up.
    """

    def __init__(self, file: str, found: str, expected: str, remedy: str, damage: Damage) -> None:
        super().__init__(f"{file} {found}; expected {expected}; {remedy}")
        self.file = file
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.damage = damage

    @property
    def is_missing(self) -> bool:
        """Whether the file is not there at all."""
        return self.damage is Damage.MISSING

    def __reduce__(self) -> tuple[type[CorruptCheckpointError], tuple[str, str, str, str, Damage]]:
        return (type(self), (self.file, self.found, self.expected, self.remedy, self.damage))


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

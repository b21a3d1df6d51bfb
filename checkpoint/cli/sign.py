"""``sign``: a checkpoint is signed from now on, or with another key, or not any more.

The key is that of the environment, as for streams: CHECKPOINT_KEY_FILE or CHECKPOINT_KEY. Where the
checkpoint has another one until now, that is in CHECKPOINT_OLD_KEY_FILE or CHECKPOINT_OLD_KEY. With
--off the checkpoint is not signed any more.

Each file is read, verified and replaced twice. After the first round all of them can be read with
both keys, after the second one with the new one alone. So wherever the command ends, the whole
checkpoint can be read with the old key, or with the new one; run it again, and it goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import cast

from checkpoint.cli.command_parser import about
from checkpoint.cli.common import (
    CommandResult,
    Commands,
    UsageError,
    add_driver_gone,
    add_dry_run,
    add_progress,
    is_stream,
    open_location,
    progress_of,
)
from checkpoint.cli.progress import SILENT, Progress
from checkpoint.errors import ConcurrentWriterError, Damage, UntrustedFileError
from checkpoint.log.fencing import (
    DriverProcess,
    WriterLease,
    claim_epoch,
    claimed_epochs,
    read_claim,
    require_unused,
)
from checkpoint.log.streams import list_claimed, list_streams, stream_url
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, ReplaceableFiles, location
from checkpoint.storage.ownership import KEY_FILE_VARIABLE
from checkpoint.storage.segments import SignedHead
from checkpoint.storage.signing import (
    OLD_KEY_FILE_VARIABLE,
    OLD_KEY_VARIABLE,
    ResignedFiles,
    SignedFiles,
    SignedFor,
    SigningKey,
    unsigned,
)
from checkpoint.storage.trust import require_trusted

_ROUNDS = 5  # a driver that was replaced may write some files more, which are void


@dataclass(frozen=True)
class Change:
    """From which key to which one; None for none."""

    old: SigningKey | None
    new: SigningKey | None

    @property
    def both(self) -> SignedFor:
        """Files that can be read with both."""
        keys = tuple(key for key in (self.new, self.old) if key is not None)
        return SignedFor(keys, is_open=None in (self.old, self.new))

    @property
    def after(self) -> SignedFor:
        """Files that can be read with the new one alone."""
        return SignedFor(() if self.new is None else (self.new,), is_open=self.new is None)

    def files(self, inner: Files) -> ResignedFiles:
        """Return files that are read with either, and created for both."""
        return ResignedFiles(inner, (self.new, self.old), self.both)

    def is_done(self, head: SignedHead) -> bool:
        """Return whether a file can be read with the new key alone."""
        return head == self.after.head

    def is_begun(self, head: SignedHead) -> bool:
        """Return whether a file can be read with the new key."""
        if self.new is None:
            return head.is_open
        return bytes.fromhex(self.new.key_id) in head.key_ids

    def __str__(self) -> str:
        was = "not signed" if self.old is None else f"signed with key {self.old.key_id}"
        now = "not signed" if self.new is None else f"signed with key {self.new.key_id}"
        return f"was {was}, is {now}"


@dataclass
class Signed:
    """The number of signed files of a stream."""

    url: str
    files: int = 0
    changed: int = 0


def add_sign(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "sign",
        help="sign a checkpoint, change its key, or remove signatures",
        description=about(__doc__),
        examples=["/data/app --dry-run", "/data/app --off"],
    )
    parser.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint, or of one stream in it"
    )
    parser.add_argument("--stream", metavar="ID", help="id of the stream; all of them by default")
    parser.add_argument("--off", action="store_true", help="remove signatures")
    add_driver_gone(parser)
    add_dry_run(parser)
    add_progress(parser)
    parser.set_defaults(run=_sign)


def _sign(options: argparse.Namespace) -> CommandResult:
    change = change_of(options.off)
    signed: list[Signed] = []
    with progress_of(options) as progress:
        streams = list(_streams(options))
        for files in streams:  # before the first file is changed
            require_unused(change.files(files), is_gone=options.driver_gone)
            signed.append(look(files, change, progress))
        if not options.dry_run:
            sign_streams(streams, change, progress)
    did = "would be" if options.dry_run else "are"
    lines = [f"{one.url}: {one.changed} of {one.files} files {did} written anew" for one in signed]
    data = {
        "old_key": None if change.old is None else change.old.key_id,
        "key": None if change.new is None else change.new.key_id,
        "streams": [{"url": one.url, "files": one.files, "changed": one.changed} for one in signed],
        "done": not options.dry_run,
    }
    return CommandResult(data, [*lines, f"the checkpoint {change}"])


def change_of(is_off: bool) -> Change:
    """Return the change requested by the environment and --off. Raises UsageError."""
    key = SigningKey.from_environment()
    old = SigningKey.from_environment(OLD_KEY_FILE_VARIABLE, OLD_KEY_VARIABLE)
    if is_off:
        change = Change(old or key, None)
    elif key is None:
        raise UsageError(
            f"there is no key to sign with: name its file in {KEY_FILE_VARIABLE}, as streams need "
            "it, or give --off to sign no more"
        )
    else:
        change = Change(old, key)
    if change.old is None and change.new is None:
        raise UsageError(
            f"there is no key that the checkpoint could be signed with until now: name its file in "
            f"{OLD_KEY_FILE_VARIABLE} or {KEY_FILE_VARIABLE}"
        )
    if change.old and change.new and change.old.key_id == change.new.key_id:
        raise UsageError(
            f"the key in {KEY_FILE_VARIABLE} or its variable, and the one in "
            f"{OLD_KEY_FILE_VARIABLE} or its variable, are the same: {change.new.key_id}"
        )
    return change


def _streams(options: argparse.Namespace) -> Iterator[Files]:
    files = unsigned(open_location(options.url))
    if is_stream(files):
        yield files
        return
    known = [stream.stream_id for stream in list_streams(files)]
    known += [directory for directory in list_claimed(files) if directory not in known]
    if not known:
        raise UsageError(f"{options.url} holds no commit record and no stream; is it a checkpoint?")
    if options.stream is not None and options.stream not in known:
        raise UsageError(
            f"{options.url} has no stream {options.stream!r}; it has {', '.join(known)}"
        )
    for directory in known if options.stream is None else [options.stream]:
        yield unsigned(open_location(stream_url(options.url, directory)))


def look(inner: Files, change: Change, progress: Progress = SILENT) -> Signed:
    """Read all files of a stream to their ends; nothing is changed.

    Raises CorruptCheckpointError for one that can be read with neither key.
    """
    files = change.files(inner)
    if None in (change.old, change.new):
        require_trusted(inner)  # or files of other users would be signed or accepted
    signed = Signed(inner.url)
    for name in progress.over(inner.list(""), "reading files"):
        try:
            for _ in files.read_chunks(name, READ_CHUNK_BYTES):
                pass
        except UntrustedFileError as error:
            if error.damage is not Damage.OTHER_KEY:
                raise
            raise UsageError(f"{error}; or name its key in {OLD_KEY_FILE_VARIABLE}") from error
        signed.files += 1
        signed.changed += not change.is_done(files.head(name))
    return signed


def sign_streams(streams: Collection[Files], change: Change, progress: Progress = SILENT) -> None:
    """Rewrite the files of all streams, in two rounds.

    Raises ConcurrentWriterError where a driver has begun meanwhile, or CheckpointError.
    """
    opened = [change.files(inner) for inner in streams]
    heads = (files.head(name) for files in opened for name in files.list(""))
    if all(map(change.is_done, heads)):
        return
    leases = [_claim(files) for files in opened]
    for _ in range(_ROUNDS):
        for files in opened:
            names = [name for name in files.list("") if not change.is_begun(files.head(name))]
            _rewrite(files, names, change.both, progress, "signing for both keys")
        for files, lease in zip(opened, leases, strict=True):
            _require_alone(files, lease)
        left = 0
        for files in opened:
            names = [name for name in files.list("") if not change.is_done(files.head(name))]
            _rewrite(files, names, change.after, progress, "signing for the new key")
            left += len(names)
        if not left:
            break
    for files, lease in zip(opened, leases, strict=True):
        _require_alone(files, lease)
        if lease is not None:
            new = files.inner if change.new is None else SignedFiles(files.inner, change.new)
            WriterLease(new, lease.claim).release()


def _rewrite(
    files: ResignedFiles, names: Collection[str], signed: SignedFor, progress: Progress, stage: str
) -> None:
    inner = cast("ReplaceableFiles", files.inner)
    for name in progress.over(names, stage):
        content = files.read_chunks(name, READ_CHUNK_BYTES)
        inner.replace(name, signed.written(name, content, location(inner, name)))


def _claim(files: ResignedFiles) -> WriterLease | None:
    """Keep older drivers out, where there has ever been one."""
    for epoch in reversed(claimed_epochs(files)):
        stream_id = read_claim(files, epoch).stream_id
        return claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "sign"}))
    return None


def _require_alone(files: Files, lease: WriterLease | None) -> None:
    """Raise ConcurrentWriterError if a driver has claimed the stream since."""
    newest = max(claimed_epochs(files), default=0)
    if lease is not None and newest > lease.epoch:
        raise ConcurrentWriterError(
            f"a driver has claimed epoch {newest} of {files.url} while it was signed; stop it, and "
            "run the same command again, which goes on from here",
            lease.epoch,
            newest,
        )

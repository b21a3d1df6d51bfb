"""``sign``: sign a checkpoint, change its key, or remove its signatures.

The key is read from the environment, as by streams: CHECKPOINT_KEY_FILE or CHECKPOINT_KEY. To
change it, give the current key in CHECKPOINT_OLD_KEY_FILE or CHECKPOINT_OLD_KEY. With --off the
signatures are removed.

Each file is verified and then replaced once. If the command is interrupted, streams refuse the
checkpoint until you run the same command again, which completes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

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
from checkpoint.cli.progress_bar import SILENT, Progress
from checkpoint.errors import ConcurrentWriterError, Damage, UntrustedFileError
from checkpoint.log.fencing import (
    DriverProcess,
    WriterLease,
    claim_epoch,
    claimed_epochs,
    read_claim,
    require_unused,
)
from checkpoint.log.recovery import list_claimed, list_streams, stream_url
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, WrappedFiles
from checkpoint.storage.local_files import KEY_FILE_VARIABLE
from checkpoint.storage.trust import SignedFiles, SigningKey, require_trusted, signed_with, unsigned

OLD_KEY_VARIABLE, OLD_KEY_FILE_VARIABLE = "CHECKPOINT_OLD_KEY", "CHECKPOINT_OLD_KEY_FILE"

_ROUNDS = 5  # a fenced driver may write a few more files, which are void


@dataclass(frozen=True)
class KeyChange:
    """A change from one key to another; None if files are not signed."""

    old: SigningKey | None
    new: SigningKey | None

    def is_done(self, files: Files, name: str) -> bool:
        """Return whether a file is signed with the new key."""
        return signed_with(files, name) == (None if self.new is None else self.new.key_id)

    def __str__(self) -> str:
        was = "not signed" if self.old is None else f"signed with key {self.old.key_id}"
        now = "not signed" if self.new is None else f"signed with key {self.new.key_id}"
        return f"was {was}, is {now}"


@dataclass(frozen=True)
class ChangingFiles(WrappedFiles):
    """Files of a checkpoint whose key changes: each is read with the key that signed it.

    A file is created with the old key, which running drivers can read.
    """

    change: KeyChange

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return with_key(self.inner, self.change.old).create(name, chunks)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        key, old = self.change.new, self.change.old
        if not self.change.is_done(self.inner, name) and (old or not signed_with(self.inner, name)):
            key = old
        return with_key(self.inner, key).read_chunks(name, chunk_bytes)


def with_key(inner: Files, key: SigningKey | None) -> Files:
    """Return the files with a key, or without one."""
    return inner if key is None else SignedFiles(inner, key)


def add_sign(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "sign",
        help="sign a checkpoint, change its key, or remove its signatures",
        description=about(__doc__),
        examples=["/data/app --dry-run", "/data/app --off"],
    )
    parser.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint, or of one stream in it"
    )
    parser.add_argument("--stream", metavar="ID", help="id of the stream; all of them by default")
    parser.add_argument("--off", action="store_true", help="remove the signatures")
    add_driver_gone(parser)
    add_dry_run(parser)
    add_progress(parser)
    parser.set_defaults(run=_sign)


def _sign(options: argparse.Namespace) -> CommandResult:
    change = change_of(options.off)
    signed: list[dict[str, Any]] = []
    with progress_of(options) as progress:
        streams = list(_streams(options))
        for files in streams:  # before the first file is changed
            require_unused(ChangingFiles(files, change), is_gone=options.driver_gone)
            count, changed = verify_files(files, change, progress)
            signed.append({"url": files.url, "files": count, "changed": changed})
        if not options.dry_run:
            sign_streams(streams, change, progress)
    did = "would be" if options.dry_run else "are"
    lines = [
        f"{one['url']}: {one['changed']} of {one['files']} files {did} rewritten" for one in signed
    ]
    data = {
        "old_key": None if change.old is None else change.old.key_id,
        "key": None if change.new is None else change.new.key_id,
        "streams": signed,
        "done": not options.dry_run,
    }
    return CommandResult(data, [*lines, f"the checkpoint {change}"])


def change_of(is_off: bool) -> KeyChange:
    """Return the change that the environment and --off request.

    Raises UsageError or CheckpointError.
    """
    key = SigningKey.from_environment()
    old = SigningKey.from_environment(OLD_KEY_FILE_VARIABLE, OLD_KEY_VARIABLE)
    if is_off:
        old, key = old or key, None
        if old is None:
            raise UsageError(
                "cannot remove the signatures without the current key; name its file in "
                f"{OLD_KEY_FILE_VARIABLE} or {KEY_FILE_VARIABLE}"
            )
    elif key is None:
        raise UsageError(
            f"cannot sign without a key; name its file in {KEY_FILE_VARIABLE}, where streams read "
            "it, too, or give --off to remove the signatures"
        )
    if old and key and old.key_id == key.key_id:
        raise UsageError(
            f"the keys in {KEY_FILE_VARIABLE} and {OLD_KEY_FILE_VARIABLE}, or their variables, are "
            f"the same: {key.key_id}"
        )
    return KeyChange(old, key)


def _streams(options: argparse.Namespace) -> Iterator[Files]:
    files = unsigned(open_location(options.url))
    if is_stream(files):
        yield files
        return
    known = list_streams(files)
    known += [directory for directory in list_claimed(files) if directory not in known]
    if not known:
        raise UsageError(f"{options.url} holds no commit record and no stream; is it a checkpoint?")
    if options.stream is not None and options.stream not in known:
        raise UsageError(
            f"{options.url} has no stream {options.stream!r}; it has {', '.join(known)}"
        )
    for directory in known if options.stream is None else [options.stream]:
        yield unsigned(open_location(stream_url(options.url, directory)))


def verify_files(inner: Files, change: KeyChange, progress: Progress = SILENT) -> tuple[int, int]:
    """Read all files of a stream, and return their number and how many have another key.

    Raises CorruptCheckpointError if neither key reads a file.
    """
    files = ChangingFiles(inner, change)
    if None in (change.old, change.new):
        require_trusted(inner)  # or a forged file would be signed, or lose its signature
    names = inner.list("")
    for name in progress.over(names, "reading files"):
        try:
            for _ in files.read_chunks(name, READ_CHUNK_BYTES):
                pass
        except UntrustedFileError as error:
            if error.damage is not Damage.OTHER_KEY:
                raise
            raise UsageError(f"{error}; or name its key in {OLD_KEY_FILE_VARIABLE}") from error
    return len(names), sum(not change.is_done(inner, name) for name in names)


def sign_streams(
    streams: Collection[Files], change: KeyChange, progress: Progress = SILENT
) -> None:
    """Rewrite the files of all streams with the new key; call again after an interruption.

    Raises ConcurrentWriterError if a driver has started in the meantime, or CheckpointError.
    """
    opened = [ChangingFiles(inner, change) for inner in streams]
    if not any(_remaining(files) for files in opened):
        return
    leases = [_claim(files) for files in opened]
    for _ in range(_ROUNDS):
        left = 0
        for files, lease in zip(opened, leases, strict=True):
            names = _remaining(files)
            _rewrite(files, names, progress)
            left += len(names)
            _require_alone(files, lease)
        if not left:
            break
    for files, lease in zip(opened, leases, strict=True):
        if lease is not None:
            WriterLease(with_key(files.inner, change.new), lease.claim).release()


def _remaining(files: ChangingFiles) -> list[str]:
    return [name for name in files.list("") if not files.change.is_done(files.inner, name)]


def _rewrite(files: ChangingFiles, names: Collection[str], progress: Progress) -> None:
    new = with_key(files.inner, files.change.new)
    for name in progress.over(names, "signing"):
        new.replace(name, files.read_chunks(name, READ_CHUNK_BYTES))


def _claim(files: ChangingFiles) -> WriterLease | None:
    """Fence older drivers, if the stream has ever had one."""
    for epoch in reversed(claimed_epochs(files)):
        stream_id = read_claim(files, epoch).stream_id
        return claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "sign"}))
    return None


def _require_alone(files: Files, lease: WriterLease | None) -> None:
    newest = max(claimed_epochs(files), default=0)
    if lease is not None and newest > lease.epoch:
        raise ConcurrentWriterError(
            f"a driver has claimed epoch {newest} of {files.url} while it was signed; stop it, and "
            "run the same command again, which continues from here",
            lease.epoch,
            newest,
        )

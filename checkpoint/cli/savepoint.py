"""``export`` and ``import``: a stream in one zip archive, as a backup or to move it.

The archive holds what a restart needs: the records that count and the files they name, snapshots of
stores, the graph and the inputs, and received blocks. An archive is verified after it is written,
and before it is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, cast

from checkpoint.cli.common import (
    CommandResult,
    Commands,
    UsageError,
    add_location,
    add_progress,
    moment,
    open_location,
    open_stream_at,
    progress_of,
    size,
)
from checkpoint.cli.progress_bar import SILENT, Progress
from checkpoint.cli.verify import verify_stream
from checkpoint.errors import (
    AlreadyExistsError,
    CheckpointError,
    CorruptCheckpointError,
    Damage,
    StorageRefusedError,
    UntrustedFileError,
)
from checkpoint.log.batch_records import (
    COMMIT_PREFIX,
    INPUTS_PREFIX,
    STORE_PREFIX,
    BatchLog,
    CommitLog,
    begin_file,
    commit_file,
)
from checkpoint.log.fencing import (
    CLAIM,
    EPOCH_PREFIX,
    TAKEOVER,
    DriverProcess,
    claim_epoch,
    epoch_file,
)
from checkpoint.log.graph_record import (
    GRAPH_PREFIX,
    RDDS_PREFIX,
    all_graphs,
    graph_file,
    rdds_of_no_graph,
)
from checkpoint.log.input_offsets import RECEIVED_PREFIX
from checkpoint.log.lineage import read_lineage, write_takeover
from checkpoint.log.recovery import RecoveryPlan, next_takeover, read_plan, stream_url
from checkpoint.state_store.static_files import static_of_no_batch
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, is_name, is_path, location
from checkpoint.storage.json_records import JsonRecord, Text, decode, encode
from checkpoint.storage.open_location import open_files
from checkpoint.storage.trust import renamable, require_trusted_file, signed_with, unsigned

_EXPORT = """\
Writes the files that a restart needs into one zip archive, and verifies it. A stream with a damaged
or missing file cannot be exported.

The original is not changed, and is not fenced by a stream imported from the archive. Start only one
of the two.
"""
_IMPORT = """\
Creates a stream from an archive that export wrote, at any location, on any machine. The archive is
verified first. The stream begins with a new epoch.

A restart runs code from the archive. An archive that other users can write is therefore rejected
unless it is signed, or you pass --trust.
"""
_LATE_PREFIXES = (COMMIT_PREFIX, EPOCH_PREFIX, GRAPH_PREFIX)
_MANIFEST = "savepoint.json"
_TRIES = 5  # a running driver may delete files that it no longer needs
_BAD_ARCHIVE = (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, OSError)


class Savepoint(JsonRecord, frozen=True):
    """The manifest of an archive."""

    stream_id: Text
    last_ms: int | None


def add_export(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "export",
        help="write a stream to one file",
        description=_EXPORT,
        examples=["/data/app /backup/2026-11-23.zip"],
    )
    add_location(parser)
    parser.add_argument(
        "file", metavar="FILE", help="path of the new file; a name of A-Z a-z 0-9 . _ = -"
    )
    add_progress(parser)
    parser.set_defaults(run=_export)


def add_import(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "import",
        help="create a stream from a file",
        description=_IMPORT,
        examples=["/backup/2026-11-23.zip /data/app"],
    )
    parser.add_argument("file", metavar="FILE", help="path of the file that export wrote")
    parser.add_argument("url", metavar="CHECKPOINT", help="path or URL of the checkpoint")
    parser.add_argument(
        "--here",
        action="store_true",
        help="import into CHECKPOINT itself, as for a query, not into a directory named by the id",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="accept a file that is not signed or that others can write; a restart runs its code",
    )
    add_progress(parser)
    parser.set_defaults(run=_import)


def _export(options: argparse.Namespace) -> CommandResult:
    with progress_of(options) as progress:
        files = open_stream_at(options.url, options.stream)
        target, name = _split(options.file)
        size_bytes = export_stream(files, target, name, progress)
    with open_archive(target, name) as archive:
        savepoint, count = archive.savepoint, len(archive.names)
    data = {
        "file": options.file,
        "stream": savepoint.stream_id,
        "last_ms": savepoint.last_ms,
        "files": count,
        "bytes": size_bytes,
    }
    line = (
        f"{options.file}: {savepoint.stream_id} up to the batch at {moment(savepoint.last_ms)}, "
        f"{count} files, {size(size_bytes)}"
    )
    return CommandResult(data, [line])


def _import(options: argparse.Namespace) -> CommandResult:
    source, name = _split(options.file)
    if not source.exists(name):
        raise UsageError(f"no such file: {options.file}")
    source = _trusted(source, name, options.trust)
    with progress_of(options) as progress, open_archive(source, name) as archive:
        archive.verify(progress)
        stream_id = archive.savepoint.stream_id
        url = options.url if options.here else stream_url(options.url, stream_id)
        with _no_empty_directories(url):
            files = open_files(url)
            plan = import_stream(archive, files, progress)
    data = {"stream": stream_id, "url": files.url, "last_ms": plan.last_ms}
    line = f"{files.url}: {stream_id} up to the batch at {moment(plan.last_ms)}"
    return CommandResult(data, [line])


def _split(path: str) -> tuple[Files, str]:
    directory, name = os.path.split(os.path.abspath(path))
    if not is_name(name):
        raise UsageError(
            f"{name!r} must begin with A-Z a-z 0-9 or _, and contain only these and . = -"
        )
    return renamable(open_location(directory), "export"), name


def _trusted(source: Files, name: str, is_vouched_for: bool) -> Files:
    if is_vouched_for:
        return unsigned(source) if signed_with(source, name) is None else source
    try:
        return require_trusted_file(source, name)
    except UntrustedFileError as error:
        raise UsageError(f"{error}; or import it with --trust") from error


@dataclass(frozen=True)
class Archive:
    """The files in an archive, with the reading methods of :class:`Files`."""

    url: str
    content: zipfile.ZipFile
    at_once = 1

    @property
    def names(self) -> list[str]:
        """Names of the files, in the order to import them in."""
        return [name for name in self.content.namelist() if name != _MANIFEST]

    @property
    def savepoint(self) -> Savepoint:
        """The manifest."""
        try:
            data = self.read(_MANIFEST)
        except FileNotFoundError as error:
            raise _damaged(self.url, error) from error
        return decode(data, Savepoint, self.url, "the manifest of an export")

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.names if name.startswith(prefix))

    def exists(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str) -> bytes:
        try:
            return self.content.read(name)
        except KeyError:
            raise FileNotFoundError(name) from None
        except _BAD_ARCHIVE as error:
            raise _damaged(self.url, error) from error

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        content = self.read(name)
        for start in range(0, len(content), chunk_bytes):
            yield content[start : start + chunk_bytes]

    def verify(self, progress: Progress) -> None:
        """Raise CorruptCheckpointError unless a restart could read all of it."""
        problems = verify_stream(cast("Files", self), progress).problems
        if problems:
            raise problems[0]


def _damaged(file: str, error: Exception) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        file,
        f"cannot be read as an export: {error}",
        "a zip archive",
        "import another export; nothing was written",
        Damage.DAMAGED,
    )


@contextmanager
def open_archive(source: Files, name: str) -> Iterator[Archive]:
    """Open an archive that :func:`export_stream` wrote. Raises CorruptCheckpointError."""
    file = location(source, name)
    with tempfile.TemporaryFile() as copy:
        for chunk in source.read_chunks(name, READ_CHUNK_BYTES):
            copy.write(chunk)
        try:
            content = zipfile.ZipFile(copy)
        except _BAD_ARCHIVE as error:
            raise _damaged(file, error) from error
        with content:
            yield Archive(file, content)


def export_stream(files: Files, target: Files, name: str, progress: Progress = SILENT) -> int:
    """Write the files that a restart of a stream needs into one file, and return its size.

    Raises AlreadyExistsError, CorruptCheckpointError or CheckpointError.
    """
    if target.exists(name):
        raise AlreadyExistsError(f"{location(target, name)} exists already; give another name")
    damage: CorruptCheckpointError | None = None
    for _ in range(_TRIES):
        with tempfile.TemporaryFile() as file, suppress(FileNotFoundError):
            _write_archive(files, file, progress)
            try:
                with zipfile.ZipFile(file) as content:
                    Archive(files.url, content).verify(progress)
            except CorruptCheckpointError as error:
                damage = error
                continue
            file.seek(0)
            return target.create(name, iter(lambda: file.read(READ_CHUNK_BYTES), b""))
    raise damage or StorageRefusedError(
        f"{files.url}: cannot export while its driver deletes files; export again, or stop it first"
    )


def _write_archive(files: Files, file: IO[bytes], progress: Progress) -> None:
    plan = read_plan(files)
    if plan.stream_id is None:
        raise UsageError(f"{files.url} holds no batch; there is nothing to export")
    names = needed_files(files, progress)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_MANIFEST, encode(Savepoint(plan.stream_id, plan.last_ms)))
        for name in progress.over(names, "writing the export"):
            archive.writestr(name, files.read(name))


def needed_files(files: Files, progress: Progress = SILENT) -> list[str]:
    """Return the names of the files that a restart needs, in the order to import them in.

    Missing files are omitted.
    """
    lineage = read_lineage(files)
    commit_log, batch_log = CommitLog(files), BatchLog(files)
    found: set[str] = set()
    named: set[str] = set()
    counted = lineage.commits(commit_log.all_ids())
    for record_id in progress.over(counted, "reading commit records"):
        found.add(commit_file(record_id))
        named |= commit_log.read_record(record_id).file_names()
    begun = lineage.begins(batch_log.all_ids()).values()
    found |= set(map(begin_file, begun))
    graphs = lineage.snapshots(all_graphs(files))
    found |= set(map(graph_file, graphs))
    rdds = files.list(RDDS_PREFIX)
    found |= set(rdds).difference(
        rdds_of_no_graph(rdds, graphs, sys.maxsize), static_of_no_batch(rdds, begun, sys.maxsize)
    )
    for takeover in lineage.takeovers:
        found.add(epoch_file(takeover.epoch, TAKEOVER))
        named.add(epoch_file(takeover.epoch, CLAIM))
    for prefix in (RECEIVED_PREFIX, INPUTS_PREFIX, STORE_PREFIX):
        found |= set(files.list(prefix))
    names = found | named.intersection(files.list(""))
    return sorted(names, key=lambda name: (_is_late(name), name))


def _is_late(name: str) -> bool:
    return name.startswith(_LATE_PREFIXES)


def import_stream(archive: Archive, files: Files, progress: Progress = SILENT) -> RecoveryPlan:
    """Create a stream from a verified archive, with a new epoch.

    After an error, the files it wrote are deleted. After a crash, importing again completes it.
    Raises UsageError or CheckpointError.
    """
    names = archive.names
    before = set(files.list(""))
    if not before.issubset(names):
        raise UsageError(f"{files.url} has another stream; import into an empty location")
    try:
        for name in progress.over(names, "writing files"):
            content = archive.read(name)
            try:
                files.create(name, [content])
            except AlreadyExistsError:
                if files.read(name) != content:
                    raise UsageError(
                        f"{location(files, name)} exists already, with other content; import into "
                        "a location without such a stream"
                    ) from None
        return _begin(files)
    except (Exception, KeyboardInterrupt):
        with suppress(CheckpointError):
            # Records first: a directory without one is not listed as a stream.
            for name in sorted(set(files.list("")) - before, key=_is_late, reverse=True):
                files.delete(name)
        raise


def _begin(files: Files) -> RecoveryPlan:
    plan = read_plan(files)
    lineage = read_lineage(files)
    stream_id = plan.stream_id or ""
    lease = claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "import"}))
    write_takeover(lease, next_takeover(stream_id, lease.epoch, lineage, plan, "import"))
    lease.check()
    lease.release()
    return plan


@contextmanager
def _no_empty_directories(url: str) -> Iterator[None]:
    """After an error, remove the directories that were created on this host."""
    root = os.path.abspath(url.removeprefix("file://")) if is_path(url) else ""
    existed = os.path.isdir(root)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        for directory, _, _ in os.walk(root, topdown=False) if root else ():
            if directory != root or not existed:
                with suppress(OSError):
                    os.rmdir(directory)
        raise

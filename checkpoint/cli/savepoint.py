"""``export`` and ``import``: a stream in one file, to be kept, or to go on somewhere else.

The file holds what a restart needs: the records that count and every file that they name, snapshots
of stores, of the graph and of the inputs, and received blocks; of a stream of which one of them is
damaged or missing there is no export. Names in it are relative, so it can be imported at any
location, on any machine. A stream that was imported begins with an epoch of its own; the original
is not touched and knows nothing of it, so only one of the two should go on.

What is imported will be run: a restart unpickles the graph. So a file that others than this user
and root can write is refused, as a checkpoint is, unless it is signed or the user vouches for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from checkpoint.cli.common import (
    CommandResult,
    Commands,
    Problem,
    UsageError,
    add_location,
    add_progress,
    open_location,
    open_stream_at,
    progress_of,
    size,
)
from checkpoint.cli.progress import SILENT, Progress
from checkpoint.cli.times import moment
from checkpoint.cli.verify import verify_stream
from checkpoint.cli.whole_files import reader_of
from checkpoint.errors import (
    RESTORE,
    AlreadyExistsError,
    CheckpointError,
    CorruptCheckpointError,
    Damage,
    StorageRefusedError,
    UntrustedFileError,
)
from checkpoint.log.batch_records import COMMIT_PREFIX, BatchLog, CommitLog, begin_file, commit_file
from checkpoint.log.fencing import (
    CLAIM,
    EPOCH_PREFIX,
    TAKEOVER,
    DriverProcess,
    Takeover,
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
from checkpoint.log.inputs import INPUTS_PREFIX, RECEIVED_PREFIX
from checkpoint.log.lineage import read_lineage, write_takeover
from checkpoint.log.recovery import RecoveryPlan, next_takeover, read_plan, stream_url
from checkpoint.state_store import STORE_PREFIX
from checkpoint.storage.files import (
    READ_CHUNK_BYTES,
    Files,
    FilteredFiles,
    Name,
    WrappedFiles,
    is_name,
    is_path,
    location,
)
from checkpoint.storage.framing import FileKind, Frames, read_frames, write_frames
from checkpoint.storage.json_records import Count, JsonRecord, Text, convert, decode, encode
from checkpoint.storage.open_location import open_files
from checkpoint.storage.signing import renamable, signed_with, unsigned
from checkpoint.storage.trust import require_trusted_file

_EXPORT = """\
Writes what a restart needs into one file: the records that count and every file that they name,
snapshots of stores, of the graph and of the inputs, and received blocks. All of it is verified; of
a stream of which one of them is damaged or missing there is no export.

The original is not touched, and knows nothing of a stream that is imported from the file: only one
of the two should go on.
"""
_IMPORT = """\
Makes a stream of a file that export wrote, at any location, on any machine. All of it is verified;
where that fails nothing is left. The stream begins with an epoch of its own.

A restart runs the code that is in the file. So one that others than this user and root can write is
refused, unless it is signed, or you vouch for it.
"""
_LATE_PREFIXES = (COMMIT_PREFIX, EPOCH_PREFIX, GRAPH_PREFIX)
_OTHER_EXPORT = "import another export; nothing of this one is left"
_TRIES = 5  # a driver that is at work may delete what it does not need


class Savepoint(JsonRecord, frozen=True):
    """What a file says of itself."""

    stream_id: Text
    last_ms: int | None
    files: Count


class _Inside(JsonRecord, frozen=True):
    """What stands before the content of a file."""

    name: Name
    bytes: Count


def add_export(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "export",
        help="write a stream to one file",
        description=_EXPORT,
        examples=["/data/app /backup/2026-11-23.export"],
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
        help="make a stream of a file",
        description=_IMPORT,
        examples=["/backup/2026-11-23.export /data/app"],
    )
    parser.add_argument("file", metavar="FILE", help="path of the file that export wrote")
    parser.add_argument(
        "url", metavar="CHECKPOINT", help="path or URL of the checkpoint to put it into"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help=(
            "into CHECKPOINT itself, as the checkpoint of a query is, not into a directory of its "
            "id"
        ),
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="also a file that others can write, or that is not signed; a restart runs its code",
    )
    add_progress(parser)
    parser.set_defaults(run=_import)


def _export(options: argparse.Namespace) -> CommandResult:
    with progress_of(options) as progress:
        files = open_stream_at(options.url, options.stream)
        plan = read_plan(files)
        target, name = _split(options.file)
        size_bytes = export_stream(files, target, name, progress)
    written = open_savepoint(target, name)[0]
    data = {
        "file": options.file,
        "stream": written.stream_id,
        "last_ms": plan.last_ms,
        "files": written.files,
        "bytes": size_bytes,
    }
    line = (
        f"{options.file}: {written.stream_id} up to the batch at {moment(plan.last_ms)}, "
        f"{written.files} files, {size(size_bytes)}"
    )
    return CommandResult(data, [line])


def _import(options: argparse.Namespace) -> CommandResult:
    source, name = _split(options.file)
    if not source.exists(name):
        raise UsageError(f"there is no file {options.file}")
    source = _trusted(source, name, options.trust)
    savepoint = open_savepoint(source, name)[0]
    url = options.url if options.here else stream_url(options.url, savepoint.stream_id)
    with progress_of(options) as progress, _without_traces(url):
        files = open_files(url)
        plan = import_stream(source, name, files, progress)
    data = {"stream": savepoint.stream_id, "url": files.url, "last_ms": plan.last_ms}
    line = f"{files.url}: {savepoint.stream_id} up to the batch at {moment(plan.last_ms)}"
    return CommandResult(data, [line])


def _split(path: str) -> tuple[Files, str]:
    directory, name = os.path.split(os.path.abspath(path))
    if not is_name(name):
        raise UsageError(f"{name!r} must begin with A-Z a-z 0-9 or _, and be of these and . = -")
    return renamable(open_location(directory), "export"), name


def _trusted(source: Files, name: str, is_vouched_for: bool) -> Files:
    if is_vouched_for:
        return unsigned(source) if signed_with(source, name) is None else source
    try:
        return require_trusted_file(source, name)
    except UntrustedFileError as error:
        raise UsageError(f"{error}; or import it with --trust") from error


def export_stream(files: Files, target: Files, name: str, progress: Progress = SILENT) -> int:
    """Write what a restart of a stream needs into one file, and return its size.

    Raises AlreadyExistsError, CorruptCheckpointError or CheckpointError.
    """
    if target.exists(name):
        raise AlreadyExistsError(f"{location(target, name)} exists already; give another name")
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # deleted since it was found
            plan = read_plan(files)
            if plan.stream_id is None:
                raise UsageError(f"{files.url} holds no batch; there is nothing to export")
            names = whole_files(files, progress)
            header = Savepoint(plan.stream_id, plan.last_ms, len(names))
            blocks = _blocks(files, progress.over(names, "writing the export"))
            return target.create(name, write_frames(FileKind.EXPORT, header, blocks))
    raise StorageRefusedError(
        f"{files.url} cannot be exported while a driver is at work there: it deletes files before "
        "they are read; export again, or stop it first"
    )


def whole_files(files: Files, progress: Progress = SILENT) -> list[str]:
    """Return what :func:`needed_files` does, verified as what is there after an import.

    A driver that is at work may delete what it needs no more while this looks.
    """
    problems: list[Problem] = []
    for _ in range(_TRIES):
        names = needed_files(files, progress)
        problems = verify_stream(FilteredFiles(files, set(names).__contains__), progress).problems
        if not problems:
            return names
    raise problems[0].error()


def needed_files(files: Files, progress: Progress = SILENT) -> list[str]:
    """Return the names of what a restart needs, in the order in which they can be imported.

    What a record names and what is not there is left out; what was there a moment ago is not.
    """
    lineage = read_lineage(files)
    commit_log, batch_log = CommitLog(files), BatchLog(files)
    found: set[str] = set()
    named: set[str] = set()
    counted = lineage.commits(commit_log.all_ids())
    for record_id in progress.over(counted, "reading commit records"):
        found.add(commit_file(record_id))
        named |= commit_log.read_record(record_id).file_names()
    found |= set(map(begin_file, lineage.begins(batch_log.all_ids()).values()))
    graphs = lineage.snapshots(all_graphs(files))
    found |= set(map(graph_file, graphs))
    rdds = files.list(RDDS_PREFIX)
    found |= set(rdds).difference(rdds_of_no_graph(rdds, graphs, sys.maxsize))
    for takeover in lineage.takeovers:
        found.add(epoch_file(takeover.epoch, TAKEOVER))
        named.add(epoch_file(takeover.epoch, CLAIM))
    for prefix in (RECEIVED_PREFIX, INPUTS_PREFIX, STORE_PREFIX):
        found |= set(files.list(prefix))
    names = found | named.intersection(files.list(""))
    return sorted(names, key=lambda name: (_is_late(name), name))


def _is_late(name: str) -> bool:
    return name.startswith(_LATE_PREFIXES)


def _blocks(files: Files, names: Iterable[str]) -> Iterator[tuple[bytes, int]]:
    for name in names:
        content = _whole_content(files, name)
        yield encode(_Inside(name, len(content))), 1
        for start in range(0, len(content), READ_CHUNK_BYTES):
            yield content[start : start + READ_CHUNK_BYTES], 0


def _whole_content(files: Files, name: str) -> bytes:
    """Read a file, and make sure that what was read is whole: it is what will be written."""
    content = files.read(name)
    reader = reader_of(_HeldFile(files, name, content), name)
    if reader is not None:
        reader()
    return content


@dataclass(frozen=True)
class _HeldFile(WrappedFiles):
    """Files of which one is held in memory."""

    name: str
    content: bytes

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        if name != self.name:
            yield from self.inner.read_chunks(name, chunk_bytes)
            return
        for start in range(0, len(self.content), chunk_bytes):
            yield self.content[start : start + chunk_bytes]


def open_savepoint(source: Files, name: str) -> tuple[Savepoint, Frames]:
    """Open a file that :func:`export_stream` wrote. Raises CorruptCheckpointError."""
    file = location(source, name)
    frames = read_frames(source.read_chunks(name, READ_CHUNK_BYTES), FileKind.EXPORT, file)
    return convert(frames.header, Savepoint, file, "the header of a stream in a file"), frames


def import_stream(
    source: Files, name: str, files: Files, progress: Progress = SILENT
) -> RecoveryPlan:
    """Make a stream of a file, verify it, and let it begin an epoch of its own.

    A first pass reads the whole file, so nothing is written of one that is damaged; of what fails
    later nothing is left. After a crash half way, importing again goes on.

    Raises CorruptCheckpointError, UsageError or CheckpointError.
    """
    count = open_savepoint(source, name)[0].files
    progress.begin("reading the export", count)
    for _ in _contents(source, name):
        progress.advance()
    before = set(files.list(""))
    try:
        _write(source, name, files, progress)
        _require_whole(source, name, files, progress)
        return _begin(files)
    except (Exception, KeyboardInterrupt):
        with suppress(CheckpointError):  # it has an error of its own to tell
            _delete_all(files, set(files.list("")) - before)
        raise


def _write(source: Files, name: str, files: Files, progress: Progress) -> None:
    count = open_savepoint(source, name)[0].files
    progress.begin("writing files", count)
    for inside, content in _contents(source, name):
        try:
            files.create(inside, [content])
        except AlreadyExistsError:
            if files.read(inside) != content:
                raise UsageError(
                    f"{location(files, inside)} is there already, with other content; import into "
                    "a location that has no such stream"
                ) from None
        progress.advance()
    if len(files.list("")) != count:
        raise UsageError(f"{files.url} has more files than {name}; there is a stream already")


def _require_whole(source: Files, name: str, files: Files, progress: Progress) -> None:
    problems = verify_stream(files, progress).problems
    if problems:
        _delete_all(files, files.list(""))
        found = f"holds what cannot be used: {problems[0].file} {problems[0].found}"
        expected = "a stream that is whole"
        raise CorruptCheckpointError(
            location(source, name), found, expected, _OTHER_EXPORT, problems[0].damage
        )


def _begin(files: Files) -> RecoveryPlan:
    """Let the stream begin an epoch of its own."""
    plan = read_plan(files)
    lineage = read_lineage(files)
    stream_id = plan.stream_id or ""
    lease = claim_epoch(files, stream_id, DriverProcess.of_this_process(0, {"tool": "import"}))
    takeover: Takeover = next_takeover(stream_id, lease.epoch, lineage, plan, "import")
    write_takeover(lease, takeover)
    lease.release()
    return plan


def _delete_all(files: Files, names: Iterable[str]) -> None:
    # The records first: what has none is not taken for a stream.
    for name in sorted(names, key=_is_late, reverse=True):
        files.delete(name)


@contextmanager
def _without_traces(url: str) -> Iterator[None]:
    """Remove the directories on this host that were made in vain."""
    root = os.path.abspath(url.removeprefix("file://")) if is_path(url) else ""
    made = root
    while made and not os.path.isdir(os.path.dirname(made)):
        made = os.path.dirname(made)
    was_there = os.path.isdir(root)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if root:
            _remove_empty(root, keeps_root=was_there)
            while root != made and not was_there:
                root = os.path.dirname(root)
                _remove_empty(root, keeps_root=False)
        raise


def _remove_empty(root: str, *, keeps_root: bool) -> None:
    for directory, _, _ in os.walk(root, topdown=False):
        if directory != root or not keeps_root:
            with suppress(OSError):
                os.rmdir(directory)


def _contents(source: Files, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents in a file, to its end."""
    file = location(source, name)
    savepoint, frames = open_savepoint(source, name)
    count = 0
    for payload, is_head in frames.blocks:
        if not is_head:
            raise CorruptCheckpointError(
                file, "has a block of no file", "a file", RESTORE, Damage.DAMAGED
            )
        head = decode(payload, _Inside, file, "what a file in it is")
        inside, left = head.name, head.bytes
        parts = []
        while left > 0:
            part, _ = next(frames.blocks, (b"", 0))
            left -= len(part) or left + 1
            parts.append(part)
        if left:
            raise CorruptCheckpointError(
                file, f"has {inside} not whole", "all of it", RESTORE, Damage.DAMAGED
            )
        count += 1
        yield inside, b"".join(parts)
    if count != savepoint.files:
        raise CorruptCheckpointError(
            file, f"holds {count} files", f"{savepoint.files}", RESTORE, Damage.DAMAGED
        )

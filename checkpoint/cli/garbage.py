"""``gc``: deletes what no record names, and on demand what does not count any more.

Orphans are files that dead drivers and given-up tasks left behind: no commit record names them, and
none ever will, because no driver of their epoch is left. Void records, which an older driver wrote
after it was replaced or which a rewind took back, stay until asked for: a rewind could make them
count again. Streams other than the newest stay too, until asked for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from checkpoint.cli.command_parser import about
from checkpoint.cli.common import (
    CommandResult,
    Commands,
    UsageError,
    add_driver_gone,
    add_dry_run,
    add_location,
    add_progress,
    is_stream,
    open_location,
    open_stream_at,
    progress_of,
)
from checkpoint.cli.progress import SILENT, Progress
from checkpoint.log.batch_records import BatchLog, CommitLog, begin_file, commit_file
from checkpoint.log.fencing import claimed_epochs, require_unused
from checkpoint.log.graph_record import (
    KEPT_GRAPHS,
    RDDS_PREFIX,
    all_graphs,
    graph_file,
    rdds_of_no_graph,
)
from checkpoint.log.inputs import input_snapshot_file, input_snapshot_ids
from checkpoint.log.lineage import read_lineage
from checkpoint.log.recovery import list_streams, read_plan, stream_url
from checkpoint.log.state_files import STATE_PREFIX, state_file_record
from checkpoint.state_store import STORE_PREFIX
from checkpoint.state_store.store_files import StoredKind, epoch_of, parse_file_name
from checkpoint.storage.files import Files
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.signing import SignedFiles


def add_gc(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "gc",
        help="delete obsolete files",
        description=about(__doc__),
        examples=["/data/app --dry-run", "/data/app --void --other-streams"],
    )
    add_location(parser)
    parser.add_argument("--void", action="store_true", help="also records that do not count")
    parser.add_argument(
        "--other-streams", action="store_true", help="also all streams but the newest"
    )
    add_driver_gone(parser)
    add_dry_run(parser)
    add_progress(parser)
    parser.set_defaults(run=_gc)


def _gc(options: argparse.Namespace) -> CommandResult:
    with progress_of(options) as progress:
        return _collect(options, progress)


def _collect(options: argparse.Namespace, progress: Progress) -> CommandResult:
    files = open_stream_at(options.url, options.stream)
    require_unused(files, is_gone=options.driver_gone)
    read_plan(files)  # of a damaged stream nothing is deleted
    garbage: list[tuple[str, Callable[[], None]]] = [
        (f"{files.url}/{name}", _deletion(files, name))
        for name in garbage_of(files, options.void, progress)
    ]
    garbage += [(path, _removal(path)) for path in _temporary(files)]
    if options.other_streams:
        garbage += _abandoned(options.url, files, options.driver_gone)
    for _, delete in () if options.dry_run else progress.over(garbage, "deleting files"):
        delete()
    paths = [path for path, _ in garbage]
    did = "would be deleted" if options.dry_run else "deleted"
    data = {"url": files.url, "files": paths, "done": not options.dry_run}
    return CommandResult(data, [*paths, f"{len(paths)} files {did}"])


def garbage_of(files: Files, void: bool = False, progress: Progress = SILENT) -> Iterator[str]:
    """Yield what can be deleted of a stream that no driver is at work on, in the order to do so."""
    lineage, commit_log, batch_log = read_lineage(files), CommitLog(files), BatchLog(files)
    newest = max(claimed_epochs(files), default=0)
    commit_ids = commit_log.all_ids()
    counted = set(lineage.commits(commit_ids))
    if not void:
        counted = set(commit_ids)
    named: set[str] = set()
    for record_id in progress.over(sorted(counted), "reading commit records"):
        named |= commit_log.read_record(record_id).file_names()
    for name in files.list(STATE_PREFIX):
        record_id_of_file = state_file_record(name)
        is_old = record_id_of_file is not None and record_id_of_file.epoch <= newest
        if is_old and name not in named:
            yield name
    yield from _orphans_of_stores(files, named, newest)
    graphs = all_graphs(files)
    if void:
        yield from (commit_file(found) for found in commit_ids if found not in counted)
        begun = batch_log.all_ids()
        kept = set(lineage.begins(begun).values())
        yield from (begin_file(found) for found in begun if found not in kept)
        snapshots = input_snapshot_ids(files)
        standing = lineage.snapshots(snapshots)
        yield from (input_snapshot_file(found) for found in snapshots if found not in standing)
        newest_graphs = lineage.snapshots(graphs)[:KEPT_GRAPHS]
        yield from (graph_file(found) for found in graphs if found not in newest_graphs)
        graphs = newest_graphs
    yield from rdds_of_no_graph(files.list(RDDS_PREFIX), graphs, newest)


def _orphans_of_stores(files: Files, named: set[str], newest: int) -> Iterator[str]:
    """Yield files of stores whose attempt no record names, as old as the oldest named one or not.

    Stores without a named file are skipped: their owner is unknown.
    """
    directories: dict[str, set[tuple[int, str]]] = {}
    for name in named:
        found = parse_file_name(name)
        if found is not None:
            directories.setdefault(found[0], set()).add((found[1].version, found[1].uid))
    for name in files.list(STORE_PREFIX):
        found = parse_file_name(name)
        if found is None or found[0] not in directories:
            continue
        directory, version_id, kind = found
        version_ids = directories[directory]
        written_in = epoch_of(version_id.uid)
        is_ours = written_in is not None and written_in <= newest
        is_named = (version_id.version, version_id.uid) in version_ids
        # Before the oldest named version lies what leads to it: retention judges that.
        is_after = version_id.version >= min(version for version, _ in version_ids)
        if is_ours and is_after and not is_named and kind in StoredKind:
            yield name


def _temporary(files: Files) -> list[str]:
    """Return the temporary files that dead processes left in a directory of this host."""
    inner = files.inner if isinstance(files, SignedFiles) else files
    if not isinstance(inner, LocalFiles):
        return []
    return [
        os.path.join(directory, name)
        for directory, _, names in os.walk(inner.root)
        for name in names
        if name.startswith(".") and name.endswith(".tmp")
    ]


def _abandoned(url: str, files: Files, is_gone: bool) -> list[tuple[str, Callable[[], None]]]:
    """Return the files of all streams at *url* but the one of *files*."""
    location = open_location(url)
    if is_stream(location):
        raise UsageError(f"{url} is one stream; give the location of the checkpoint")
    garbage = []
    for stream in list_streams(location):
        other = open_location(stream_url(url, stream.stream_id))
        if other.url == files.url:
            continue
        require_unused(other, is_gone=is_gone)
        # Records first: what has none is not taken for a stream.
        for name in sorted(other.list(""), key=lambda name: not name.startswith("graph/")):
            garbage.append((f"{other.url}/{name}", _deletion(other, name)))
    return garbage


def _deletion(files: Files, name: str) -> Callable[[], None]:
    return lambda: files.delete(name)


def _removal(path: str) -> Callable[[], None]:
    def remove() -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    return remove

"""``gc``: delete files that no record names and, on request, records that do not count.

Orphans are files that killed drivers and abandoned tasks left behind: no commit record names them
or ever will, because the drivers of their epochs have ended. Void records were written by a
superseded driver or undone by a rewind. They are kept by default, because a rewind could make them
count again. So are streams other than the newest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

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
from checkpoint.cli.progress_bar import SILENT, Progress
from checkpoint.log.batch_records import BatchLog, CommitLog, begin_file, commit_file
from checkpoint.log.fencing import claimed_epochs, require_unused
from checkpoint.log.graph_record import (
    KEPT_GRAPHS,
    RDDS_PREFIX,
    all_graphs,
    graph_file,
    rdds_of_no_graph,
)
from checkpoint.log.input_offsets import input_snapshot_file, input_snapshot_ids
from checkpoint.log.lineage import read_lineage
from checkpoint.log.recovery import list_streams, read_plan, stream_url
from checkpoint.log.state_files import STATE_PREFIX, state_file_record
from checkpoint.state_store import STORE_PREFIX
from checkpoint.state_store.static_files import static_of_no_batch
from checkpoint.state_store.store_files import StoredKind, epoch_of, parse_file_name
from checkpoint.storage.files import Files
from checkpoint.storage.hdfs_files import HdfsFiles
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.object_files import ObjectFiles
from checkpoint.storage.trust import SignedFiles


def add_gc(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "gc",
        help="delete obsolete files",
        description=about(__doc__),
        examples=["/data/app --dry-run", "/data/app --void --other-streams"],
    )
    add_location(parser)
    parser.add_argument("--void", action="store_true", help="also delete records that do not count")
    parser.add_argument(
        "--other-streams", action="store_true", help="also delete all streams but the newest"
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
    read_plan(files)  # raises if the stream is damaged; then nothing is deleted
    garbage: list[tuple[str, Callable[[], None]]] = [
        (f"{files.url}/{name}", _deletion(files, name))
        for name in garbage_of(files, options.void, progress)
    ]
    garbage += _temporary(files)
    if options.other_streams:
        garbage += _abandoned(options.url, files, options.driver_gone)
    for _, delete in () if options.dry_run else progress.over(garbage, "deleting files"):
        delete()
    paths = [path for path, _ in garbage]
    did = "would be deleted" if options.dry_run else "deleted"
    data = {"url": files.url, "files": paths, "done": not options.dry_run}
    return CommandResult(data, [*paths, f"{len(paths)} files {did}"])


def garbage_of(files: Files, void: bool = False, progress: Progress = SILENT) -> Iterator[str]:
    """Yield the obsolete files of a stream without a driver, in the order to delete them in."""
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
    graphs, kept = all_graphs(files), set(batch_log.all_ids())
    if void:
        yield from (commit_file(found) for found in commit_ids if found not in counted)
        begun, kept = kept, set(lineage.begins(kept).values())
        yield from (begin_file(found) for found in sorted(begun) if found not in kept)
        snapshots = input_snapshot_ids(files)
        standing = lineage.snapshots(snapshots)
        yield from (input_snapshot_file(found) for found in snapshots if found not in standing)
        newest_graphs = lineage.snapshots(graphs)[:KEPT_GRAPHS]
        yield from (graph_file(found) for found in graphs if found not in newest_graphs)
        graphs = newest_graphs
    rdds = files.list(RDDS_PREFIX)
    yield from rdds_of_no_graph(rdds, graphs, newest)
    yield from static_of_no_batch(rdds, kept, newest)


def _orphans_of_stores(files: Files, named: set[str], newest: int) -> Iterator[str]:
    """Yield store files of attempts that no record names, from the oldest named version on.

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
        # Older files may lead to the oldest named version; retention deletes them.
        is_after = version_id.version >= min(version for version, _ in version_ids)
        if is_ours and is_after and not is_named and kind in StoredKind:
            yield name


def _temporary(files: Files) -> list[tuple[str, Callable[[], None]]]:
    """Return the temporary files that killed processes left, and how to delete each."""
    inner = files.inner if isinstance(files, SignedFiles) else files
    if not isinstance(inner, (LocalFiles, HdfsFiles, ObjectFiles)):
        return []
    names = inner.temporary()
    return [(f"{files.url}/{name}", partial(inner.delete_temporary, name)) for name in names]


def _abandoned(url: str, files: Files, is_gone: bool) -> list[tuple[str, Callable[[], None]]]:
    """Return the files of all streams at *url* but the one of *files*."""
    location = open_location(url)
    if is_stream(location):
        raise UsageError(f"{url} is one stream; give the location of the checkpoint")
    garbage = []
    for stream_id in list_streams(location):
        other = open_location(stream_url(url, stream_id))
        if other.url == files.url:
            continue
        require_unused(other, is_gone=is_gone)
        # Graphs first: a directory without one is not listed as a stream.
        for name in sorted(other.list(""), key=lambda name: not name.startswith("graph/")):
            garbage.append((f"{other.url}/{name}", _deletion(other, name)))
    return garbage


def _deletion(files: Files, name: str) -> Callable[[], None]:
    return lambda: files.delete(name)

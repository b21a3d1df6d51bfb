"""The committed files of a directory, which a file sink records and readers follow.

The mechanism is :mod:`dstreams.sinks.committed_directory`, with one directory for all batches::

    <directory>/_committed/query            the query that writes here, since its first start
    <directory>/_committed/0000000003       the manifest of batch 3
    <directory>/part-0000000003-00001-<attempt>.txt

At intervals, the manifest of a batch also lists all earlier batches, so that readers open few
files. If several manifests list a batch, the newest one counts, so a late manifest of a replaced
run has no effect. A manifest is deleted only when a second manifest lists its batch: a reader that
lists the directory at that moment finds the first.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from pyspark import SparkContext

from checkpoint import (
    AlreadyExistsError,
    CheckpointError,
    Files,
    open_existing,
    open_output,
    unsigned,
)
from dstreams.errors import RestartError
from dstreams.sinks.committed_directory import CommittedDirectory, Manifest
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.file_listing import FileStamp, open_listing

COMMITTED = "_committed"
_QUERY = f"{COMMITTED}/query"
_PART = re.compile(r"part-(\d{10})-\d{5}-[0-9a-f]{16}\.(?:txt|json|csv|parquet)")

_FEW, _MANY = 10, 100
_READ_AGAIN = 5
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class CommittedFiles:
    """The manifests of a directory, for the query that writes there."""

    def __init__(self, directory: str, query_id: str) -> None:
        self.directory = CommittedDirectory(open_output(directory), "write to a new directory")
        self._claim(directory, query_id)
        self._known = _manifests(self.directory.files)
        self._newest_whole = _newest_whole(self._known)
        self._delete_unnamed(self._known)

    def _claim(self, directory: str, query_id: str) -> None:
        """Record that the query writes here, or raise RestartError if another one does."""
        files = self.directory.files
        try:
            files.create(_QUERY, [json.dumps({"queryId": query_id}).encode()])
        except AlreadyExistsError:
            writer = json.loads(files.read(_QUERY))["queryId"]
            if writer != query_id:
                raise RestartError(
                    f"directory {directory} is written by query {writer}, not by {query_id}; write "
                    "to another directory, or restart with the checkpoint of that query"
                ) from None

    def has(self, batch: OutputBatch) -> bool:
        """Return whether a batch is written; raise OutputConflictError for another history."""
        if self.directory.find(_name_of(batch.batch_id), batch) is not None:
            return True
        found = self._known.get(batch.batch_id) or self._later(batch).get(batch.batch_id)
        if found is not None:
            self.directory.require_of(batch, found)
        return found is not None

    def add(self, batch: OutputBatch, names: list[str]) -> None:
        """Write the manifest of a batch, unless it exists; raises as :meth:`has`."""
        manifest = Manifest.of(batch, names)
        superfluous: list[str] = []
        if self._is_due(batch.batch_id):
            try:
                manifests = _manifests(self.directory.files)
                manifest, superfluous = self._with_others(manifest, manifests)
                self._delete_unnamed(manifests)
            except (CheckpointError, FileNotFoundError) as error:
                _log.warning("%s: could not merge manifests: %s", self.directory.files.url, error)
        is_new = self.directory.commit(_name_of(batch.batch_id), batch, manifest)
        if is_new and manifest.before:
            self._newest_whole = batch.batch_id
        # If newer manifests already list the batch, this one is too late, and they count.
        self.directory.require_of(batch, self._later(batch).get(batch.batch_id, manifest))
        self.directory.delete(superfluous)

    def _is_due(self, batch_id: int) -> bool:
        count = batch_id - self._newest_whole
        return count >= _FEW and (count >= _MANY or count * _FEW >= batch_id)

    def _delete_unnamed(self, manifests: dict[int, Manifest]) -> None:
        def manifest_of(name: str) -> Manifest | None:
            part = _PART.fullmatch(name)
            return None if part is None else manifests.get(int(part[1]))

        self.directory.delete_unnamed(manifest_of)

    def _with_others(
        self, manifest: Manifest, manifests: dict[int, Manifest]
    ) -> tuple[Manifest, list[str]]:
        """Return the manifest that lists all batches, and the manifests it makes superfluous."""
        self._newest_whole = newest = _newest_whole(manifests)
        batch_id = manifest.batch_id
        if not self._is_due(batch_id):  # another run of the query has written such a manifest
            return manifest, []
        others = (replace(one, before=()) for one in manifests.values() if one.batch_id < batch_id)
        listed = {one.batch_id for one in manifests[newest].before} if newest >= 0 else set()
        superfluous = sorted(listed.intersection(_numbers(self.directory.files)))
        return replace(manifest, before=tuple(others)), list(map(_name_of, superfluous))

    def _later(self, batch: OutputBatch) -> dict[int, Manifest]:
        """Return all manifests if some are later than this batch; raises as :meth:`has`."""
        files = self.directory.files
        if max(_numbers(files), default=-1) <= batch.batch_id:
            return {}
        manifests = _manifests(files)
        newest = max(manifests)
        if batch.is_foreign(newest):
            self.directory.require_of(batch, manifests[newest])
        return manifests


class VisibleFiles:
    """The visible files of a growing directory.

    If a file sink writes there, these are the committed files, otherwise all but hidden files. A
    Hadoop glob pattern selects several directories, whose manifests are not read.

    Semantics: FileStreamSource with ``_spark_metadata`` (Spark 4.3).

    Attributes:
        listing: the listing of the directory.
        are_of_sink: whether the files listed last are those of a file sink.
    """

    def __init__(self, directory: str, spark: SparkContext, *, is_recursive: bool = False) -> None:
        self.listing = open_listing(directory, spark, is_recursive=is_recursive)
        self.are_of_sink = False
        self._records = self.listing.inside(COMMITTED)
        self._read: dict[str, Manifest] = {}

    def files(self) -> list[FileStamp] | None:
        """List the files in the order of batches or times; None if the directory is missing."""
        committed = _settled(self._committed)  # first, because files precede their manifest
        self.are_of_sink = committed is not None
        found = self.listing.files()
        if found is None:
            return None
        if committed is None and _settled(self._committed) is not None:
            return self.files()  # a sink started in the meantime, and its files were found
        if committed is None:
            return [stamp for stamp in sorted(found.values(), key=_age) if _is_visible(stamp)]
        by_name = {_last_part(path): stamp for path, stamp in found.items()}
        return [by_name[name] for name in committed if name in by_name]

    def _committed(self) -> list[str] | None:
        """Return the names of committed files, None if no sink writes here."""
        listing = self._records
        records = None if listing is None else listing.files()
        if listing is None or not records:
            return None
        paths = {int(_last_part(path)): path for path in records if _is_manifest(path)}
        read: dict[str, Manifest] = {}

        def read_one(number: int) -> Manifest:
            path = paths[number]
            read[path] = self._read.get(path) or Manifest.required(listing.read(path), path)
            return read[path]

        manifests = _newest_first(paths, read_one)
        self._read = read
        return [name for manifest in manifests.values() for name in manifest.files]


def committed_files(directory: str) -> dict[int, list[str]]:
    """Return the names of a file sink's committed files, by batch id.

    Raises:
        FileNotFoundError: the directory does not exist.
    """
    manifests = _manifests(unsigned(open_existing(directory)))
    return {number: list(manifest.files) for number, manifest in manifests.items()}


def committed_lines(directory: str) -> dict[int, list[str]]:
    """Return the lines of a file sink's committed files, by batch id.

    Raises:
        FileNotFoundError: the directory does not exist.
    """
    files = unsigned(open_existing(directory))
    return {
        number: [line for name in manifest.files for line in _lines(files.read(name))]
        for number, manifest in _manifests(files).items()
    }


def _manifests(files: Files) -> dict[int, Manifest]:
    """Return the manifest of each batch, in order."""

    def read_one(number: int) -> Manifest:
        name = _name_of(number)
        return Manifest.required(files.read(name), f"{files.url}/{name}")

    return _settled(lambda: _newest_first(_numbers(files), read_one))


def _newest_first(
    numbers: Iterable[int], read_one: Callable[[int], Manifest]
) -> dict[int, Manifest]:
    """Read manifests from the newest to the oldest, except those that a newer one lists."""
    found: dict[int, Manifest] = {}
    for number in sorted(numbers, reverse=True):
        if number not in found:
            found[number] = manifest = read_one(number)
            for earlier in manifest.before:
                found.setdefault(earlier.batch_id, earlier)
    return dict(sorted(found.items()))


def _newest_whole(manifests: dict[int, Manifest]) -> int:
    """Return the newest batch whose manifest lists the earlier ones, or -1."""
    return max((number for number, manifest in manifests.items() if manifest.before), default=-1)


def _settled(read: Callable[[], _T]) -> _T:
    """Read, and retry if a manifest was deleted in the meantime: a newer one lists its batch."""
    for _ in range(_READ_AGAIN - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def _numbers(files: Files) -> list[int]:
    return [int(_last_part(name)) for name in files.list(f"{COMMITTED}/") if _is_manifest(name)]


def _is_manifest(path: str) -> bool:
    return _last_part(path).isdecimal()


def _lines(content: bytes) -> list[str]:
    return content.decode().removesuffix("\n").split("\n") if content else []


def _name_of(batch_id: int) -> str:
    return f"{COMMITTED}/{batch_id:010d}"


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _age(stamp: FileStamp) -> tuple[int, str]:
    return stamp.modified_ms, stamp.path


def _is_visible(stamp: FileStamp) -> bool:
    return not _last_part(stamp.path).startswith((".", "_"))

"""Which files of a directory count: a file sink says so, batch by batch, and readers follow it.

The mechanism is :mod:`dstreams.sinks.committed_directory`, with one directory for all batches::

    <directory>/_committed/query            who writes here, since its first start
    <directory>/_committed/0000000003       the manifest of the batch 3
    <directory>/part-0000000003-00001-<attempt>.txt

Now and then the manifest of a batch also lists all batches before it, so that readers open few. If
several manifests list a batch, the newest of them counts, so a manifest that a replaced run adds
late changes nothing. A manifest is deleted only when a second manifest lists its batch: a reader
that lists the directory at that moment finds the first.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, TypeVar

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
from dstreams.sinks.committed_directory import CommittedDirectory
from dstreams.sinks.manifest import Manifest
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sources.file_listing import FileStamp, open_listing

LineFormat = Literal["text", "json"]
"""What a line of a file is: a text, or a value as JSON."""

COMMITTED = "_committed"
_QUERY = f"{COMMITTED}/query"
_PART = re.compile(r"part-(\d{10})-\d{5}-[0-9a-f]{16}\.(?:txt|json)")

_FEW, _MANY = 10, 100
_READ_AGAIN = 5
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class CommittedFiles:
    """The manifests of a directory, as the query that writes there keeps them.

    Raises:
        StorageRefusedError: the directory cannot hold files.
        RestartError: another query writes there.
    """

    def __init__(self, directory: str, query_id: str) -> None:
        self.directory = CommittedDirectory(open_output(directory), "write to a new directory")
        self._claim(directory, query_id)
        self._known = _manifests(self.directory.files)
        self._newest_whole = _newest_whole(self._known)
        self._delete_unnamed(self._known)

    def _claim(self, directory: str, query_id: str) -> None:
        """Make the query the one that writes here, or find that it is."""
        files = self.directory.files
        try:
            files.create(_QUERY, [json.dumps({"queryId": query_id}).encode()])
        except AlreadyExistsError:
            writer = json.loads(files.read(_QUERY))["queryId"]
            if writer != query_id:
                raise RestartError(
                    f"{directory} is written by query {writer}, not by {query_id}; write to "
                    "another directory, or restart with the checkpoint of that query"
                ) from None

    def has(self, batch: OutputBatch) -> bool:
        """Whether a batch is written.

        Raises:
            OutputConflictError: the batch, or one that this checkpoint has not begun, is of another
                history of the checkpoint.
        """
        if self.directory.find(_name_of(batch.batch_id), batch) is not None:
            return True
        found = self._known.get(batch.batch_id) or self._later(batch).get(batch.batch_id)
        if found is not None:
            self.directory.require_of(batch, found)
        return found is not None

    def add(self, batch: OutputBatch, names: list[str]) -> None:
        """Write the manifest of a batch, unless there is one.

        Raises:
            OutputConflictError: as in :meth:`has`, of a batch that was written meanwhile.
        """
        manifest = Manifest.of(batch, names)
        superfluous: list[str] = []
        if self._is_due(batch.batch_id):
            try:
                manifests = _manifests(self.directory.files)
                manifest, superfluous = self._with_others(manifest, manifests)
                self._delete_unnamed(manifests)
            except (CheckpointError, FileNotFoundError) as error:
                _log.warning("%s: manifests stay as they are: %s", self.directory.files.url, error)
        is_new = self.directory.commit(_name_of(batch.batch_id), batch, manifest)
        if is_new and manifest.before:
            self._newest_whole = batch.batch_id
        # Late, where newer manifests tell of the batch already: then it is they that count.
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
        """Return the manifest that lists all batches, and those that it makes superfluous."""
        self._newest_whole = newest = _newest_whole(manifests)
        batch_id = manifest.batch_id
        if not self._is_due(batch_id):  # another run of the query has written such a manifest
            return manifest, []
        others = (replace(one, before=()) for one in manifests.values() if one.batch_id < batch_id)
        told = {one.batch_id for one in manifests[newest].before} if newest >= 0 else set()
        superfluous = sorted(told.intersection(_numbers(self.directory.files)))
        return replace(manifest, before=tuple(others)), list(map(_name_of, superfluous))

    def _later(self, batch: OutputBatch) -> dict[int, Manifest]:
        """Return the manifests of all batches, if there are any later than this one's.

        Raises:
            OutputConflictError: one is of a batch that this checkpoint has not begun.
        """
        files = self.directory.files
        if max(_numbers(files), default=-1) <= batch.batch_id:
            return {}
        manifests = _manifests(files)
        newest = max(manifests)
        if batch.is_foreign(newest):
            self.directory.require_of(batch, manifests[newest])
        return manifests


class VisibleFiles:
    """The files of a directory that a reader may see, while more of them appear.

    These are the files that a file sink committed, if one writes there; else all but hidden ones. A
    pattern of Hadoop's stands for several directories, whose files are those of no sink.

    Semantics: FileStreamSource with ``_spark_metadata`` (Spark 4.3).
    """

    def __init__(self, directory: str, spark: SparkContext) -> None:
        self._listing = open_listing(directory, spark)
        self._records = self._listing.inside(COMMITTED)
        self._read: dict[str, Manifest] = {}

    def files(self) -> list[FileStamp] | None:
        """List the files in the order of their batches or times; None without the directory."""
        committed = _settled(self._committed)  # before the files, which are there before it
        found = self._listing.files()
        if found is None:
            return None
        if committed is None and _settled(self._committed) is not None:
            return self.files()  # a sink has begun meanwhile, and its files are among those found
        if committed is None:
            return [stamp for stamp in sorted(found.values(), key=_age) if _is_visible(stamp)]
        by_name = {_last_part(path): stamp for path, stamp in found.items()}
        return [by_name[name] for name in committed if name in by_name]

    def _committed(self) -> list[str] | None:
        """Return the names of committed files, None where no sink writes."""
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
    """Return the names of the files of a file sink that count, by the number of their batch.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    manifests = _manifests(unsigned(open_existing(directory)))
    return {number: list(manifest.files) for number, manifest in manifests.items()}


def committed_lines(directory: str) -> dict[int, list[str]]:
    """Return what a file sink has written, line by line, by the number of the batch.

    Raises:
        FileNotFoundError: there is no such directory.
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
    """Read manifests from the newest on, without those that a newer one lists."""
    found: dict[int, Manifest] = {}
    for number in sorted(numbers, reverse=True):
        if number not in found:
            found[number] = manifest = read_one(number)
            for earlier in manifest.before:
                found.setdefault(earlier.batch_id, earlier)
    return dict(sorted(found.items()))


def _newest_whole(manifests: dict[int, Manifest]) -> int:
    """Return the newest batch whose manifest lists those before it; -1 where none does."""
    return max((number for number, manifest in manifests.items() if manifest.before), default=-1)


def _settled(read: Callable[[], _T]) -> _T:
    """Read, and again where a manifest was deleted meanwhile: a newer one lists its batch."""
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

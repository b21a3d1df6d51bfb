"""A directory of a batch on a file system of Hadoop's: there as a whole, or not at all."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from dstreams.sinks.manifest import SUCCESS, Manifest
from dstreams.sinks.output_batch import OutputBatch

RENAME_AT_ONCE = {"file", "hdfs", "webhdfs", "viewfs", "ofs", "o3fs", "maprfs", "abfs", "abfss"}
"""Schemes whose directories are renamed in one step. Others copy file by file."""

_HIDDEN = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{32}")

# What a killed run left is looked for once in each process, not in each batch.
_swept: set[tuple[str, str]] = set()


def is_of_hadoop(spark: SparkContext, url: str) -> bool:
    """Whether Hadoop, as Spark is configured, has a file system for *url*."""
    jvm: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    scheme = jvm.org.apache.hadoop.fs.Path(url).toUri().getScheme()
    if scheme is None:
        return True
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JError:
        return False
    return True


class HadoopDirectory:
    """The directory that one batch is written to.

    ::

        .name.<new>/        the job writes here, then _SUCCESS says which batch it was
        fsync               of all files, on a local disk
        .name.<new> -> name in one step

    Where a rename is not one step, files are moved one by one under names that no other attempt
    has, and ``_SUCCESS`` comes last. Until then ``.name.begun`` says whose turn it is: of two
    drivers that write the same batch the one that was first finds another's name there, takes
    back what it has moved, and fails. It deletes nothing that was not there before its turn.

    Args:
        spark: the context.
        url: path or URL of the directory.
    """

    def __init__(self, spark: SparkContext, url: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._read_text = jvm.org.apache.commons.io.IOUtils.toString
        path = self._path(url)
        self._files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        self._target = self._files.makeQualified(path)
        self._begun = self._path(self._target.getParent(), f".{self._target.getName()}.begun")
        scheme = self._target.toUri().getScheme()
        self._is_local = scheme == "file"
        self._renames_at_once = scheme in RENAME_AT_ONCE

    def write(self, batch: OutputBatch, rdd: RDD[Any]) -> bool:
        """Write a batch, and return False if it was there already.

        Raises:
            FileExistsError: the target is there and no complete output of a batch.
            OSError: the file system would not rename.
        """
        self._sweep(batch.stream_id)
        if self._is_there(batch):
            if not self._renames_at_once:
                self._files.delete(self._begun, False)
            return False
        hidden = self._beside()
        manifest = Manifest.of(batch)
        try:
            rdd.saveAsTextFile(hidden.toString())
            if self._is_there(batch):
                # Of a driver that has taken over meanwhile: what it published stays.
                self._files.delete(hidden, True)
                return False
            if not self._renames_at_once:
                return self._publish_by_files(batch, hidden, manifest, rdd.getNumPartitions())
            self._write_text(self._path(hidden, SUCCESS), manifest)
            self._parts_of(hidden, rdd.getNumPartitions())
            self._publish(hidden)
        except BaseException:
            with suppress(Py4JError):
                self._files.delete(hidden, True)
            raise
        return True

    def _is_there(self, batch: OutputBatch) -> bool:
        if not self._files.exists(self._target):
            return False
        if self._files.exists(self._path(self._target, SUCCESS)):
            found = self._read(self._path(self._target, SUCCESS))
            return found is not None and found.is_of(batch)
        begun = self._read(self._begun)
        if begun is None or not begun.is_of(batch):
            raise FileExistsError(
                f"saveAsTextFiles cannot write {self._target.toString()}: it exists and has no "
                f"{SUCCESS}, so it is not the complete output of a batch; remove the directory "
                f"{self._target.toString()}, move it away, or write to another prefix"
            )
        return False  # a killed run of this batch came so far

    def _publish(self, hidden: Any) -> None:
        if self._is_local:
            _sync(hidden.toUri().getPath())
        replaced = self._beside() if self._files.exists(self._target) else None
        if replaced is not None:
            # Moved and then deleted: nobody is to find half of it.
            self._rename(self._target, replaced)
        self._rename(hidden, self._target)
        if self._is_local:
            _sync_directory(os.path.dirname(self._target.toUri().getPath()))
        if replaced is not None:
            self._files.delete(replaced, True)

    def _publish_by_files(
        self, batch: OutputBatch, hidden: Any, manifest: Manifest, count: int
    ) -> bool:
        old = self._names_in(self._target)
        claim = replace(manifest, files=(hidden.getName(),))
        self._write_text(self._begun, claim)
        if SUCCESS in self._names_in(self._target) and self._is_there(batch):
            # Of a driver that was quicker.
            self._files.delete(hidden, True)
            return False
        # First, so that nobody takes for complete what is being deleted.
        for name in sorted(old, key=lambda name: name != SUCCESS):
            self._require_turn(claim)
            self._files.delete(self._path(self._target, name), True)
        moved: list[Any] = []
        try:
            self._move(self._parts_of(hidden, count), claim, moved)
            self._write_text(self._path(self._target, SUCCESS), manifest)
        except Exception:
            for path in moved:
                self._files.delete(path, False)
            raise
        self._files.delete(self._begun, False)
        self._files.delete(hidden, True)
        return True

    def _move(self, parts: list[Any], claim: Manifest, moved: list[Any]) -> None:
        """Move files into the target, each under a name of its own."""
        self._files.mkdirs(self._target)
        for part in parts:
            attempt = part.getParent().getName()[-8:]
            path = self._path(self._target, f"{part.getName()}-{attempt}")
            self._require_turn(claim)
            moved.append(path)
            self._rename(part, path)
        self._require_turn(claim)
        if len(self._names_in(self._target)) != len(moved):
            raise OSError(_taken(self._target))

    def _parts_of(self, hidden: Any, count: int) -> list[Any]:
        """The files of a directory, one for each partition.

        A driver that begins takes the directories of others for those of killed runs.
        """
        names = [name for name in self._names_in(hidden) if name != SUCCESS]
        if len(names) != count:
            raise OSError(_taken(self._target))
        return [self._path(hidden, name) for name in names]

    def _require_turn(self, claim: Manifest) -> None:
        if self._read(self._begun) != claim:
            raise OSError(_taken(self._target))

    def _names_in(self, directory: Any) -> list[str]:
        if not self._files.exists(directory):
            return []
        try:
            found = self._files.listStatus(directory)
        except Py4JError:
            if self._files.exists(directory):
                raise
            return []  # another driver has deleted it meanwhile
        return sorted(status.getPath().getName() for status in found)

    def _rename(self, source: Any, target: Any) -> None:
        if self._is_local and self._renames_at_once:
            # Hadoop's would move into a directory that is there; this one fails.
            os.rename(source.toUri().getPath(), target.toUri().getPath())
        elif self._files.exists(target) or not self._files.rename(source, target):
            raise OSError(
                f"saveAsTextFiles cannot rename {source.toString()} to {target.toString()}; "
                "does another program write it?"
            )

    def _write_text(self, path: Any, manifest: Manifest) -> None:
        out = self._files.create(path, True)
        try:
            out.write(manifest.to_text().encode())
        finally:
            out.close()

    def _read(self, path: Any) -> Manifest | None:
        if not self._files.exists(path):
            return None
        try:
            stream = self._files.open(path)
        except Py4JError:
            if self._files.exists(path):
                raise
            return None  # another driver has deleted it meanwhile
        try:
            return Manifest.of_text(self._read_text(stream, "UTF-8"))
        finally:
            stream.close()

    def _beside(self) -> Any:
        name = f".{self._target.getName()}.{uuid.uuid4().hex}"
        return self._path(self._target.getParent(), name)

    def _sweep(self, stream_id: str) -> None:
        """Delete what killed runs left beside the target: directories that nobody finished."""
        parent = self._target.getParent()
        series = self._target.getName().rpartition("-")[0]
        if (place := (stream_id, f"{parent.toString()}/{series}")) in _swept:
            return
        _swept.add(place)
        if not self._files.exists(parent):
            return
        for status in self._files.listStatus(parent):
            match = _HIDDEN.fullmatch(status.getPath().getName())
            if match is not None and match["target"].rpartition("-")[0] == series:
                # Moved first: who is still at work there is to find nothing, never a half.
                moved = self._beside()
                if self._files.rename(status.getPath(), moved):
                    self._files.delete(moved, True)


def _taken(target: Any) -> str:
    return (
        f"saveAsTextFiles cannot write {target.toString()}: another driver writes the same batch "
        "there, and this one is not the newest to have begun; stop the older one"
    )


def _sync(directory: str) -> None:
    """Make the files of a directory, and the directory itself, survive a power loss."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                _sync_directory(entry.path)
    _sync_directory(directory)


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

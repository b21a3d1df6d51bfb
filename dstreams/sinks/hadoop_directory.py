"""A directory of a batch on a file system of Hadoop's: there as a whole, or not at all."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
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

    Where a rename is not one step, files are moved one by one, and ``_SUCCESS`` comes last. Until
    then ``.name.begun`` says whose the files are.

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
            if self._renames_at_once:
                self._write_text(self._path(hidden, SUCCESS), manifest)
                self._publish(hidden)
            else:
                self._publish_by_files(hidden, manifest)
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
                f"{SUCCESS}, so it is not the complete output of a batch; move it away"
            )
        self._files.delete(self._target, True)  # a killed run of this batch came so far
        return False

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

    def _publish_by_files(self, hidden: Any, manifest: Manifest) -> None:
        self._write_text(self._begun, manifest)
        # First, so that nobody takes for complete what is being deleted.
        self._files.delete(self._path(self._target, SUCCESS), False)
        self._files.delete(self._target, True)
        self._files.mkdirs(self._target)
        for status in self._files.listStatus(hidden):
            part = status.getPath()
            if part.getName() != SUCCESS:
                self._rename(part, self._path(self._target, part.getName()))
        self._write_text(self._path(self._target, SUCCESS), manifest)
        self._files.delete(self._begun, False)
        self._files.delete(hidden, True)

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
        stream = self._files.open(path)
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
                self._files.delete(status.getPath(), True)


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

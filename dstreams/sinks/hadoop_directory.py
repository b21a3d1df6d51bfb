"""Directories of batches on Hadoop file systems, each complete or absent."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from dstreams.sinks.committed_directory import SUCCESS, Manifest, Series
from dstreams.sinks.output_batch import OutputBatch

RENAME_AT_ONCE = {"file", "hdfs", "webhdfs", "viewfs", "ofs", "o3fs", "maprfs", "abfs", "abfss"}
"""Schemes whose directories are renamed in one step. Others copy file by file."""

# Swept once per process, not in each batch, for directories that a killed run left.
_swept: set[tuple[str, str]] = set()


def is_of_hadoop(spark: SparkContext, url: str) -> bool:
    """Return whether Hadoop, as configured in Spark, has a file system for *url*."""
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


def is_local(spark: SparkContext, url: str) -> bool:
    """Return whether *url* is a local or mounted directory."""
    if not is_of_hadoop(spark, url):
        return False
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(url)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return bool(files.makeQualified(path).toUri().getScheme() == "file")


def _save_lines(rdd: RDD[Any], directory: str) -> int:
    rdd.saveAsTextFile(directory)
    return rdd.getNumPartitions()


class HadoopDirectory:
    """The directory of one batch.

    ::

        hidden = .name.<stream>.<new>
        hidden/hidden/              the job writes here, then _SUCCESS identifies the batch
        fsync                       of all files, on a local disk
        hidden/hidden -> name       an atomic rename, which fails if name exists

    Programs that list the parent and read each directory with ``_SUCCESS`` find only complete
    directories, because incomplete ones are a level deeper.

    If the file system cannot rename directories atomically, files are moved one by one under names
    that are unique to the attempt, and ``_SUCCESS``, which lists them, is created last. Until then
    ``.name.begun`` identifies the driver that may write. If two drivers write the same batch, one
    of them fails::

        claim    check for _SUCCESS    delete existing files    move files    create _SUCCESS

    The driver checks its claim before each step from the third on, and after the last. A driver
    that has the claim and finds ``_SUCCESS`` is done. It deletes only files, or a ``_SUCCESS`` that
    lists missing files, of drivers that have lost their claim and fail.

    A complete output is never replaced, moved or deleted.
    """

    def __init__(self, spark: SparkContext, url: str, operation: str = "saveAsTextFiles") -> None:
        jvm: Any = spark._jvm
        self._operation = operation
        self._path = jvm.org.apache.hadoop.fs.Path
        self._read_text = jvm.org.apache.commons.io.IOUtils.toString
        path = self._path(url)
        self._files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        self._target = self._files.makeQualified(path)
        self._begun = self._path(self._target.getParent(), f".{self._target.getName()}.begun")
        scheme = self._target.toUri().getScheme()
        self._is_local = scheme == "file"
        self._renames_at_once = scheme in RENAME_AT_ONCE

    def write(
        self, batch: OutputBatch, rdd: RDD[Any], save: Callable[[RDD[Any], str], int] | None = None
    ) -> bool:
        """Write a batch, and return False if it was already written.

        *save* writes the files of an RDD to a new directory, and returns their number; by default
        the files contain lines. An OSError means that another driver writes the same batch.
        """
        parent = self._target.getParent()

        def read(name: str) -> Manifest | None:
            return self._read(self._path(self._path(parent, name), SUCCESS))

        self._sweep(batch)
        self._series(batch).require_left_out(batch, lambda: self._names_in(parent), read)
        if self._is_there(batch):
            if not self._renames_at_once:
                self._files.delete(self._begun, False)
            return False
        hidden = self._beside(batch)
        made = self._path(hidden, hidden.getName())
        try:
            count = (save or _save_lines)(rdd, made.toString())
            if self._renames_at_once:
                return self._publish(batch, made, count)
            return self._publish_by_files(batch, made, count)
        finally:
            with suppress(Py4JError):
                self._files.delete(hidden, True)

    def _is_there(self, batch: OutputBatch) -> bool:
        names = self._names_in(self._target)
        if SUCCESS in names:
            found = self._read(self._path(self._target, SUCCESS))
            if found is not None and set(found.files) <= set(names):
                found.require_of(batch, self._target.toString())
                return True
        if not self._files.exists(self._target):
            return False
        begun = self._read(self._begun)
        if self._renames_at_once or begun is None or begun.stream_id != batch.stream_id:
            raise FileExistsError(
                f"{self._operation} cannot write {self._target.toString()}: it exists and has no "
                f"{SUCCESS} that identifies a batch, so it is not the complete output of one; "
                f"remove the directory {self._target.toString()}, move it away, or write to "
                "another prefix"
            )
        return False  # left by a killed run, or by one that is running now

    def _publish(self, batch: OutputBatch, made: Any, count: int) -> bool:
        self._write_text(self._path(made, SUCCESS), Manifest.of(batch), replaces=True)
        self._parts_of(made, count)
        if self._is_local:
            _sync(made.toUri().getPath())
        try:
            self._rename(made, self._target)
            inside = self._path(self._target, made.getName())
            if not self._is_local and self._files.exists(inside):
                # The target was created in the meantime, and HDFS has moved into it.
                self._files.delete(inside, True)
                raise OSError(self._taken())
        except OSError:
            # Another driver was faster: its output stays.
            if self._is_there(batch):
                return False
            raise
        if self._is_local:
            _sync_directory(os.path.dirname(self._target.toUri().getPath()))
        return True

    def _publish_by_files(self, batch: OutputBatch, made: Any, count: int) -> bool:
        claim = replace(Manifest.of(batch), files=(made.getName(),))
        self._write_text(self._begun, claim, replaces=True)
        if self._is_there(batch):
            # Another driver was faster.
            self._files.delete(self._begun, False)
            return False
        # _SUCCESS first, so that readers do not take a directory that is being deleted as complete.
        for name in sorted(self._names_in(self._target), key=lambda name: name != SUCCESS):
            self._require_turn(claim)
            self._files.delete(self._path(self._target, name), True)
        moved: list[Any] = []
        try:
            self._move(self._parts_of(made, count), claim, moved)
        except Exception:
            for path in moved:
                self._files.delete(path, False)
            raise
        manifest = Manifest.of(batch, tuple(path.getName() for path in moved))
        self._write_text(self._path(self._target, SUCCESS), manifest, replaces=False)
        # A driver that has claimed the directory since may have deleted files before _SUCCESS.
        self._require_turn(claim)
        self._files.delete(self._begun, False)
        return True

    def _move(self, parts: list[Any], claim: Manifest, moved: list[Any]) -> None:
        """Move files into the target, each under a unique name."""
        self._files.mkdirs(self._target)
        for part in parts:
            attempt = part.getParent().getName()[-8:]
            path = self._path(self._target, f"{part.getName()}-{attempt}")
            self._require_turn(claim)
            moved.append(path)
            self._rename(part, path)
        self._require_turn(claim)
        if len(self._names_in(self._target)) != len(moved):
            raise OSError(self._taken())

    def _parts_of(self, made: Any, count: int) -> list[Any]:
        """Return the files, one per partition; raise OSError if another driver has swept them."""
        names = [name for name in self._names_in(made) if name != SUCCESS]
        if len(names) != count:
            raise OSError(self._taken())
        return [self._path(made, name) for name in names]

    def _taken(self) -> str:
        return (
            f"{self._operation} cannot write {self._target.toString()}: another driver has started "
            "to write the same batch after this one; stop the older driver"
        )

    def _require_turn(self, claim: Manifest) -> None:
        if self._read(self._begun) != claim:
            raise OSError(self._taken())

    def _names_in(self, directory: Any) -> list[str]:
        if not self._files.exists(directory):
            return []
        try:
            found = self._files.listStatus(directory)
        except Py4JError:
            if self._files.exists(directory):
                raise
            return []  # another driver has deleted it in the meantime
        return sorted(status.getPath().getName() for status in found)

    def _rename(self, source: Any, target: Any) -> None:
        if self._is_local and self._renames_at_once:
            # Hadoop would move into an existing directory; os.rename fails.
            os.rename(source.toUri().getPath(), target.toUri().getPath())
        elif self._files.exists(target) or not self._files.rename(source, target):
            raise OSError(
                f"{self._operation} cannot rename {source.toString()} to {target.toString()}; "
                "does another program write it?"
            )

    def _write_text(self, path: Any, manifest: Manifest, *, replaces: bool) -> None:
        out = self._files.create(path, replaces)
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
            return None  # another driver has deleted it in the meantime
        try:
            return Manifest.of_text(self._read_text(stream, "UTF-8"))
        finally:
            stream.close()

    def _beside(self, batch: OutputBatch) -> Any:
        name = f".{self._target.getName()}.{batch.stream_id}.{uuid.uuid4().hex}"  # noqa: TID251
        return self._path(self._target.getParent(), name)

    def _sweep(self, batch: OutputBatch) -> None:
        """Delete incomplete directories of killed runs of the stream from the parent."""
        parent = self._target.getParent()
        hidden = self._series(batch).hidden(batch.stream_id)
        if (place := (parent.toString(), hidden.pattern)) in _swept:
            return
        _swept.add(place)
        for name in self._names_in(parent):
            if hidden.fullmatch(name):
                # Moved first: a driver that still writes there must fail, not publish a part.
                moved = self._beside(batch)
                if self._files.rename(self._path(parent, name), moved):
                    self._files.delete(moved, True)

    def _series(self, batch: OutputBatch) -> Series:
        parent = self._target.getParent().toString()
        return Series(parent, self._target.getName(), batch.time_ms)


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

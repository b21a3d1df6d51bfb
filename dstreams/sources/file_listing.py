"""Files of a directory, their times and sizes, here or on any file system of Hadoop's.

A listing is not recursive, and leaves out what is no file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from checkpoint import INPUT_FILES
from dstreams.errors import InvalidStreamError, SourceError

logger = logging.getLogger(__name__)

_WILDCARDS = frozenset("*?[]{}\\")


class FileStamp(NamedTuple):
    """A file as a listing shows it.

    Args:
        path: path or URL.
        modified_ms: modification time.
        size_bytes: size.
    """

    path: str
    modified_ms: int
    size_bytes: int


def stamps_in(facts: Mapping[str, Any], key: str = INPUT_FILES) -> tuple[FileStamp, ...]:
    """Return the files that a plan, a begin record or a snapshot names."""
    return tuple(FileStamp(*one) for one in facts.get(key, ()))


class FileListing(Protocol):
    """A place where files appear."""

    def files(self) -> dict[str, FileStamp] | None:
        """List the files by path, None when there is no such directory.

        Raises:
            SourceError: the place is no directory, or cannot be listed.
        """
        ...

    def inside(self, name: str) -> FileListing | None:
        """Return the directory of that name in this one, None where this is a pattern."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a small file that was listed.

        Raises:
            FileNotFoundError: it is gone.
        """
        ...


def open_listing(directory: str, spark: SparkContext) -> FileListing:
    """Choose how to list *directory*: a path, a URL, or a pattern of Hadoop's for several.

    A path without a scheme is on the file system that Spark's configuration makes the default.
    """
    path = local_path(directory)
    has_scheme = ":" in directory.partition("/")[0]
    if path is None and not has_scheme and _is_local_by_default(spark):
        path = os.path.abspath(directory)
    if path is not None and (_WILDCARDS.isdisjoint(path) or os.path.isdir(path)):
        return LocalDirectory(path)
    return HadoopDirectories(directory, spark)


def has_wildcards(directory: str) -> bool:
    """Whether it may be a pattern, for several directories."""
    return not _WILDCARDS.isdisjoint(directory)


def before_wildcards(directory: str) -> str:
    """Return what all paths that a pattern stands for begin with."""
    return directory[: next((at for at, sign in enumerate(directory) if sign in _WILDCARDS), None)]


def local_path(directory: str) -> str | None:
    """Return the path in a ``file:`` URL, None for anything else.

    Raises:
        InvalidStreamError: the URL names another host, or is relative.
    """
    if not directory.startswith("file:"):
        return None
    path = directory.removeprefix("file:").removeprefix("//")
    if not path.startswith("/"):
        raise InvalidStreamError(
            f"directory {directory!r} of a file stream must be absolute, as in file:///path"
        )
    return path


def spark_path(path: str) -> str:
    r"""Write *path* so that ``SparkContext.textFile`` reads exactly that file.

    ``textFile`` splits at commas outside of braces and takes the rest for patterns, so a comma is
    written ``{\,}`` and each character of a pattern behind a backslash.
    """
    return "".join(
        r"{\,}" if letter == "," else f"\\{letter}" if letter in _WILDCARDS else letter
        for letter in path
    )


class LocalDirectory:
    """A directory of this machine, which the workers must see under the same path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def files(self) -> dict[str, FileStamp] | None:
        if ":" in self._path:
            raise SourceError(
                f"directory {self._path!r} has a colon in its path, which Hadoop's file systems "
                "cannot open; rename it"
            )
        try:
            with os.scandir(self._path) as entries:
                return {stamp.path: stamp for stamp in _local_files(entries)}
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise SourceError(_not_a_directory(self._path)) from error
        except OSError as error:
            raise SourceError(_cannot_list(self._path, error.strerror)) from error

    def inside(self, name: str) -> LocalDirectory:
        return LocalDirectory(os.path.join(self._path, name))

    def read(self, path: str) -> bytes:
        with open(path.removeprefix("file://"), "rb") as file:
            return file.read()


class HadoopDirectories:
    """The directories that match a pattern, on the file system that Spark finds for it.

    A hidden directory, whose name begins with a dot or an underscore, matches where the pattern
    spells that: to others it is one that somebody is still writing, or no data. The log names those
    that are left out, once. Each file costs a few calls into the JVM, so
    thousands of files in a directory cost a good part of a second in each batch.
    """

    def __init__(self, pattern: str, spark: SparkContext) -> None:
        self._pattern = pattern
        self._spark = spark
        self._left_out: set[str] = set()

    def files(self) -> dict[str, FileStamp] | None:
        try:
            return self._list()
        except Py4JJavaError as error:
            reason = error.java_exception.toString()
            raise SourceError(_cannot_list(self._pattern, reason)) from error

    def inside(self, name: str) -> HadoopDirectories | None:
        if not _WILDCARDS.isdisjoint(self._pattern):
            return None
        return HadoopDirectories(f"{self._pattern.rstrip('/')}/{name}", self._spark)

    def read(self, path: str) -> bytes:
        jvm: Any = self._spark._jvm
        file = jvm.org.apache.hadoop.fs.Path(path)
        files = file.getFileSystem(self._spark._jsc.hadoopConfiguration())
        try:
            stream = files.open(file)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.io.FileNotFoundException":
                raise
            raise FileNotFoundError(path) from error
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _list(self) -> dict[str, FileStamp] | None:
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self._pattern)
        files = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        found = list(files.globStatus(path) or ())
        if not _WILDCARDS.isdisjoint(self._pattern):
            found = self._visible([status for status in found if status.isDirectory()])
        if not found:
            return None
        if not all(status.isDirectory() for status in found):
            raise SourceError(_not_a_directory(self._pattern))
        stamps = (
            FileStamp(child.getPath().toString(), child.getModificationTime(), child.getLen())
            for status in found
            for child in files.listStatus(status.getPath())
            if child.isFile()
        )
        return {stamp.path: stamp for stamp in stamps}

    def _visible(self, directories: list[Any]) -> list[Any]:
        """Leave out hidden directories that the pattern does not spell, and say so."""
        spelled = re.split(r"[{,\[\\]", self._pattern.rstrip("/").rpartition("/")[2])
        hidden, visible = set(), []
        for status in directories:
            name = status.getPath().getName()
            is_spelled = any(part.startswith(name[0]) for part in spelled)
            if name[0] in "._" and not is_spelled:
                hidden.add(status.getPath().toString())
            else:
                visible.append(status)
        for path in sorted(hidden - self._left_out):
            # Spark reads them: a program that was written for it would miss their files.
            logger.warning(
                "left out the directory %s, which is hidden and matches %s; to have it, let the "
                "last part of the pattern begin as its name does",
                path,
                self._pattern,
            )
        self._left_out = hidden
        return visible


def _is_local_by_default(spark: SparkContext) -> bool:
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return str(default).startswith("file:")


def _local_files(entries: Iterator[os.DirEntry[str]]) -> Iterator[FileStamp]:
    for entry in entries:
        try:
            if entry.is_file():
                status = entry.stat()
                modified_ms = status.st_mtime_ns // 1_000_000
                yield FileStamp(f"file://{entry.path}", modified_ms, status.st_size)
        except OSError:
            # Deleted since it was listed, or a link to itself: no file to read.
            continue


def _not_a_directory(path: str) -> str:
    return f"{path!r} is not a directory; give the stream the directory that holds the files"


def _cannot_list(path: str, reason: Any) -> str:
    return (
        f"directory {path!r} cannot be listed: {reason}; "
        "a file stream needs permission to read it and to look into it"
    )

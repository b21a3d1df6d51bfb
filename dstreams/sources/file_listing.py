"""Listings of the files in a directory, local or on any file system of Hadoop."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from checkpoint import INPUT_FILES
from dstreams.errors import InvalidStreamError, SourceError

logger = logging.getLogger(__name__)

_WILDCARDS = frozenset("*?[]{}\\")


class FileStamp(NamedTuple):
    """A listed file: its path or URL, modification time and size."""

    path: str
    modified_ms: int
    size_bytes: int


def stamps_in(facts: Mapping[str, Any], key: str = INPUT_FILES) -> tuple[FileStamp, ...]:
    """Return the files that a plan, a begin record or a snapshot names."""
    return tuple(FileStamp(*one) for one in facts.get(key, ()))


class FileListing(Protocol):
    """A directory, or the directories that match a pattern."""

    def files(self) -> dict[str, FileStamp] | None:
        """Return the files by path, None if the directory does not exist.

        Raises:
            SourceError: it is not a directory, or cannot be listed.
        """
        ...

    def inside(self, name: str) -> FileListing | None:
        """Return a subdirectory, None if this is a pattern."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a small file that was listed.

        Raises:
            FileNotFoundError: the file was deleted.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file that was listed; raise OSError or Java's error if that fails."""
        ...

    def move(self, path: str, directory: str) -> None:
        """Move a file that was listed to its path below a directory on the same file system.

        Raises OSError or Java's error if that fails, and FileExistsError if the target exists.
        """
        ...


def open_listing(directory: str, spark: SparkContext, *, is_recursive: bool = False) -> FileListing:
    """Return the listing of a path, a URL, or a Hadoop pattern that matches several directories.

    A path without a scheme is on the default file system of Spark's configuration. *is_recursive*:
    with the files of all subdirectories that are not hidden.
    """
    path = local_path(directory)
    has_scheme = ":" in directory.partition("/")[0]
    if path is None and not has_scheme and _is_local_by_default(spark):
        path = os.path.abspath(directory)
    if path is not None and (_WILDCARDS.isdisjoint(path) or os.path.isdir(path)):
        return LocalDirectory(path, is_recursive=is_recursive)
    return HadoopDirectories(directory, spark, is_recursive=is_recursive)


def has_wildcards(directory: str) -> bool:
    """Return whether *directory* may be a pattern."""
    return not _WILDCARDS.isdisjoint(directory)


def before_wildcards(directory: str) -> str:
    """Return the prefix of all paths that match a pattern."""
    return directory[: next((at for at, sign in enumerate(directory) if sign in _WILDCARDS), None)]


def local_path(directory: str) -> str | None:
    """Return the path of a ``file:`` URL, None for anything else.

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

    ``textFile`` splits at commas outside of braces and expands patterns, so a comma is written
    ``{\,}`` and each wildcard gets a backslash.
    """
    return "".join(
        r"{\,}" if letter == "," else f"\\{letter}" if letter in _WILDCARDS else letter
        for letter in path
    )


class LocalDirectory:
    """A local directory, which the workers must see under the same path."""

    def __init__(self, path: str, *, is_recursive: bool = False) -> None:
        self._path = path
        self._is_recursive = is_recursive

    def files(self) -> dict[str, FileStamp] | None:
        if ":" in self._path:
            raise SourceError(
                f"directory {self._path!r} has a colon in its path, which Hadoop's file systems "
                "cannot open; rename it"
            )
        try:
            return {stamp.path: stamp for stamp in self._list(self._path)}
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

    def delete(self, path: str) -> None:
        os.unlink(path.removeprefix("file://"))

    def move(self, path: str, directory: str) -> None:
        source = path.removeprefix("file://")
        target = f"{(local_path(directory) or os.path.abspath(directory)).rstrip('/')}{source}"
        if os.path.exists(target):
            raise FileExistsError(f"{target} exists")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.move(source, target)

    def _list(self, directory: str) -> Iterator[FileStamp]:
        below = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if self._is_recursive and entry.name[0] not in "._" and entry.is_dir():
                    below.append(entry.path)
                    continue
                stamp = _local_file(entry)
                if stamp is not None:
                    yield stamp
        for path in below:
            with suppress(FileNotFoundError):  # deleted since the listing
                yield from self._list(path)


class HadoopDirectories:
    """The directories that match a pattern, on any file system of Hadoop.

    A hidden directory, whose name begins with a dot or an underscore, only matches if the pattern
    spells that character. Skipped directories are logged once. Each file costs a few calls into the
    JVM, so thousands of files cost a considerable part of a second in each batch.
    """

    def __init__(self, pattern: str, spark: SparkContext, *, is_recursive: bool = False) -> None:
        self._pattern = pattern
        self._spark = spark
        self._is_recursive = is_recursive
        self._skipped: set[str] = set()

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
        file, files = self._file(path)
        try:
            stream = files.open(file)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.io.FileNotFoundException":
                raise
            raise FileNotFoundError(path) from error
        try:
            jvm: Any = self._spark._jvm
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        file, files = self._file(path)
        files.delete(file, False)

    def move(self, path: str, directory: str) -> None:
        file, files = self._file(path)
        target, _ = self._file(f"{directory.rstrip('/')}{file.toUri().getPath()}")
        files.mkdirs(target.getParent())
        if files.exists(target):
            raise FileExistsError(f"{target.toString()} exists")
        if not files.rename(file, target):
            raise OSError(f"it could not be renamed to {target.toString()}")

    def _file(self, path: str) -> tuple[Any, Any]:
        """Return the path as Hadoop has it, and its file system."""
        jvm: Any = self._spark._jvm
        file = jvm.org.apache.hadoop.fs.Path(path)
        return file, file.getFileSystem(self._spark._jsc.hadoopConfiguration())

    def _list(self) -> dict[str, FileStamp] | None:
        path, files = self._file(self._pattern)
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
            for child in self._below(files, status.getPath())
        )
        return {stamp.path: stamp for stamp in stamps}

    def _below(self, files: Any, directory: Any) -> Iterator[Any]:
        for child in files.listStatus(directory):
            if child.isFile():
                yield child
            elif self._is_recursive and child.getPath().getName()[0] not in "._":
                yield from self._below(files, child.getPath())

    def _visible(self, directories: list[Any]) -> list[Any]:
        """Remove hidden directories that the pattern does not spell; log them."""
        spelled = re.split(r"[{,\[\\]", self._pattern.rstrip("/").rpartition("/")[2])
        hidden, visible = set(), []
        for status in directories:
            name = status.getPath().getName()
            is_spelled = any(part.startswith(name[0]) for part in spelled)
            if name[0] in "._" and not is_spelled:
                hidden.add(status.getPath().toString())
            else:
                visible.append(status)
        for path in sorted(hidden - self._skipped):
            # Spark reads them, so a program that was written for Spark would miss their files.
            logger.warning(
                "skipped the hidden directory %s, which matches %s; to read it, begin the last "
                "part of the pattern with the first character of its name",
                path,
                self._pattern,
            )
        self._skipped = hidden
        return visible


def _is_local_by_default(spark: SparkContext) -> bool:
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return str(default).startswith("file:")


def _local_file(entry: os.DirEntry[str]) -> FileStamp | None:
    try:
        if entry.is_file():
            status = entry.stat()
            modified_ms = status.st_mtime_ns // 1_000_000
            return FileStamp(f"file://{entry.path}", modified_ms, status.st_size)
    except OSError:
        pass  # deleted since the listing, or a link to itself
    return None


def _not_a_directory(path: str) -> str:
    return f"{path!r} is not a directory; give the stream the directory that holds the files"


def _cannot_list(path: str, reason: Any) -> str:
    return (
        f"directory {path!r} cannot be listed: {reason}; "
        "a file stream needs permission to read and to search it"
    )

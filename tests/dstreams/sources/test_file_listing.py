"""Listings of local directories and of Hadoop file systems."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_listing import (
    FileStamp,
    HadoopDirectories,
    LocalDirectory,
    local_path,
    open_listing,
    spark_path,
)

NAMES = sorted(["plain.txt", ".hidden", "_SUCCESS", "a.txt._COPYING_", "b.tmp", "with space"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, ns=(0, 1_234_567_890_123))
    (tmp_path / "inner").mkdir()
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    return tmp_path


def names(listed: dict[str, FileStamp] | None) -> list[str]:
    assert listed is not None
    return sorted(path.rpartition("/")[2] for path in listed)


def test_a_local_directory_lists_files_with_milliseconds_and_bytes(directory: Path) -> None:
    """No directories and no broken links."""
    listed = LocalDirectory(str(directory)).files()
    assert listed is not None
    assert names(listed) == NAMES
    path = f"file://{directory}/plain.txt"
    assert listed[path] == FileStamp(path, 1_234_567, len("plain.txt"))


def test_a_missing_local_directory_is_none(tmp_path: Path) -> None:
    """Missing is not empty: the directory may appear later."""
    assert LocalDirectory(str(tmp_path / "later")).files() is None
    assert LocalDirectory(str(tmp_path)).files() == {}


def test_a_file_instead_of_a_directory_is_refused(directory: Path) -> None:
    """The message says what to give instead."""
    with pytest.raises(SourceError, match=r"plain.txt' is not a directory; give the stream"):
        LocalDirectory(str(directory / "plain.txt")).files()


def test_a_directory_without_permission_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the path, the reason and what is needed."""

    def deny(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(
        SourceError, match=r"cannot be listed: Permission denied; .* needs"
    ) as refused:
        LocalDirectory(str(directory)).files()
    assert str(directory) in str(refused.value)


def test_a_local_directory_with_a_colon_is_refused(tmp_path: Path) -> None:
    """Spark could not open a single file in it."""
    with pytest.raises(SourceError, match="colon in its path"):
        LocalDirectory(str(tmp_path / "a:b")).files()


@pytest.mark.parametrize(
    ("url", "path"),
    [("file:/a b", "/a b"), ("file:///a%20#?", "/a%20#?"), ("/a", None), ("hdfs://host/a", None)],
)
def test_a_file_url_is_a_path_as_hadoop_reads_it(url: str, path: str | None) -> None:
    """Nothing is decoded: Hadoop's paths are not escaped URLs."""
    assert local_path(url) == path


@pytest.mark.parametrize("url", ["file:a", "file://host/a", "file:"])
def test_a_file_url_of_another_host_or_relative_is_refused(url: str) -> None:
    """It could only be misread."""
    with pytest.raises(InvalidStreamError, match="must be absolute, as in file:///path"):
        local_path(url)


def test_paths_are_written_so_that_nothing_is_a_pattern() -> None:
    """Commas, wildcards and backslashes are escaped, everything else stays."""
    assert spark_path("file:///a b/ü%#") == "file:///a b/ü%#"
    assert spark_path(r"/a,*?[]{}\z") == r"/a{\,}\*\?\[\]\{\}\\z"


def test_a_path_without_scheme_is_local_when_that_is_sparks_default(
    directory: Path, sc: SparkContext
) -> None:
    """Also a relative one, and one whose characters would be wildcards."""
    literal = directory / "[x]"
    literal.mkdir()
    (literal / "f.txt").write_text("")
    listing = open_listing(os.path.relpath(directory), sc)
    assert isinstance(listing, LocalDirectory)
    assert names(listing.files()) == NAMES
    assert names(open_listing(str(literal), sc).files()) == ["f.txt"]


def test_hadoop_lists_the_same_as_this_machine(directory: Path, sc: SparkContext) -> None:
    """Both kinds of listing agree on names, times and sizes."""
    local = LocalDirectory(str(directory)).files()
    hadoop = HadoopDirectories(f"file://{directory}", sc).files()
    assert local is not None
    assert hadoop is not None
    paths = {path.replace("file://", "file:"): stamp[1:] for path, stamp in local.items()}
    assert {path: stamp[1:] for path, stamp in hadoop.items()} == paths
    assert all(path == stamp.path for path, stamp in hadoop.items())


def test_a_pattern_lists_all_visible_directories_that_match(
    tmp_path: Path, sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Braces work as in Hadoop; matching files are ignored.

    Hidden directories match where the pattern spells that; others are named in the log, once.
    """
    caplog.set_level(logging.WARNING)
    for name in ["in-1", "in-2", "in-3", ".in-4", "_in-5"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("")
    (tmp_path / "in-file").write_text("")
    listing = open_listing(f"{tmp_path}/in-{{1,3}}", sc)
    assert names(listing.files()) == ["in-1.txt", "in-3.txt"]
    listing = open_listing(f"{tmp_path}/*", sc)
    assert names(listing.files()) == ["in-1.txt", "in-2.txt", "in-3.txt"]
    assert names(listing.files()) == ["in-1.txt", "in-2.txt", "in-3.txt"]
    told = [message.split(",")[0] for message in caplog.messages]
    assert told == [
        f"skipped the hidden directory file:{tmp_path}/{name}" for name in (".in-4", "_in-5")
    ]
    assert open_listing(f"{tmp_path}/nothing*", sc).files() is None
    for pattern in ("_*", "_in-5*/", "{no,_in}*", "[_]in-5"):
        assert names(open_listing(f"{tmp_path}/{pattern}", sc).files()) == ["_in-5.txt"]


def test_hadoop_refuses_what_cannot_be_listed(directory: Path, sc: SparkContext) -> None:
    """A file, a missing directory and an unknown file system are three different things."""
    with pytest.raises(SourceError, match="is not a directory"):
        HadoopDirectories(f"file://{directory}/plain.txt", sc).files()
    assert HadoopDirectories(f"file://{directory}/later", sc).files() is None
    for url in ["nowhere://x/y", "nowhere:/y"]:
        with pytest.raises(SourceError, match=rf"'{url}' cannot be listed: .*nowhere"):
            open_listing(url, sc).files()

"""Locations open the right kind of files; names stay below the root."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import LocalFiles, PrefixedFiles, StorageRefusedError, open_existing, open_files
from checkpoint.storage import files as files_module
from checkpoint.storage.files import (
    is_name,
    location,
    require_name,
    require_prefix,
    uid_part,
)
from checkpoint.storage.fsspec_files import FsspecFiles
from checkpoint.testing import check_files


@pytest.mark.parametrize(
    "form", ["{}", "{}/", "{}/.", "file:{}", "file://{}", "file://{}/", "file://localhost{}"]
)
def test_a_path_and_its_file_urls_are_one_place(tmp_path: Path, form: str) -> None:
    """All ways to write a directory open the same files."""
    path = tmp_path / "a b#c?d"
    files = open_files(form.format(path))
    assert files == LocalFiles(str(path))
    assert path.is_dir()


def test_path_objects_are_taken(tmp_path: Path) -> None:
    """A pathlib path is a location too."""
    assert open_files(tmp_path / "x") == LocalFiles(str(tmp_path / "x"))


def test_a_link_to_the_directory_is_the_directory(tmp_path: Path) -> None:
    """The root itself may be a symbolic link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    open_files(tmp_path / "link").create("a", [b"x"])
    assert open_files(tmp_path / "real").read("a") == b"x"


def test_other_urls_open_with_fsspec() -> None:
    """A URL that is no file is handed to fsspec."""
    files = open_files("memory://test-open-files/x")
    assert isinstance(files, FsspecFiles)
    assert files.url == "memory://test-open-files/x"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is empty"),
        ("file://host/path", "names the host 'host'"),
        ("file:relative", "no absolute path"),
        ("s3:/bucket/x", "write protocol://host/path"),
    ],
)
def test_a_location_that_means_nothing_is_a_value_error(url: str, said: str) -> None:
    """A mistyped location is not opened as a directory of that name."""
    with pytest.raises(ValueError, match=said):
        open_files(url)


def test_a_path_takes_no_options(tmp_path: Path) -> None:
    """Options that would be ignored are refused, without their values."""
    with pytest.raises(ValueError, match=r"no storage options, got \['key'\]"):
        open_files(tmp_path, key="secret")


def test_what_cannot_hold_a_checkpoint_is_refused_when_it_is_opened() -> None:
    """The driver learns it before any task runs."""
    with pytest.raises(StorageRefusedError, match="sftp is not known to create"):
        open_files("sftp://host/x")


def test_locations_are_for_people(tmp_path: Path) -> None:
    """A location is the URL and the name."""
    assert location(LocalFiles(str(tmp_path)), "a/b") == f"file://{tmp_path}/a/b"


def test_files_below_a_directory_are_files(tmp_path: Path) -> None:
    """They keep every promise, and are files of the whole under longer names."""
    numbers = itertools.count()

    def factory() -> PrefixedFiles:
        return PrefixedFiles(open_files(tmp_path / str(next(numbers))), "in/side")

    check_files(factory)
    below = factory()
    below.create("a", [b"x"])
    assert below.inner.list("") == ["in/side/a"]
    assert below.url == f"{below.inner.url}/in/side"


def test_what_is_opened_to_be_read_is_not_made(tmp_path: Path) -> None:
    """Nor is anything tried out there."""
    with pytest.raises(FileNotFoundError, match="missing is not a directory"):
        open_existing(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    assert open_existing(tmp_path) == LocalFiles(str(tmp_path))
    assert isinstance(open_existing("s3://bucket/none"), FsspecFiles)


GOOD = ["a", "state/counts/0001-p0.state", "A_b=c-d.e", "0", "_", "a" * 200]
BAD = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", ".a", "a/.b", "~", "-a"]
ODD = ["a b", "a\n", "\na", "a\x00", "a\\b", "C:a", "ü", "a*", "a" * 201, "a\u202eb"]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    """A good name is returned unchanged."""
    assert require_name(name) == name


@pytest.mark.parametrize("name", BAD + ODD)
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    """A name that is empty, absolute, leaves the root, is hidden or odd is refused."""
    assert not is_name(name)
    with pytest.raises(ValueError, match="must be parts joined by '/'"):
        require_name(name)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b"])
def test_prefixes_may_end_in_a_slash(prefix: str) -> None:
    """A prefix is a name, a directory, or nothing."""
    assert require_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "../", "a//", ".", "a/.", " "])
def test_bad_prefixes_are_refused(prefix: str) -> None:
    """A prefix that no name can have is an error, not an empty listing."""
    with pytest.raises(ValueError, match="prefix"):
        require_prefix(prefix)


UIDS = ["a", "A", "a.b", "a/b", "a-b", "..", "/", " ", "ä", "Ä", "emoji\N{BUG}", "x" * 300]


def test_uids_that_differ_have_parts_that_differ_also_in_lower_case() -> None:
    """Odd, long and upper-case uids get parts of their own, on case-insensitive disks too."""
    parts = [uid_part(uid) for uid in UIDS]
    assert len({part.lower() for part in parts}) == len(UIDS)
    assert all(is_name(part) and "/" not in part for part in parts)


@given(st.text(min_size=1), st.text(min_size=1))
def test_uid_parts_are_names_and_equal_only_for_equal_uids(one: str, other: str) -> None:
    """Any text is a uid, and no two share a part."""
    assert is_name(uid_part(one))
    assert len(uid_part(one)) <= 80
    assert (uid_part(one) == uid_part(other)) == (one == other)


def test_no_uid_can_take_the_part_of_another() -> None:
    """The part of an odd uid, used as a uid, gets another part."""
    part = uid_part("Counts")
    assert uid_part(part) != part


def test_examples() -> None:
    """The docstring's example is right."""
    assert doctest.testmod(files_module).failed == 0

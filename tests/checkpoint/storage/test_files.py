"""Locations open the right kind of files, and names stay below the root."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import (
    CorruptCheckpointError,
    LocalFiles,
    PrefixedFiles,
    StorageRefusedError,
    open_existing,
    open_files,
)
from checkpoint.errors import RESTORE, Damage
from checkpoint.storage import files as files_module
from checkpoint.storage.files import (
    ReadAhead,
    in_parallel,
    is_name,
    location,
    require_name,
    require_prefix,
    uid_part,
)
from checkpoint.storage.object_files import ObjectFiles
from checkpoint.testing import check_files
from tests.support.request_clock import counting_requests


@pytest.mark.parametrize(
    "form", ["{}", "{}/", "{}/.", "file:{}", "file://{}", "file://{}/", "file://localhost{}"]
)
def test_a_path_and_its_file_urls_are_one_place(tmp_path: Path, form: str) -> None:
    """All forms of a path open the same files."""
    path = tmp_path / "a b#c?d"
    files = open_files(form.format(path))
    assert files == LocalFiles(str(path))
    assert path.is_dir()


def test_path_objects_are_taken(tmp_path: Path) -> None:
    """A location may be a pathlib path."""
    assert open_files(tmp_path / "x") == LocalFiles(str(tmp_path / "x"))


def test_a_link_to_the_directory_is_the_directory(tmp_path: Path) -> None:
    """The root itself may be a symbolic link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    open_files(tmp_path / "link").create("a", [b"x"])
    assert open_files(tmp_path / "real").read("a") == b"x"


def test_urls_open_object_stores() -> None:
    """A URL that is not a file is that of an object store."""
    files = open_files("memory://test-open-files/x")
    assert isinstance(files, ObjectFiles)
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
    """A mistyped location is not opened as a directory."""
    with pytest.raises(ValueError, match=said):
        open_files(url)


def test_a_path_takes_no_options(tmp_path: Path) -> None:
    """Options of a path are rejected, without showing their values."""
    with pytest.raises(ValueError, match=r"no storage options, got \['key'\]"):
        open_files(tmp_path, key="secret")


def test_what_cannot_hold_a_checkpoint_is_refused_when_it_is_opened() -> None:
    """The error is raised on the driver, before any task runs."""
    with pytest.raises(StorageRefusedError, match="sftp is not known to create"):
        open_files("sftp://host/x")


def test_locations_are_for_people(tmp_path: Path) -> None:
    """A location is the URL and the name."""
    assert location(LocalFiles(str(tmp_path)), "a/b") == f"file://{tmp_path}/a/b"


def test_files_below_a_directory_are_files(tmp_path: Path) -> None:
    """They fulfil the contract of Files, under longer names of the whole."""
    numbers = itertools.count()

    def factory() -> PrefixedFiles:
        return PrefixedFiles(open_files(tmp_path / str(next(numbers))), "in/side")

    check_files(factory)
    below = factory()
    below.create("a", [b"x"])
    assert below.inner.list("") == ["in/side/a"]
    assert below.url == f"{below.inner.url}/in/side"


def test_what_is_opened_to_be_read_is_not_made(tmp_path: Path) -> None:
    """Opening for reading creates and probes nothing."""
    with pytest.raises(FileNotFoundError, match="missing is not a directory"):
        open_existing(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    assert open_existing(tmp_path) == LocalFiles(str(tmp_path))
    assert isinstance(open_existing("s3://bucket/none"), ObjectFiles)


GOOD = ["a", "state/counts/0001-p0.state", "A_b=c-d.e", "0", "_", "a" * 200]
BAD = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", ".a", "a/.b", "~", "-a"]
ODD = ["a b", "a\n", "\na", "a\x00", "a\\b", "C:a", "ü", "a*", "a" * 201, "a\u202eb"]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    """A valid name is returned unchanged."""
    assert require_name(name) == name


@pytest.mark.parametrize("name", BAD + ODD)
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    """Empty, absolute, hidden and other invalid names are rejected with the rule."""
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
    """Odd, long and upper-case uids get different parts, also on case-insensitive disks."""
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
    """The example of the docstring is correct."""
    assert doctest.testmod(files_module).failed == 0


@pytest.mark.parametrize(("at_once", "in_a_row"), [(1, 10), (4, 3), (10, 1), (64, 1)])
def test_many_requests_at_a_time(tmp_path: Path, at_once: int, in_a_row: int) -> None:
    """As many as the files allow, with results in order."""
    files = LocalFiles(str(tmp_path))
    for number in range(10):
        files.create(f"file{number}", [b"%d" % number])
    with counting_requests(at_once) as clock:
        names = [f"file{number}" for number in range(10)]
        assert in_parallel(files, files.read, names) == [b"%d" % number for number in range(10)]
        assert clock.now == in_a_row


def test_the_first_error_of_many_requests(tmp_path: Path) -> None:
    """It is raised when all requests have ended."""
    files = LocalFiles(str(tmp_path))
    files.create("a", [b"x"])
    with counting_requests(3), pytest.raises(FileNotFoundError):
        in_parallel(files, files.read, ["a", "b", "c"])


def test_files_that_are_read_ahead(tmp_path: Path) -> None:
    """Each is read once, and lists are those of the last look, until they are forgotten."""
    files = LocalFiles(str(tmp_path))
    for name in ("a/1", "a/2", "b/1", "c/1"):
        files.create(name, [name.encode()])
    ahead = ReadAhead(files)
    with counting_requests(9) as clock:
        ahead.look(["a/"], "b/", listed=["c/"])
        assert clock.now == 3
        files.create("a/3", [b"later"])
        files.delete("a/1")
        since = clock.now
        assert ahead.list("a/") == ["a/1", "a/2"]
        assert ahead.read("a/1") == b"a/1"
        assert ahead.list("c/") == ["c/1"]
        assert clock.now == since
        assert ahead.read("c/1") == b"c/1"
        assert clock.now == since + 1
        ahead.look(["a/"], "b/", listed=["c/"])
        assert ahead.list("a/") == ["a/2", "a/3"]
        assert ahead.read("a/3") == b"later"
        ahead.forget()
        files.delete("a/3")
        assert ahead.list("a/") == ["a/2"]
        with pytest.raises(FileNotFoundError):
            ahead.read("a/3")


def test_a_file_that_is_deleted_during_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directories are listed again: what is listed can be read."""
    files = LocalFiles(str(tmp_path))
    for name in ("a/1", "a/2"):
        files.create(name, [b"x"])
    read = LocalFiles.read

    def read_and_delete(self: LocalFiles, name: str) -> bytes:
        files.delete("a/1")
        return read(self, name)

    monkeypatch.setattr(LocalFiles, "read", read_and_delete)
    ahead = ReadAhead(files)
    with counting_requests(2):
        ahead.look(["a/"], "b/", listed=[])
        assert ahead.list("a/") == ["a/2"]


def test_a_damaged_file_is_an_error_of_the_read_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look does not report it: nothing may need that file."""
    files = LocalFiles(str(tmp_path))
    files.create("a/1", [b"x"])

    def damaged(*arguments: object) -> bytes:
        raise CorruptCheckpointError("a/1", "is damaged", "x", RESTORE, Damage.DAMAGED)

    monkeypatch.setattr(LocalFiles, "read", damaged)
    monkeypatch.setattr(LocalFiles, "read_chunks", damaged)
    ahead = ReadAhead(files)
    with counting_requests(2):
        ahead.look(["a/"], "b/", listed=[])
        with pytest.raises(CorruptCheckpointError):
            ahead.read("a/1")

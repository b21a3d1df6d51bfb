"""Trust: files that others can write are not unpickled, and written files are private."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import (
    LocalFiles,
    SignedFiles,
    SigningKey,
    StorageRefusedError,
    open_files,
    require_trusted,
)
from checkpoint.errors import UntrustedFileError
from tests.support.stream_model import Driver, World

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Driver(open_files(tmp_path / "stream"), World()).run(4000)
    return tmp_path / "stream"


@pytest.mark.usefixtures("no_umask")
def test_all_that_is_written_is_private(tmp_path: Path) -> None:
    """Directories are 0700 and files 0600, whatever the umask."""
    Driver(open_files(tmp_path / "new" / "stream"), World()).run(4000)
    modes = {
        stat.S_IMODE(path.stat().st_mode): path.is_dir()
        for path in (tmp_path / "new", *(tmp_path / "new").rglob("*"))
    }
    assert modes == {0o700: True, 0o600: False}


def test_what_only_the_owner_can_write_is_trusted(root: Path) -> None:
    """Files written by the package are trusted."""
    require_trusted(open_files(root))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o720])
@pytest.mark.parametrize("place", [".", "graph", "graph/0000000000000000-e1.graph", ".."])
def test_what_others_can_write_is_refused(root: Path, place: str, mode: int) -> None:
    """A file, its directory, or one above in which it could be replaced."""
    path = root / place
    path.chmod(mode)
    try:
        with pytest.raises(UntrustedFileError, match=f"can be written by others .mode {mode:04o}"):
            require_trusted(open_files(root), "graph/")
        require_trusted(open_files(root), "graph/", allow_writable=True)
    finally:
        path.chmod(0o700)


def test_the_environment_can_allow_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable named in the error allows it, only with the value 1."""
    root.chmod(0o777)
    for value in ("", "0", "yes"):
        monkeypatch.setenv("CHECKPOINT_ALLOW_WRITABLE", value)
        with pytest.raises(UntrustedFileError, match="set CHECKPOINT_ALLOW_WRITABLE=1"):
            require_trusted(open_files(root))
    monkeypatch.setenv("CHECKPOINT_ALLOW_WRITABLE", "1")
    require_trusted(open_files(root))


def test_other_files_than_those_asked_for_do_not_matter(root: Path) -> None:
    """A directory without pickles may be shared."""
    (root / "commits").chmod(0o777)
    require_trusted(open_files(root), "graph/")
    with pytest.raises(UntrustedFileError, match="commits"):
        require_trusted(open_files(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_others_is_refused(root: Path) -> None:
    """The owner of a file can write it at any time."""
    os.chown(root / "graph", 12345, -1)
    with pytest.raises(UntrustedFileError, match="graph belongs to user id 12345"):
        require_trusted(open_files(root))


def test_a_link_to_what_others_can_write_is_refused(root: Path, tmp_path: Path) -> None:
    """The target of a path counts, not its name."""
    link = tmp_path / "link"
    link.symlink_to(root)
    require_trusted(open_files(link))
    root.chmod(0o777)
    with pytest.raises(UntrustedFileError, match=f"^{root} can be written by others"):
        require_trusted(open_files(link))


def test_each_directory_on_the_way_over_links_is_looked_at(root: Path, tmp_path: Path) -> None:
    """Directories above, behind and between links are checked."""
    ways, far = tmp_path / "ways", tmp_path / "far"
    ways.mkdir()
    far.mkdir()
    (ways / "first").symlink_to("../far/../far/second")
    (far / "second").symlink_to(root.parent)
    path = ways / "first" / "stream"
    require_trusted(open_files(path))
    for directory in (ways, far, root.parent):
        directory.chmod(0o777)
        with pytest.raises(UntrustedFileError, match=f"^{directory} can be written by others"):
            require_trusted(open_files(path))
        directory.chmod(0o1777)
        require_trusted(open_files(path))
        directory.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_a_link_of_another_user_is_refused(root: Path, tmp_path: Path) -> None:
    """Its owner can change the target, also in a directory with the sticky bit."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(root.parent)
    require_trusted(open_files(shared / "link" / "stream"))
    os.lchown(shared / "link", 12345, -1)
    said = "link is a symbolic link of user id 12345.* give the path it leads to"
    with pytest.raises(UntrustedFileError, match=said):
        require_trusted(open_files(shared / "link" / "stream"))


@pytest.mark.parametrize("name", ["graph", "graph/0000000000000000-e1.graph"])
def test_a_link_below_the_directory_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    """The package creates no links."""
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedFileError, match=f"{name} is a symbolic link; expected a file"):
        require_trusted(open_files(root), "graph/")
    require_trusted(open_files(root), "commits/")


def test_a_path_that_leads_in_circles_is_refused(tmp_path: Path) -> None:
    """A cycle of links is an error."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageRefusedError, match="more than 40 symbolic links"):
        require_trusted(LocalFiles(str(tmp_path / "a")))


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    """A missing directory is trusted."""
    require_trusted(LocalFiles(str(tmp_path / "none" / "stream")))


def test_a_file_is_looked_at_again_when_it_is_opened(root: Path) -> None:
    """A file may have been replaced since; files that are not unpickled are not checked."""
    name = "graph/0000000000000000-e1.graph"
    files = open_files(root)
    trusted = require_trusted(files)
    assert trusted.read(name) == files.read(name)
    (root / name).chmod(0o666)
    for read in (trusted.read, lambda name: next(trusted.read_chunks(name, 10))):
        with pytest.raises(UntrustedFileError, match=r"graph can be written by others .mode 0666"):
            read(name)
    assert files.read(name)


def test_a_directory_above_may_be_shared_with_the_sticky_bit(root: Path) -> None:
    """In such a directory, as /tmp, others cannot replace this one."""
    root.parent.chmod(0o1777)
    require_trusted(open_files(root))
    root.parent.chmod(0o700)
    root.chmod(0o1777)
    with pytest.raises(UntrustedFileError):
        require_trusted(open_files(root))


def test_signed_files_and_object_stores_are_trusted(root: Path) -> None:
    """Signatures or the access control of the store guard them."""
    root.chmod(0o777)
    require_trusted(SignedFiles(open_files(root), SigningKey(variable="CHECKPOINT_KEY")))
    require_trusted(open_files("memory://shared"))

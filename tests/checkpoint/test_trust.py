"""Trust: what others can write is not unpickled, and what is written others cannot read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import SignedFiles, SigningKey, open_files, require_trusted
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
    """Directories 0700 and files 0600, also under a umask that would allow everything."""
    Driver(open_files(tmp_path / "new" / "stream"), World()).run(4000)
    modes = {
        stat.S_IMODE(path.stat().st_mode): path.is_dir()
        for path in (tmp_path / "new", *(tmp_path / "new").rglob("*"))
    }
    assert modes == {0o700: True, 0o600: False}


def test_what_only_the_owner_can_write_is_trusted(root: Path) -> None:
    """As it is written by the package itself."""
    require_trusted(open_files(root))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o720])
@pytest.mark.parametrize("place", [".", "graph", "graph/0000000000000000-e1.graph", ".."])
def test_what_others_can_write_is_refused(root: Path, place: str, mode: int) -> None:
    """The file, its directory, or one above it in which it could be replaced."""
    path = root / place
    path.chmod(mode)
    try:
        with pytest.raises(UntrustedFileError, match=f"can be written by others .mode {mode:04o}"):
            require_trusted(open_files(root), "graph/")
        require_trusted(open_files(root), "graph/", allow_writable=True)
    finally:
        path.chmod(0o700)


def test_the_environment_can_allow_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable that the error names; only by 1."""
    root.chmod(0o777)
    for value in ("", "0", "yes"):
        monkeypatch.setenv("CHECKPOINT_ALLOW_WRITABLE", value)
        with pytest.raises(UntrustedFileError, match="set CHECKPOINT_ALLOW_WRITABLE=1"):
            require_trusted(open_files(root))
    monkeypatch.setenv("CHECKPOINT_ALLOW_WRITABLE", "1")
    require_trusted(open_files(root))


def test_other_files_than_those_asked_for_do_not_matter(root: Path) -> None:
    """A directory that holds nothing to unpickle may be shared."""
    (root / "commits").chmod(0o777)
    require_trusted(open_files(root), "graph/")
    with pytest.raises(UntrustedFileError, match="commits"):
        require_trusted(open_files(root))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_others_is_refused(root: Path) -> None:
    """Its owner can write it whenever he likes."""
    os.chown(root / "graph", 12345, -1)
    with pytest.raises(UntrustedFileError, match="graph belongs to user id 12345"):
        require_trusted(open_files(root))


def test_a_directory_above_may_be_shared_with_the_sticky_bit(root: Path) -> None:
    """As /tmp is: others can add files there, and not replace this one."""
    root.parent.chmod(0o1777)
    require_trusted(open_files(root))
    root.parent.chmod(0o700)
    root.chmod(0o1777)
    with pytest.raises(UntrustedFileError):
        require_trusted(open_files(root))


def test_signed_files_and_object_stores_are_trusted(root: Path) -> None:
    """By their signatures, and by the access control of the store."""
    root.chmod(0o777)
    require_trusted(SignedFiles(open_files(root), SigningKey(variable="CHECKPOINT_KEY")))
    require_trusted(open_files("memory://shared"))

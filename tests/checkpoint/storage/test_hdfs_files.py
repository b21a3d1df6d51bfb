"""Files on a real HDFS: whole, created once, and durable whatever fails."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    AlreadyExistsError,
    Files,
    StorageRefusedError,
    StorageUncertainError,
    UntrustedFileError,
    open_existing,
    open_files,
    require_trusted,
)
from checkpoint.storage import hdfs_files
from checkpoint.storage.hdfs_files import HdfsFiles
from checkpoint.testing import check_files
from tests.support.hdfs import Hdfs
from tests.support.waiting import wait_for

pytestmark = pytest.mark.deep

WRITERS, NAMES = 4, 25


@pytest.fixture
def files(hdfs: Hdfs) -> Files:
    """Files in a directory of this test alone."""
    return open_files(hdfs.new_url())


def client_of(files: Files) -> Any:
    assert isinstance(files, HdfsFiles)
    return files._client()


def hidden_names(files: Files) -> list[str]:
    """Return the names of temporary files."""
    assert isinstance(files, HdfsFiles)
    return files.temporary()


def test_keeps_the_promises_of_files(hdfs: Hdfs) -> None:
    """Names, whole files, one winner of a race, listings: as on a local disk."""
    check_files(lambda: open_files(hdfs.new_url()))


def test_a_file_is_created_once(files: Files) -> None:
    """The second create changes nothing, and leaves no temporary file."""
    assert files.create("a/b", [b"one", memoryview(b"two")]) == 6
    with pytest.raises(AlreadyExistsError, match=r"hdfs://.*/a/b exists already"):
        files.create("a/b", [b"three"])
    assert files.read("a/b") == b"onetwo"
    assert list(files.read_chunks("a/b", 4)) == [b"onet", b"wo"]
    assert files.list("") == ["a/b"]
    assert files.directories() == ["a"]
    assert hidden_names(files) == []


def test_a_large_file_is_streamed(files: Files) -> None:
    """A file beyond what is kept in memory arrives whole."""
    chunks = [bytes([number]) * (1 << 20) for number in range(20)]
    assert files.create("large", iter(chunks)) == 20 << 20
    assert files.read("large") == b"".join(chunks)


def test_one_of_racing_writers_wins_each_name(files: Files) -> None:
    """The NameNode lets one rename through."""

    def create(writer: int) -> list[str]:
        won = []
        for number in range(NAMES):
            try:
                files.create(f"race/{number}", [b"%d" % writer])
            except AlreadyExistsError:
                continue
            won.append(f"race/{number}")
        return won

    with ThreadPoolExecutor(WRITERS) as threads:
        won = list(threads.map(create, range(WRITERS)))
    assert sorted(chain.from_iterable(won)) == files.list("race/")
    for writer, names in enumerate(won):
        assert {files.read(name) for name in names} <= {b"%d" % writer}


def test_replace_changes_the_whole_file(files: Files) -> None:
    """Signing replaces a file atomically."""
    files.create("a", [b"old"])
    files.replace("a", [b"new", b"er"])
    assert files.read("a") == b"newer"


def test_only_the_owner_can_read(hdfs: Hdfs, files: Files) -> None:
    """The root and the files are private, also in directories that a create made."""
    files.create("a/b", [b"x"])
    client = client_of(files)
    root = files.url.removeprefix(hdfs.uri)
    assert client.get_file_info(root).permission == 0o700
    assert client.get_file_info(f"{root}/a/b").permission == 0o600


def _create_in_child(url: str, results: Any) -> None:
    results.send(HdfsFiles(url).create("child", [b"x"]))


def test_a_forked_child_has_a_client_of_its_own(files: Files) -> None:
    """A client from before the fork would hang."""
    files.create("parent", [b"x"])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_create_in_child, args=(files.url, theirs), daemon=True)
    child.start()
    assert ours.poll(300), "the child did not answer"
    assert ours.recv() == 1
    child.join(300)
    assert files.list("") == ["child", "parent"]


def test_files_are_sent_to_workers(files: Files) -> None:
    """They pickle as a URL and options."""
    files.create("a", [b"x"])
    assert pickle.loads(pickle.dumps(files)).read("a") == b"x"


class LostAnswer:
    """A client that loses the answer to a rename, before or after it happened."""

    def __init__(self, client: Any, *, happened: bool) -> None:
        self._client = client
        self._happened = happened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        if self._happened:
            self._client.rename(source, target, overwrite)
        raise OSError("connection reset")


def losing(files: Files, monkeypatch: pytest.MonkeyPatch, *, happened: bool) -> None:
    client = LostAnswer(client_of(files), happened=happened)
    use_client(client, monkeypatch)


def use_client(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in hdfs_files._clients:
        monkeypatch.setitem(hdfs_files._clients, key, client)


def test_a_lost_answer_to_a_rename_that_happened(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content shows that the file is this one."""
    losing(files, monkeypatch, happened=True)
    assert files.create("a", [b"mine"]) == 4
    assert files.read("a") == b"mine"


def test_a_lost_answer_to_a_rename_that_did_not_happen(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file is deleted, so the rename never will happen."""
    losing(files, monkeypatch, happened=False)
    with pytest.raises(StorageRefusedError, match=r"cannot create .*/a: connection reset"):
        files.create("a", [b"mine"])
    assert files.list("") == []
    assert hidden_names(files) == []


def test_a_lost_answer_and_another_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another writer is not taken for this one."""
    files.create("a", [b"theirs"])
    client = client_of(files)

    class Swept(LostAnswer):
        def rename(self, source: str, target: str, overwrite: bool) -> None:
            client.delete(source, False)
            raise OSError("connection reset")

    use_client(Swept(client, happened=False), monkeypatch)
    with pytest.raises(AlreadyExistsError, match="exists already"):
        files.create("a", [b"mine"])


def test_what_became_of_a_rename_is_not_known(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If HDFS does not answer afterwards either, the create is uncertain."""

    class Down(LostAnswer):
        def delete(self, path: str, recursive: bool) -> bool:
            raise OSError("connection refused")

    down = Down(client_of(files), happened=True)
    use_client(down, monkeypatch)
    with pytest.raises(StorageUncertainError, match="connection reset"):
        files.create("a", [b"mine"])


def test_safe_mode_refuses_and_names_the_remedy(hdfs: Hdfs, files: Files) -> None:
    """Reads work, creates fail at once, and work again afterwards."""
    files.create("before", [b"x"])
    hdfs.run("safe-mode on")
    try:
        assert files.read("before") == b"x"
        with pytest.raises(StorageRefusedError, match="safe mode: wait, or run hdfs dfsadmin"):
            files.create("during", [b"x"])
    finally:
        hdfs.run("safe-mode off")
    assert files.create("during", [b"x"]) == 1


def test_a_full_quota_is_named(hdfs: Hdfs, files: Files) -> None:
    """A directory over its quota takes no file; the error says so, and nothing is left."""
    root = files.url.removeprefix(hdfs.uri)
    hdfs.run(f"quota {root} 4096")
    with pytest.raises(StorageRefusedError, match="raise the quota"):
        files.create("a", [b"x" * 10_000])
    assert files.list("") == []


def test_a_data_node_that_stops(hdfs: Hdfs, files: Files) -> None:
    """Creates succeed with the others, and all files can be read."""
    files.create("before", [b"x" * 10_000])
    hdfs.run("stop-data-node")
    try:
        wait_for(lambda: _is_created(files, "during"), 120)
        assert files.read("before") == b"x" * 10_000
    finally:
        hdfs.run("start-data-node")
    assert files.read("during") == b"x"


def _is_created(files: Files, name: str) -> bool:
    try:
        files.create(name, [b"x"])
    except AlreadyExistsError:
        return True
    except StorageRefusedError:
        return False
    return True


def test_the_name_node_restarts(hdfs: Hdfs, files: Files) -> None:
    """What was created is there, and the next create works."""
    files.create("before", [b"x"])
    hdfs.run("restart-name-node")
    assert files.create("after", [b"y"]) == 1
    assert {name: files.read(name) for name in files.list("")} == {"before": b"x", "after": b"y"}


def test_permissions_are_named(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that another user owns is refused, with what to do."""
    url = hdfs.new_url()
    open_files(url)
    hdfs_files._clients.clear()
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    try:
        with pytest.raises(StorageRefusedError, match=r"give the user .* the permission"):
            open_files(url)
    finally:
        hdfs_files._clients.clear()


def test_own_files_are_trusted(files: Files) -> None:
    """Files and directories that only this user can write are read."""
    files.create("graph/a", [b"x"])
    assert require_trusted(files).read("graph/a") == b"x"


@pytest.mark.parametrize("path", ["", "/graph", "/graph/a"])
def test_what_others_can_write_is_not_trusted(hdfs: Hdfs, files: Files, path: str) -> None:
    """The error names the file or directory, its mode and the command that fixes it."""
    files.create("graph/a", [b"x"])
    files.create("other/b", [b"x"])
    root = files.url.removeprefix(hdfs.uri)
    client_of(files).set_permission(f"{root}{path}", 0o722)
    pattern = rf"{files.url}{path} can be written by others \(mode 0722\).*hdfs dfs -chmod go-w"
    with pytest.raises(UntrustedFileError, match=pattern):
        require_trusted(files, "graph/")
    if path:
        assert require_trusted(files, "other/").read("other/b") == b"x"


def test_files_of_another_user_are_not_trusted(hdfs: Hdfs, files: Files) -> None:
    """Unless it is the superuser, who may do anything."""
    files.create("graph/a", [b"x"])
    root = files.url.removeprefix(hdfs.uri)
    client_of(files).set_owner(f"{root}/graph/a", "somebody")
    with pytest.raises(UntrustedFileError, match="belongs to the user somebody of HDFS"):
        require_trusted(files, "graph/")


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NameNode that is not there is an error with its address."""
    monkeypatch.setattr(hdfs_files, "_ANSWER_S", 1)
    with pytest.raises(StorageRefusedError, match=r"hdfs://127\.0\.0\.1:1/a: .*check HDFS"):
        open_files("hdfs://127.0.0.1:1/a")


def test_without_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.setattr(hdfs_files, "_clients", {})
    with pytest.raises(StorageRefusedError, match=r"pip install 'dstreams\[hdfs\]'"):
        open_files("hdfs://127.0.0.1:1/a")


@pytest.mark.parametrize("url", ["hdfs://host:1", "hdfs://host:1/", "hdfs:///"])
def test_the_root_is_not_a_checkpoint(url: str) -> None:
    """A URL without a directory is refused."""
    with pytest.raises(ValueError, match="names no directory"):
        open_files(url)


def test_existing_files_are_only_read(hdfs: Hdfs) -> None:
    """Opening for reading creates nothing."""
    files = open_existing(hdfs.new_url())
    assert files.list("") == []
    assert not files.exists("a")
    with pytest.raises(FileNotFoundError):
        files.read("a")


def test_a_writer_that_was_killed_leaves_no_file(files: Files, tmp_path: Path) -> None:
    """Only a hidden file remains, the name is free, and gc deletes the file."""
    child = os.fork()
    if child == 0:

        def chunks() -> Iterator[bytes]:
            yield b"x" * (17 << 20)
            os._exit(1)

        HdfsFiles(files.url).create("a", chunks())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert files.list("") == []
    assert files.create("a", [b"y"]) == 1
    (hidden,) = hidden_names(files)
    for _ in range(2):  # another gc may be faster
        files.delete_temporary(hidden)
    assert hidden_names(files) == []
    assert files.list("") == ["a"]

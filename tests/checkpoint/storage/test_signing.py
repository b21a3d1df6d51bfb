"""Signing: changed, forged and moved files are rejected, and the key is never written."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import traceback
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    CorruptCheckpointError,
    DriverProcess,
    GraphSnapshot,
    LocalFiles,
    SignedFiles,
    SigningKey,
    StorageRefusedError,
    open_files,
    read_newest_graph,
    take_over,
    write_graph,
)
from checkpoint.cli.verify import verify_stream
from checkpoint.errors import UntrustedFileError
from checkpoint.storage.trust import require_private_key, signing_facts
from checkpoint.testing import check_files
from tests.support.stream_model import Driver, World, require_right

pytestmark = pytest.mark.usefixtures("no_sync")

KEY = "a key of more than sixteen bytes"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> SigningKey:
    monkeypatch.setenv("CHECKPOINT_KEY", KEY)
    return SigningKey(variable="CHECKPOINT_KEY")


@pytest.fixture
def files(tmp_path: Path, key: SigningKey) -> SignedFiles:
    return SignedFiles(LocalFiles(str(tmp_path)), key)


def test_signed_files_are_files(tmp_path: Path, key: SigningKey) -> None:
    """Signed files fulfil the contract of Files."""
    numbers = itertools.count()

    def factory() -> SignedFiles:
        inner = LocalFiles(str(tmp_path / str(next(numbers))))
        inner.make_root()
        return SignedFiles(inner, key)

    check_files(factory)


def test_large_files_are_read_in_pieces(files: SignedFiles) -> None:
    """Files of several segments are read in chunks of any size."""
    content = bytes(range(256)) * 12_000
    parts = [content[at : at + 70_001] for at in range(0, len(content), 70_001)]
    assert files.create("a/big", parts) == len(content)
    assert files.read("a/big") == content
    assert b"".join(files.read_chunks("a/big", 1000)) == content


def test_a_stream_runs_on_signed_files(tmp_path: Path, key: SigningKey) -> None:
    """A stream needs only the key in the environment; without it nothing is read."""
    world = World()
    Driver(open_files(tmp_path), world).run(4000)
    driver = Driver(open_files(tmp_path), world)
    driver.run(7000)
    require_right(world, driver)
    with pytest.raises(
        UntrustedFileError, match=r"\.takeover is signed, and there is no key.*KEY_FILE"
    ):
        Driver(LocalFiles(str(tmp_path)), world)


def test_the_key_is_in_no_file_and_in_no_pickle(tmp_path: Path, files: SignedFiles) -> None:
    """Only the location of the key is sent to workers, and only its id is shown."""
    files.create("a", [b"content"])
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    sent = pickle.dumps(files)
    assert KEY.encode() not in written + sent + str(signing_facts(files)).encode()
    assert pickle.loads(sent).read("a") == b"content"
    assert signing_facts(files)["signed"] == "yes"
    assert signing_facts(files.inner) == {"signed": "no"}


def _json_of(text: str) -> bytes:
    return json.dumps({"conf": text}).encode()


@pytest.mark.parametrize("secret", [KEY, 'key with "quotes", \\ and \u00fcmlaut'])
@pytest.mark.parametrize("made", [str.encode, pickle.dumps, _json_of])
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_what_holds_the_key_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, made: Any, step: int
) -> None:
    """Content with the key is rejected, however it is split; the error omits the key."""
    monkeypatch.setenv("CHECKPOINT_KEY", secret)
    files = open_files(tmp_path)
    content = b"x" * 100 + made(secret) + b"x"
    with pytest.raises(StorageRefusedError, match="a/file would hold the signing key") as caught:
        files.create("a/file", [content[at : at + step] for at in range(0, len(content), step)])
    assert secret not in str(caught.value)
    assert not files.exists("a/file")


def test_a_graph_that_holds_the_key_is_not_written(tmp_path: Path, key: SigningKey) -> None:
    """The key is also found if it is split between two blocks of the payload."""
    owned = take_over(open_files(tmp_path), "stream-0-00000001", DriverProcess.of_this_process(0))
    payload = b"x" * ((1 << 20) - 5) + KEY.encode()
    snapshot = GraphSnapshot("stream-0-00000001", 0, 1, {}, payload)
    with pytest.raises(StorageRefusedError, match=r"graph/.*-e1\.graph would hold the signing key"):
        write_graph(owned.lease, snapshot)


def test_a_key_in_the_place_of_its_path_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the two variables are mixed up, the key is not logged."""
    for secret in (KEY, KEY * 100):
        monkeypatch.setenv("CHECKPOINT_KEY_FILE", secret)
        with pytest.raises(
            StorageRefusedError, match="in the file of CHECKPOINT_KEY_FILE"
        ) as found:
            open_files(tmp_path)
        assert KEY not in "".join(traceback.format_exception(found.value))


def test_every_byte_is_signed(files: SignedFiles, tmp_path: Path) -> None:
    """Every changed, missing or added byte is detected, and the error names the file."""
    files.create("a/file", [b"some content"])
    path = tmp_path / "a/file"
    good = path.read_bytes()
    wrongs = [good[:end] for end in range(len(good))] + [good + b"x"]
    wrongs += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good))]
    for wrong in wrongs:
        path.write_bytes(wrong)
        with pytest.raises(UntrustedFileError, match=r"a/file .*find out who writes there"):
            files.read("a/file")


def test_a_file_that_was_moved_is_refused(files: SignedFiles, tmp_path: Path) -> None:
    """A genuine file is rejected under another name."""
    files.create("a/1", [b"one"])
    shutil.copy(tmp_path / "a/1", tmp_path / "a/2")
    with pytest.raises(UntrustedFileError, match="a/2 is damaged, forged, or was moved"):
        files.read("a/2")


def test_segments_are_in_their_places(files: SignedFiles, tmp_path: Path) -> None:
    """Swapped and missing segments are detected."""
    files.create("big", [b"x" * (1 << 20), b"y" * (1 << 20), b"z"])
    path = tmp_path / "big"
    good = path.read_bytes()
    segment = 36 + (1 << 20)
    head, first, second, rest = (
        good[:18],
        good[18 : 18 + segment],
        good[18 + segment : 18 + 2 * segment],
        good[18 + 2 * segment :],
    )
    for wrong in (head + second + first + rest, head + first + rest, head + first + second):
        path.write_bytes(wrong)
        with pytest.raises(UntrustedFileError):
            files.read("big")


def test_nothing_is_handed_out_before_it_is_verified(files: SignedFiles, tmp_path: Path) -> None:
    """No part of an unverified segment is returned."""
    files.create("big", [b"x" * (1 << 20), b"y" * 100])
    path = tmp_path / "big"
    path.write_bytes(path.read_bytes()[:-1] + b"Y")
    chunks = files.read_chunks("big", 1 << 16)
    taken = [next(chunks) for _ in range(16)]
    assert b"".join(taken) == b"x" * (1 << 20)
    with pytest.raises(UntrustedFileError):
        next(chunks)


def test_another_key_and_no_signature_are_told_apart(
    files: SignedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error has the name of the file and a remedy."""
    files.create("a", [b"signed"])
    files.inner.create("b", [b"not signed, and long enough"])
    with pytest.raises(UntrustedFileError, match="b is not signed; expected a signature"):
        files.read("b")
    monkeypatch.setenv("CHECKPOINT_KEY", KEY + "x")
    with pytest.raises(UntrustedFileError, match=r"a is signed with key .* expected key"):
        files.read("a")
    monkeypatch.delenv("CHECKPOINT_KEY")
    with pytest.raises(StorageRefusedError, match="the variable CHECKPOINT_KEY has 0 bytes"):
        files.read("a")


def test_a_key_in_a_file_is_private_and_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a key is readable by its owner only, and outside the checkpoint."""
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", str(path))
    files = open_files(tmp_path / "checkpoint")
    files.create("a", [b"signed"])
    assert open_files(tmp_path / "checkpoint").read("a") == b"signed"
    with pytest.raises(ValueError, match="is in the checkpoint"):
        open_files(tmp_path)
    for mode, text, said in ((0o640, KEY, "has mode 0640"), (0o600, "short", "has 5 bytes")):
        other = tmp_path / f"key-{mode}"
        other.write_text(text)
        other.chmod(mode)
        monkeypatch.setenv("CHECKPOINT_KEY_FILE", str(other))
        with pytest.raises(StorageRefusedError, match=said):
            open_files(tmp_path / "checkpoint")
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", str(tmp_path / "missing"))
    with pytest.raises(StorageRefusedError, match="cannot read the key"):
        open_files(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="name one"):
        SigningKey()


ROOT, ME, OTHER = 0, 1000, 1001
FIRST, GIVEN, FOREIGN = 100, 2000, 3000
"""Groups: the first one of a process, one more that it is in, and one that it is not in."""


@pytest.mark.parametrize(
    ("uid", "owner", "group", "mode", "refused"),
    [
        (ME, ME, FIRST, 0o600, None),
        (ME, ME, FIRST, 0o400, None),
        (ME, ME, FIRST, 0o640, "mode 0640"),
        (ME, ME, GIVEN, 0o440, "mode 0440"),
        (ME, ME, FIRST, 0o604, "mode 0604"),
        (ME, ROOT, GIVEN, 0o440, None),
        (ME, ROOT, GIVEN, 0o640, None),
        (ME, ROOT, FIRST, 0o440, None),
        (ME, ROOT, GIVEN, 0o644, "mode 0644"),
        (ME, ROOT, GIVEN, 0o660, "mode 0660"),
        (ME, ROOT, GIVEN, 0o450, "mode 0450"),
        (ME, ROOT, FOREIGN, 0o440, "mode 0440"),
        (ME, OTHER, GIVEN, 0o440, "belongs to user id 1001"),
        (ME, OTHER, GIVEN, 0o600, "belongs to user id 1001"),
        (ROOT, ROOT, FIRST, 0o600, None),
        (ROOT, ROOT, FIRST, 0o640, "mode 0640"),
        (ROOT, ROOT, GIVEN, 0o440, None),
        (ROOT, ROOT, FOREIGN, 0o440, "mode 0440"),
        (ROOT, OTHER, GIVEN, 0o600, "belongs to user id 1001"),
    ],
)
def test_a_key_is_kept_from_others(
    uid: int, owner: int, group: int, mode: int, refused: str | None
) -> None:
    """Only root may have made it readable by a group of the process."""
    status = os.stat_result((0o100000 | mode, 0, 0, 1, owner, group, 0, 0, 0, 0))
    if refused is None:
        require_private_key("/keys/key", status, uid, FIRST, [GIVEN])
    else:
        with pytest.raises(StorageRefusedError, match=f"/keys/key .*{refused}, and must"):
            require_private_key("/keys/key", status, uid, FIRST, [GIVEN])


def test_a_key_is_read_as_kubernetes_mounts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links are followed, and the mode of the target counts."""
    mounted = tmp_path / "mounted"
    for made, key in (("..2026_11_23", KEY), ("..2026_11_24", KEY.upper())):
        (mounted / made).mkdir(parents=True)
        (mounted / made / "key").write_text(key)
        (mounted / made / "key").chmod(0o400)
        (mounted / "..data~").symlink_to(made)
        (mounted / "..data~").rename(mounted / "..data")
    (mounted / "key").symlink_to("..data/key")
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", str(mounted / "key"))
    found = SigningKey.from_environment()
    assert found is not None
    assert found.load() == KEY.upper().encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be in groups of its choice")
def test_a_key_that_root_has_given_to_a_group_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of the process may read it, as with an fsGroup."""
    path = tmp_path / "key"
    path.write_text(KEY)
    os.chown(path, 0, GIVEN)
    path.chmod(0o440)
    with pytest.raises(StorageRefusedError, match="mode 0440"):
        SigningKey(file=str(path)).load()
    monkeypatch.setattr(os, "getgroups", lambda: [GIVEN])
    assert SigningKey(file=str(path)).load() == KEY.encode()


def test_a_forged_graph_is_refused(tmp_path: Path, key: SigningKey) -> None:
    """A forged graph is rejected like a damaged one; no older graph is used."""
    files = open_files(tmp_path)
    Driver(files, World()).run(2000)
    [graph] = (tmp_path / "graph").iterdir()
    forged = tmp_path / "graph" / "0000000000002000-e1.graph"
    shutil.copy(graph, forged)
    with pytest.raises(CorruptCheckpointError, match=r"2000-e1\.graph is damaged, forged, or was"):
        read_newest_graph(files)


def test_copies_of_a_stream_that_went_on_apart_share_no_file(
    tmp_path: Path, key: SigningKey
) -> None:
    """Files of a diverged copy are rejected despite equal name, epoch, stream and key."""
    before, one, two = tmp_path / "before", tmp_path / "one", tmp_path / "two"
    Driver(open_files(before), World()).run(3000)
    for copy in (one, two):
        shutil.copytree(before, copy)
        Driver(open_files(copy), World()).run(6000)
    shared = sorted(set(open_files(one).list("")) & set(open_files(two).list("")))
    other = [name for name in shared if (one / name).read_bytes() != (two / name).read_bytes()]
    assert {name.partition("/")[0] for name in other} == {"batches", "commits", "epochs"}
    for name in other:
        good = (one / name).read_bytes()
        (one / name).write_bytes((two / name).read_bytes())
        found = [problem.found for problem in verify_stream(open_files(one)).problems]
        assert any("of another" in each or "not the claim under which" in each for each in found)
        (one / name).write_bytes(good)
    assert verify_stream(open_files(one)).problems == []

"""The commands on stores: verify, read keys, and report errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CommitLog, CommitRecord, open_files
from checkpoint.cli.main import main
from checkpoint.cli.verify import Verification, verify_stores
from checkpoint.log.batch_records import PartitionCommit, StoreCommit
from checkpoint.state_store import (
    EMPTY,
    DataValues,
    LmdbBackend,
    PickleValues,
    StateStore,
    StoreId,
    ValueCodec,
)

PARTITIONS = 2


class Stream:
    """A stream that commits batches of two stores."""

    def __init__(self, root: Path, values: ValueCodec) -> None:
        (root / "local").mkdir(parents=True, mode=0o700)
        self.files = open_files(str(root / "files"))
        backend = LmdbBackend(self.files, str(root / "local"))
        self.store = StateStore(backend, values, checksums=True)
        self.version_ids = dict.fromkeys(range(PARTITIONS), EMPTY)

    def batch(self, number: int, changes: dict[Any, Any]) -> None:
        """Commit a batch; a key with value None is removed."""
        partitions: list[PartitionCommit] = []
        for partition, version_id in self.version_ids.items():
            store_id = StoreId("stream-1", "counts", "default", partition, PARTITIONS)
            with self.store.writer(store_id, version_id) as writer:
                for key, value in changes.items():
                    if len(repr(key)) % PARTITIONS != partition:
                        continue
                    if value is None:
                        writer.remove(key)
                    else:
                        writer.put(key, value, timeout_ms=9 if value == "late" else None)
                committed = writer.commit()
            self.version_ids[partition] = committed.version_id
            partitions.append(committed)
        stores = (
            StoreCommit("counts", "default", "stable-hash-1", tuple(partitions)),
            StoreCommit("other", "default", "stable-hash-1", ()),
        )
        record = CommitRecord("stream-1", number, 1000 * (number + 1), 1, {}, {}, stores)
        CommitLog(self.files).commit(record)


@pytest.fixture
def url(tmp_path: Path) -> str:
    stream = Stream(tmp_path, DataValues())
    stream.batch(0, {"a": 1, "bb": (1, [2])})
    stream.batch(1, {"a": 2, ("u", 1): "late", 17: "n"})
    stream.batch(2, {"bb": None})
    return str(tmp_path / "files")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    status = main(["state", *arguments])
    shown = capsys.readouterr()
    assert (status, shown.err) == (0, "")
    return shown.out.splitlines()


def test_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intact files must lead to the content that their writers had."""
    stream = Stream(tmp_path, DataValues())
    stream.batch(0, {"a": 1})
    monkeypatch.setattr("checkpoint.state_store.write_buffer.moved_checksum", lambda *_: 7)
    stream.batch(1, {"a": 2})
    for time_ms, said in ((1000, []), (2000, ["leads to wrong content"])):
        found = Verification()
        verify_stores(stream.files, CommitLog(stream.files).read(time_ms), found)
        assert [problem.found.partition(":")[0] for problem in found.problems] == said


def read(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> list[Any]:
    status = main(["read", url, "--operator", "counts", *arguments])
    shown = capsys.readouterr()
    assert (status, shown.err) == (0, "")
    return [json.loads(line) for line in shown.out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        (["a"], {"key": "a", "value": 2}),
        (["'a'"], {"key": "a", "value": 2}),
        (["a", "--at", "1000"], {"key": "a", "value": 1}),
        (["bb", "--at", "2000"], {"key": "bb", "value": [1, [2]]}),
        (
            ["('u', 1)"],
            {"key": ["u", 1], "value": "late", "timeout_ms": 9},
        ),
        (["17"], {"key": 17, "value": "n"}),
    ],
    ids=str,
)
def test_a_key_is_read(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], row: dict[str, Any]
) -> None:
    """A key is read from its partition, after any batch, with its timeout."""
    assert read(capsys, url, "--key", *arguments) == [row]


def test_a_missing_key(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing key is reported with the batch that was read, and status 1."""
    assert main(["read", url, "--operator", "counts", "--key", "zzz"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no key 'zzz' in counts as of 1970-01-01T00:00:03Z" in shown.err


def test_one_partition(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """read prints the keys and values of all partitions or of one."""
    assert len(read(capsys, url)) == 3
    assert len(read(capsys, url, "--limit", "2")) == 2
    parts = [read(capsys, url, "--partition", partition) for partition in "01"]
    assert sum(map(len, parts)) == 3
    assert [row["key"] for row in parts[1]] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["read", "--at", "1500"], "(1500 ms) is committed; the nearest are "),
        (["read", "--key", "a"], "several operators have state; give --operator: counts, other"),
        (["read", "--operator", "x"], "no operator 'x'; this stream has counts and other"),
        (["read", "--operator", "counts", "--store", "x"], "no store 'x'; there are default"),
        (["read", "--operator", "counts", "--partition", "2"], "partition 2 must be 0 to 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_there(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    """Errors for missing objects list the existing ones."""
    command, *rest = arguments
    assert main([command, url, *rest]) == 2
    assert says in capsys.readouterr().err


def test_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is not a checkpoint is reported, and nothing is created in it."""
    missing = tmp_path / "missing"
    assert main(["show", str(missing)]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert not missing.exists()
    assert main(["show", str(tmp_path)]) == 2
    assert "holds no commit record" in capsys.readouterr().err


def test_damaged_file(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error for a damaged changelog names the file."""
    for path in Path(url).rglob("*"):
        if path.is_file() and "commits" not in path.parts:
            path.write_bytes(path.read_bytes()[:-1])
    assert main(["read", url, "--operator", "counts"]) == 1
    assert "expected" in capsys.readouterr().err


def test_pickles_are_not_read_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Objects are created only with --unpickle; otherwise their parts are shown."""
    Stream(tmp_path, PickleValues()).batch(0, {"a": Path("x")})
    arguments = ["read", str(tmp_path / "files"), "--key", "a", "--operator", "counts"]
    assert main(arguments) == 0
    unasked = capsys.readouterr().out
    assert main([*arguments, "--unpickle"]) == 0
    assert json.loads(capsys.readouterr().out) == {"key": "a", "value": {"PosixPath": "x"}}
    assert "pathlib.PosixPath" in unasked


def test_as_a_program(url: str) -> None:
    """``python -m checkpoint`` runs the command, changes nothing and leaves no files behind."""
    before = sorted(os.listdir(url))
    done = subprocess.run(
        [sys.executable, "-m", "checkpoint", "read", url, "--operator", "counts"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert len(done.stdout.splitlines()) == 3
    assert sorted(os.listdir(url)) == before


def test_names_in_errors_change_nothing_of_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters in names of files are escaped in errors."""
    assert main(["show", str(tmp_path / "\x1b[2J")]) == 2
    error = capsys.readouterr().err
    assert "\\x1b[2J" in error
    assert "\x1b" not in error

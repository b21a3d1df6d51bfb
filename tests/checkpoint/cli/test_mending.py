"""The runbook of verify errors is correct: each damage is repaired by its commands.

Each case causes a kind of damage, and runs the commands of the runbook as they are written there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from checkpoint import (
    CommitLog,
    CommitRecord,
    DriverProcess,
    RecordId,
    StateFileId,
    open_files,
    read_newest_graph,
    read_plan,
    take_over,
    write_state_file,
)
from checkpoint.cli.main import main
from checkpoint.cli.verify import Note
from checkpoint.errors import Damage
from checkpoint.log.batch_records import commit_file
from checkpoint.log.record_files import record_frames
from checkpoint.state_store import DataValues, LmdbBackend, StateStore
from checkpoint.storage.framing import FileKind, read_frames
from tests.checkpoint.cli.conftest import Run
from tests.support.documentation import commands_of, read_page
from tests.support.stream_model import STREAM, Driver, World

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "operations" / "verify-errors.md"

UNTRIED = {
    Damage.BUSY: "comes of a driver that deletes meanwhile, and goes by itself",
    Damage.UNREADABLE: "tests may run as root, whom no mode of a file keeps from reading it",
    Damage.WRITABLE: "is what a driver or an import refuses; verify has it as a note",
}
"""Kinds of damage that no case makes, and why."""


@dataclass
class Case:
    """A kind of damage, and its repair.

    Args:
        damage: its name in the output of verify.
        make: damages a checkpoint, given its directory and stream.
        ways: headings of the runbook whose commands repair it, in order.
    """

    damage: Damage
    make: Callable[[Path, Path], None]
    ways: tuple[str, ...]


def one(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


def lose(pattern: str) -> Callable[[Path, Path], None]:
    return lambda _, stream: one(stream, pattern).unlink()


def flip(pattern: str) -> Callable[[Path, Path], None]:
    def damage(_: Path, stream: Path) -> None:
        path = one(stream, pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)

    return damage


def misplace(_: Path, stream: Path) -> None:
    commits = stream / "commits"
    shutil.copy(commits / "0000000000006000-e2.commit", commits / "0000000000008000-e2.commit")


def write_again(_: Path, stream: Path) -> None:
    """Write a file of the newest state as another attempt would have."""
    path = one(stream, "state/sums/0000000000006000-p00001-*.state")
    attempt = path.stem.rpartition("-")[2]
    path.unlink()
    again = StateFileId(STREAM, "sums", 6000, 1, 2, "stable", 2, attempt)
    write_state_file(open_files(stream), again, [(b"something else", 1)])


def mix_copies(top: Path, stream: Path) -> None:
    """Let a copy of the stream run, and put one of its files into the original."""
    copied = top.parent / "copied"
    shutil.copytree(top, copied)
    for root in (copied / STREAM, stream):
        Driver(open_files(root), World()).run(8000)
    name = "commits/0000000000008000-e3.commit"
    shutil.copy(copied / STREAM / name, stream / name)


def contradict(_: Path, stream: Path) -> None:
    """Let the newest record name a record without that snapshot."""
    files = open_files(stream)
    last = CommitLog(files).latest()
    assert last is not None
    wrong = replace(last, newest_snapshots={**last.newest_snapshots, "sums": RecordId(5000, 1)})
    write_anew(stream, wrong)


def write_anew(stream: Path, record: CommitRecord) -> None:
    path = stream / commit_file(record.record_id)
    header = read_frames([path.read_bytes()], FileKind.COMMIT, "").header
    kept = {key: value for key, value in header.items() if key != "format"}
    path.write_bytes(b"".join(map(bytes, record_frames(FileKind.COMMIT, kept, record))))


def add_notes(_: Path, stream: Path) -> None:
    (stream / "notes.txt").write_text("do not delete\n")


def link(_: Path, stream: Path) -> None:
    path = one(stream, "state/sums/0000000000006000-p00001-*.state")
    path.rename(stream.parent / "moved")
    path.symlink_to(stream.parent / "moved")


PUT_BACK, GO_BACK, MOVE_AWAY = "Put it back", "Go back", "Move it away"

CASES = {
    "a commit record": Case(Damage.MISSING, lose("commits/*6000-e2.commit"), (GO_BACK,)),
    "a begin record": Case(Damage.MISSING, lose("batches/*7000-e2.begin"), (GO_BACK,)),
    "a takeover": Case(Damage.MISSING, lose("epochs/*2.takeover"), (GO_BACK,)),
    "a state file": Case(Damage.MISSING, lose("state/sums/*6000-p00001-*"), (GO_BACK,)),
    "a graph": Case(Damage.MISSING, lose("graph/*.graph"), (PUT_BACK,)),
    "the oldest takeover": Case(Damage.MISSING, lose("epochs/*1.takeover"), (PUT_BACK,)),
    "a damaged state file": Case(Damage.DAMAGED, flip("state/sums/*6000-p00001-*"), (GO_BACK,)),
    "a damaged begin record": Case(Damage.DAMAGED, flip("batches/*7000-e2.begin"), (GO_BACK,)),
    "a damaged commit record": Case(Damage.DAMAGED, flip("commits/*6000-e2.commit"), (GO_BACK,)),
    "the newest commit record": Case(Damage.DAMAGED, flip("commits/*7000-e2.commit"), (GO_BACK,)),
    "a damaged takeover": Case(Damage.DAMAGED, flip("epochs/*2.takeover"), (GO_BACK, MOVE_AWAY)),
    "a damaged graph": Case(Damage.DAMAGED, flip("graph/*.graph"), (PUT_BACK,)),
    "an older claim": Case(Damage.DAMAGED, flip("epochs/*1.claim"), (MOVE_AWAY,)),
    "the end of a driver": Case(Damage.DAMAGED, flip("epochs/*2.released"), (MOVE_AWAY,)),
    "another attempt": Case(Damage.REPLACED, write_again, (GO_BACK,)),
    "a record under another name": Case(Damage.MISPLACED, misplace, (MOVE_AWAY,)),
    "two copies": Case(Damage.ANOTHER_COPY, mix_copies, (MOVE_AWAY,)),
    "records": Case(Damage.CONTRADICTING, contradict, (GO_BACK,)),
    "a claim": Case(Damage.NO_CLAIM, lose("epochs/*2.claim"), ("no-claim",)),
    "a note": Case(Damage.FOREIGN, add_notes, ("foreign",)),
    "a link": Case(Damage.NO_FILE, link, ("no-file", PUT_BACK)),
}


def blocks_below(heading: str) -> list[str]:
    """Return the commands below a heading of the runbook."""
    parts = re.split(r"^#+ (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    blocks = [block for block in read_page(sections[heading]).blocks if block.language == "console"]
    return [command.line for block in blocks for command in commands_of(block)]


class Shell:
    """A shell for the commands of the runbook; those of dstreams run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def set(self, **variables: object) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, str(value))

    def run(self, command: str) -> int:
        words = shlex.split(os.path.expandvars(command))
        if words[:2] == ["dstreams", "checkpoint"]:
            return main(words[2:])
        if words[0] == "unset":
            for name in words[1:]:
                self._monkeypatch.delenv(name, raising=False)
        elif words[0] == "export":
            self._monkeypatch.setenv(*words[1].split("=", 1))
        else:
            return subprocess.run(["bash", "-c", command], check=False).returncode
        return 0


def verified(run: Run, url: Path) -> tuple[list[str], Path | None]:
    """Return the kinds of problems that verify finds, and the first file."""
    status, data, _ = run("verify", url)
    problems = data["problems"]
    assert status == (3 if problems else 0)
    file = Path(problems[0]["file"].removeprefix("file://")) if problems else None
    return [problem["damage"] for problem in problems], file


def begin_restart(url: Path) -> None:
    files = open_files(url / STREAM)
    assert read_newest_graph(files, read_plan(files).graph) is not None
    take_over(files, STREAM, DriverProcess.of_this_process(0)).lease.release()


@dataclass
class Site:
    """A checkpoint, and a shell.

    Args:
        url: location of the checkpoint.
        shell: has the variables of the runbook.
    """

    url: Path
    shell: Shell
    run_command: Run
    capsys: pytest.CaptureFixture[str]

    def follow(self, way: str) -> None:
        """Run the commands below a heading of the runbook."""
        self.shell.set(FILE=verified(self.run_command, self.url)[1] or "")
        for command in blocks_below(way):
            self.shell.run(command)
        self.capsys.readouterr()

    def kinds(self) -> list[str]:
        """Return the kinds of problems that verify finds."""
        return verified(self.run_command, self.url)[0]


@pytest.fixture
def site(
    run: Run,
    url: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Site:
    """An intact checkpoint, with a copy, an export, and a key that is not set yet."""
    shutil.copytree(url, tmp_path / "backup")
    (tmp_path / "keys").mkdir(mode=0o700)
    (tmp_path / "exports").mkdir()
    key = tmp_path / "keys" / "key"
    key.write_bytes(b"a key for tests only")
    key.chmod(0o600)
    assert run("export", url, tmp_path / "exports" / "export")[0] == 0
    shell = Shell(monkeypatch)
    shell.set(
        CHECKPOINT=url,
        BACKUP=tmp_path / "backup",
        EXPORT=tmp_path / "exports" / "export",
        NEW=tmp_path / "new",
        ASIDE=tmp_path / "aside",
        KEY=key,
    )
    return Site(url, shell, run, capsys)


def sign(site: Site) -> None:
    """Sign the checkpoint of the site."""
    os.environ["CHECKPOINT_KEY_FILE"] = os.environ["KEY"]
    shutil.rmtree(site.url)
    Driver(open_files(site.url / STREAM), World()).run(7000)


@pytest.mark.deep
@pytest.mark.parametrize("name", CASES)
def test_the_runbook_mends(site: Site, name: str) -> None:
    """After the commands of the runbook verify finds no problem, and a restart is possible."""
    case = CASES[name]
    case.make(site.url, site.url / STREAM)
    assert case.damage.value in site.kinds()
    for way in case.ways:
        site.follow(way)
    assert site.kinds() == []
    begin_restart(site.url)


def test_an_export_goes_on_elsewhere(site: Site) -> None:
    """If a checkpoint is lost, its last export can be resumed."""
    shutil.rmtree(site.url)
    for command in blocks_below("Take the last export"):
        assert site.shell.run(command) == 0
    begin_restart(Path(os.environ["NEW"]))


def test_a_key_that_was_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signed checkpoint is intact with its own key, and rejected without it."""
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", "")
    sign(site)
    assert site.kinds() == []
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", "")
    assert set(site.kinds()) == {Damage.NO_KEY.value}
    site.follow("no-key")
    assert site.kinds() == []
    monkeypatch.delenv("CHECKPOINT_KEY_FILE")
    monkeypatch.setenv("CHECKPOINT_KEY", "another key, for tests")
    assert set(site.kinds()) == {Damage.OTHER_KEY.value}
    site.follow("other-key")
    assert site.kinds() == []


def test_a_checkpoint_that_is_not_signed_yet(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, an unsigned checkpoint is rejected until the runbook signs it."""
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", os.environ["KEY"])
    assert set(site.kinds()) == {Damage.UNSIGNED.value}
    site.follow("unsigned")
    assert site.kinds() == []
    begin_restart(site.url)


def test_a_file_that_was_forged(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged file is restored from a trusted copy."""
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", "")
    sign(site)
    shutil.rmtree(os.environ["BACKUP"])
    shutil.copytree(site.url, os.environ["BACKUP"])
    flip("commits/*6000-e1.commit")(site.url, site.url / STREAM)
    assert site.kinds() == [Damage.FORGED.value]
    site.follow(PUT_BACK)
    assert site.kinds() == []


def test_the_format_of_a_newer_release(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer format is rejected; the newer release reads it."""
    shutil.rmtree(site.url)
    with monkeypatch.context() as newer:
        newer.setattr("checkpoint.storage.framing.FORMAT", 1000)
        Driver(open_files(site.url / STREAM), World()).run(7000)
        assert site.kinds() == []
    assert set(site.kinds()) == {Damage.FORMAT.value}
    assert blocks_below("format")[-1] == 'dstreams checkpoint verify "$CHECKPOINT"'


def test_a_state_that_nobody_had(
    run: Run, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a writer used a damaged replica, the stream returns to the batch before it."""
    files = open_files(stored)
    backend = LmdbBackend(files, str(tmp_path / "local"), 1)
    store = StateStore(backend, DataValues(), checksums=True)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    (begun,) = owned.plan.in_flight
    (stores,) = owned.plan.stores
    partitions = []
    monkeypatch.setattr("checkpoint.state_store.write_buffer.moved_checksum", lambda *_: 7)
    for partition, before in enumerate(stores.partitions):
        store_id = stores.store_id(STREAM, partition)
        with store.writer(store_id, before.version_id) as writer:
            writer.put("wrong", partition)
            partitions.append(writer.commit())
    last = replace(stores, partitions=tuple(partitions))
    owned.commits.commit(CommitRecord(STREAM, begun.batch_id, 5000, 2, {}, {}, (last,)))
    owned.lease.release()
    assert set(verified(run, stored)[0]) == {Damage.WRONG_CONTENT.value}
    shell = Shell(monkeypatch)
    shell.set(CHECKPOINT=stored)
    for command in blocks_below(GO_BACK):
        assert shell.run(command) == 0, command


def test_who_else_can_write(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of verify disappears when others can no longer write."""
    said = Note.UNTRUSTED.value.partition("{")[0]
    site.url.chmod(0o777)
    (note,) = site.run_command("verify", site.url)[1]["notes"]
    assert note.startswith(said)
    for command in blocks_below("writable"):
        site.shell.run(command)
    site.capsys.readouterr()
    assert site.run_command("verify", site.url)[1]["notes"] == []


def test_each_kind_of_damage_is_tried() -> None:
    """Each kind of damage has a case, or a reason for not having one."""
    by_itself = {
        *(Damage.UNSIGNED, Damage.NO_KEY, Damage.OTHER_KEY, Damage.FORGED),
        *(Damage.FORMAT, Damage.WRONG_CONTENT),
    }
    assert {case.damage for case in CASES.values()} | by_itself | UNTRIED.keys() == set(Damage)

"""verify: intact checkpoints have no problem; each damage is reported with file and remedy."""

from __future__ import annotations

import itertools
import os
import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoint import (
    CorruptCheckpointError,
    DriverProcess,
    LocalFiles,
    StateFileId,
    open_files,
    read_newest_graph,
    read_plan,
    take_over,
    write_state_file,
)
from checkpoint.cli.common import moment
from checkpoint.cli.main import main
from checkpoint.cli.verify import reader_of, restart_problem
from tests.checkpoint.cli.conftest import Run
from tests.support.stream_model import STREAM, Driver, World

Damage = Callable[[Path], None]


def truncate(size: Callable[[int], int]) -> Damage:
    return lambda path: os.truncate(path, size(path.stat().st_size))


def flip(at: float) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[min(int(len(content) * at), len(content) - 1)] ^= 4
        path.write_bytes(content)

    return damage


def zero_page(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes(len(content) - 60) + content[-20:])


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved~"))
    path.symlink_to(path.with_suffix(".moved~"))


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Damage] = {
    "emptied": truncate(lambda size: 0),
    "one byte left": truncate(lambda size: 1),
    "half of it": truncate(lambda size: size // 2),
    "one byte less": truncate(lambda size: size - 1),
    "bit at the beginning": flip(0),
    "bit in the middle": flip(0.5),
    "bit at the end": flip(1),
    "zeros inside": zero_page,
    "other bytes": lambda path: path.write_bytes(os.urandom(500)),
    "more bytes": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}
REPLACED: dict[str, Damage] = {
    "removed": Path.unlink,
    "a directory": make_directory,
    "a link": make_link,
    "a pipe": make_pipe,
}
FILES = {
    "claim": "epochs/0000000001.claim",
    "takeover": "epochs/0000000002.takeover",
    "begin": "batches/0000000000007000-e2.begin",
    "commit": "commits/0000000000006000-e2.commit",
    "graph": "graph/0000000000000000-e1.graph",
    "state": "state/sums/0000000000006000-p00001-e2-*.state",
}
STORED_FILES = {
    "changes": "stores/sessions/default/p00001/0000000000000003-*.changes",
    "snapshot": "stores/sessions/default/p00000/0000000000000002-*.snapshot",
    "inputs": "inputs/0000000000000000-e1.inputs",
    "block": "received/socket/0000000000000002-e1-*.block",
}


def one(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


def problem_files(run: Run, root: Path) -> list[str]:
    status, data, error = run("verify", root)
    assert error == ""
    assert status == (3 if data["problems"] else 0)
    assert all(problem["remedy"] and problem["expected"] for problem in data["problems"])
    return [problem["file"].removeprefix("file://") for problem in data["problems"]]


def test_what_is_whole_has_no_problem(run: Run, url: Path, stored: Path) -> None:
    """All files are read, and temporary files are ignored."""
    for root in (url / STREAM, stored):
        (root / "epochs" / ".leftover.tmp").write_bytes(b"")
        status, data, _ = run("verify", root)
        assert (status, data["problems"], data["notes"]) == (0, [], [])
        files = [path for path in root.rglob("*") if path.is_file()]
        assert data["checked_files"] == len(files) - 1
    status, lines, _ = run("verify", url, as_json=False)
    assert status == 0
    assert lines[-1].endswith("files verified, no problems")


@pytest.mark.deep
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_record_is_named(run: Run, url: Path, kind: str, damage: str) -> None:
    """Every kind of damage to every file is reported."""
    path = one(url / STREAM, FILES[kind])
    DAMAGES[damage](path)
    assert str(path) in problem_files(run, url)


@pytest.mark.deep
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", STORED_FILES)
def test_a_damaged_file_of_stores_and_inputs_is_named(
    run: Run, stored: Path, kind: str, damage: str
) -> None:
    """The same holds for files of stores and inputs."""
    path = one(stored, STORED_FILES[kind])
    DAMAGES[damage](path)
    assert str(path) in problem_files(run, stored)


@pytest.mark.parametrize("damage", REPLACED)
@pytest.mark.parametrize("kind", ["takeover", "begin", "commit", "state"])
def test_a_missing_file_is_named(run: Run, url: Path, kind: str, damage: str) -> None:
    """A needed file that is missing, or not a regular file, is reported; nothing hangs."""
    path = one(url / STREAM, FILES[kind])
    REPLACED[damage](path)
    assert str(path) in problem_files(run, url)


def lost_silently(run: Run, root: Path) -> list[str]:
    """Return the files whose loss, each alone, is not a problem."""
    silent = []
    for path in sorted(path for path in root.rglob("*.*") if path.is_file()):
        content = path.read_bytes()
        path.unlink()
        found = problem_files(run, root)
        if not found:
            silent.append(str(path.relative_to(root)))
        # The file itself, or the directory that it is missing from.
        assert not found or any(str(path).startswith(name) for name in found), (path, found)
        path.write_bytes(content)
    return silent


@pytest.mark.deep
def test_each_lost_file_is_named_but_for_those_that_a_restart_does_without(
    run: Run, url: Path, stored: Path
) -> None:
    """Each other loss is reported; these are harmless.

    The newest commit and the begin record of an uncommitted batch, as the batch runs again; the
    oldest commit, which only a rewind needs; a release, which looks like a death of the driver; a
    claim before the newest one; and a snapshot if all changelogs exist.
    """
    assert lost_silently(run, url / STREAM) == [
        "commits/0000000000003000-e1.commit",
        "commits/0000000000007000-e2.commit",
        "epochs/0000000001.claim",
        "epochs/0000000001.released",
        "epochs/0000000002.released",
    ]
    snapshots = [str(path.relative_to(stored)) for path in stored.rglob("*.snapshot")]
    assert lost_silently(run, stored) == [
        "batches/0000000000005000-e1.begin",
        "commits/0000000000001000-e1.commit",
        "commits/0000000000004000-e1.commit",
        "epochs/0000000001.released",
        *sorted(snapshots),
    ]


def swapped_silently(run: Run, root: Path) -> list[str]:
    """Return the pairs of files that can be swapped without being reported."""
    silent = []
    paths = sorted(path for path in root.rglob("*.*") if path.is_file())
    for first, second in itertools.combinations(paths, 2):
        if first.suffix == second.suffix and first.parent.parts[:-1] == second.parent.parts[:-1]:
            contents = first.read_bytes(), second.read_bytes()
            first.write_bytes(contents[1])
            second.write_bytes(contents[0])
            found = problem_files(run, root)
            if not {str(first), str(second)} <= set(found):
                silent.append(f"{first.name} {second.name}: {found}")
            first.write_bytes(contents[0])
            second.write_bytes(contents[1])
    return silent


@pytest.mark.deep
def test_each_two_files_that_have_changed_places_are_named(run: Run, stored: Path) -> None:
    """A file contains its own name, so each swap is reported."""
    assert swapped_silently(run, stored) == []


def test_a_file_of_another_stream_is_named(run: Run, stored: Path, tmp_path: Path) -> None:
    """An intact file with the right name, but of another stream, is reported."""
    others = open_files(tmp_path / "other")
    owned = take_over(others, "stream-9-00000009", DriverProcess.of_this_process(0))
    owned.lease.release()
    for name in ("epochs/0000000001.claim", "epochs/0000000001.released"):
        content = (stored / name).read_bytes()
        shutil.copy(tmp_path / "other" / name, stored / name)
        assert str(stored / name) in problem_files(run, stored)
        (stored / name).write_bytes(content)


def test_a_lost_newest_commit_is_a_batch_that_runs_again(run: Run, url: Path) -> None:
    """A lost newest commit cannot be detected: the batch is in flight, as after a crash."""
    one(url / STREAM, "commits/0000000000007000-e2.commit").unlink()
    assert problem_files(run, url) == []
    assert run("show", url)[1]["in_flight_ms"] == [7000]


def test_files_that_changed_places_are_named(run: Run, url: Path) -> None:
    """A record under another time and swapped partitions are reported."""
    root = url / STREAM
    copied = root / "commits/0000000000008000-e2.commit"
    shutil.copy(one(root, FILES["commit"]), copied)
    assert str(copied) in problem_files(run, url)
    copied.unlink()
    first = one(root, "state/sums/0000000000006000-p00000-e2-*.state")
    second = one(root, "state/sums/0000000000006000-p00001-e2-*.state")
    first.rename(root / "x")
    second.rename(first)
    (root / "x").rename(second)
    assert set(problem_files(run, url)) == {str(first), str(second)}


def test_a_file_of_an_earlier_generation_is_named(run: Run, url: Path) -> None:
    """A file of the same partition of an earlier batch is reported."""
    root = url / STREAM
    path = one(root, FILES["state"])
    shutil.copy(one(root, "state/sums/0000000000004000-p00001-*.state"), path)
    assert problem_files(run, url) == [str(path)]


def test_the_newest_batch_that_can_be_gone_back_to_is_named(run: Run, url: Path) -> None:
    """verify prints the command; after damage that only a rewind meets, it is the last batch."""
    path = one(url / STREAM, FILES["state"])
    flip(0.5)(path)
    status, lines, _ = run("verify", url, as_json=False)
    assert status == 3
    assert lines[-1] == f"python -m checkpoint rewind {url} --to 1970-01-01T00:00:05Z"
    assert run("verify", url)[1]["good_ms"] == 5000
    assert run("verify", url)[1]["command"] == lines[-1]
    assert run("rewind", url, "--to", 5000)[0] == 0
    assert run("rewind", url, "--to", 7000)[0] == 1
    flip(0.5)(path)
    flip(0.5)(one(url / STREAM, "state/sums/0000000000004000-p00001-*.state"))
    assert run("rewind", url, "--to", 7000)[0] == 0
    assert (
        "state and input of the last batch, at 1970-01-01T00:00:07Z (7000 ms), are intact"
        in run("verify", url, as_json=False)[1][-2]
    )


def begin_restart(url: Path) -> int | None:
    """Read what a restart reads, take over, and return the last batch."""
    files = open_files(url / STREAM)
    assert read_newest_graph(files, read_plan(files).graph) is not None
    return take_over(files, STREAM, DriverProcess.of_this_process(0)).plan.last_ms


@pytest.mark.parametrize(
    ("lost", "good_ms"),
    [
        ("epochs/0000000002.takeover", 5000),
        ("epochs/0000000001.takeover", None),
        ("graph/0000000000000000-e1.graph", None),
        ("commits/0000000000006000-e2.commit", 5000),
        ("batches/0000000000007000-e2.begin", 6000),
    ],
)
def test_what_a_restart_would_be_refused_for_is_said(
    run: Run, url: Path, lost: str, good_ms: int | None
) -> None:
    """verify prints the command that makes a restart possible, and the command works."""
    path = url / STREAM / lost
    path.unlink()
    with pytest.raises(CorruptCheckpointError):
        begin_restart(url)
    status, lines, _ = run("verify", url, as_json=False)
    assert status == 3
    (refused,) = (line for line in lines if line.startswith("a restart is refused: file://"))
    assert f"{path} is missing" in refused.replace("/commits is", f"/{lost} is")
    data = run("verify", url)[1]
    assert data["restart_refused"].startswith("file://")
    assert data["good_ms"] == good_ms
    if good_ms is None:
        assert "it is not possible after any batch: restore" in refused
        assert data["command"] is None
        assert lines[-1].endswith("files verified, 1 problem")
    else:
        assert f"it is possible after the batch at {moment(good_ms)}" in refused
        assert lines[-1] == data["command"]
        assert main(shlex.split(lines[-1])[3:]) == 0
        assert begin_restart(url) == good_ms


def test_the_newest_stream_is_looked_at_also_where_its_graph_is_lost(run: Run, url: Path) -> None:
    """As for a restart, the newest stream counts, even if an older one is intact."""
    newer = "stream-9000-00000002"
    Driver(open_files(url / newer), World()).run(3000)
    (graph,) = (url / newer / "graph").iterdir()
    graph.unlink()
    assert f"{graph} is missing" in run("verify", url)[1]["restart_refused"]


def test_what_this_user_may_not_start_is_noted(run: Run, url: Path) -> None:
    """An intact stream that others can write gets a note: a restart would refuse it."""
    url.chmod(0o777)
    status, data, _ = run("verify", url)
    assert (status, data["problems"]) == (0, [])
    (note,) = data["notes"]
    assert note.startswith(f"a restart by this user is refused: {url} can be written by others")
    assert "chmod go-w" in note


def test_an_older_claim_is_missed_by_nobody(run: Run, url: Path, tmp_path: Path) -> None:
    """A newer claim fences the same drivers: the lost one is a note, and export works."""
    path = url / STREAM / "epochs/0000000001.claim"
    flip(0.5)(path)
    assert "remove it: a newer driver has claimed the stream" in run("export", url, "x")[2]
    path.unlink()
    status, data, _ = run("verify", url)
    assert (status, data["problems"]) == (0, [])
    assert "0000000001.claim is missing; nothing needs it, as epoch 2 has a newer" in str(data)
    assert run("show", url)[1]["epochs"][0]["reason"] == "start"
    assert run("export", url, tmp_path / "save")[0] == 0
    assert run("import", tmp_path / "save", tmp_path / "other")[0] == 0


def test_the_newest_claim_is_made_anew(run: Run, url: Path, tmp_path: Path) -> None:
    """Only the newest claim fences older drivers; a rewind to the last batch claims an epoch."""
    (url / STREAM / "epochs/0000000002.claim").unlink()
    status, lines, _ = run("verify", url, as_json=False)
    assert status == 3
    assert "rewind it to its last batch" in lines[0]
    assert "a restart is possible despite this" in lines[-4]
    assert lines[-1].endswith(" --to 1970-01-01T00:00:07Z")
    assert run("rewind", url, "--to", 7000)[0] == 0
    assert run("verify", url)[0] == 0
    assert run("export", url, tmp_path / "save")[0] == 0


def test_a_foreign_file_is_named(run: Run, url: Path) -> None:
    """A foreign file is reported with the advice to remove it."""
    path = url / STREAM / "commits" / "notes.txt"
    path.write_text("hello")
    status, lines, _ = run("verify", url, as_json=False)
    assert status == 3
    assert f"{path} is not a checkpoint file" in lines[0]
    assert lines[-1].endswith("1 problem")


def test_orphans_and_void_records_are_notes(run: Run, url: Path) -> None:
    """Orphans and void records are not problems."""
    root = url / STREAM
    lost = StateFileId(STREAM, "sums", 6000, 1, 2, "stable", 1, "lost")
    write_state_file(open_files(root), lost, [(b"nothing", 0)])
    assert run("rewind", url, "--to", 5000)[0] == 0
    status, data, _ = run("verify", url)
    assert status == 0
    assert "1 state files that no record names; see gc" in data["notes"]
    assert any(note.startswith("void") and "6000 ms of epoch 2" in note for note in data["notes"])


def test_state_files_of_a_batch_in_flight_are_no_orphans(run: Run, url: Path) -> None:
    """The driver that wrote them may be running: their record follows."""
    begun = StateFileId(STREAM, "sums", 8000, 1, 2, "stable", 2, "begun")
    write_state_file(open_files(url / STREAM), begun, [(b"nothing", 0)])
    status, data, _ = run("verify", url)
    assert (status, data["notes"]) == (0, [])


@pytest.mark.parametrize(
    ("choose", "is_problem"), [(min, False), (max, True)], ids=["oldest", "newest"]
)
def test_files_that_are_deleted_meanwhile(
    run: Run,
    url: Path,
    monkeypatch: pytest.MonkeyPatch,
    choose: Callable[[Iterator[Path]], Path],
    is_problem: bool,
) -> None:
    """A running driver deletes old files: only those that a restart needs are missing."""
    states, begins = url.glob(f"{STREAM}/state/sums/*"), url.glob(f"{STREAM}/batches/*")
    deleted = [choose(states), min(begins)]
    whole = LocalFiles.read_chunks

    def delete_and_read(files: LocalFiles, name: str, chunk_bytes: int) -> Iterator[bytes]:
        for path in deleted:
            path.unlink(missing_ok=True)
        return whole(files, name, chunk_bytes)

    monkeypatch.setattr(LocalFiles, "read_chunks", delete_and_read)
    assert (str(deleted[0]) in problem_files(run, url)) == is_problem
    assert not any(path.exists() for path in deleted)
    if not is_problem:
        assert problem_files(run, url / STREAM) != []  # of files that were missing before


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Damage bytes in one of several ways."""
    damaged = bytearray(content)
    at, end = (chance.randrange(len(damaged)) for _ in range(2))
    way = chance.randrange(5)
    if way == 0:
        damaged[at] ^= 1 << chance.randrange(8)
    elif way == 1:
        del damaged[at:]
    elif way == 2:
        del damaged[at : at + chance.randrange(1, 64)]
    elif way == 3:
        damaged[at : at + 16] = chance.randbytes(16)
    else:
        damaged[at:at] = damaged[min(at, end) : max(at, end)]
    return bytes(damaged)


def test_damaged_bytes_are_refused_by_every_reader(url: Path, stored: Path) -> None:
    """Each reader raises the error that names the file, unless the bytes are unchanged."""
    chance = random.Random(7)
    for root in (url / STREAM, stored):
        files = open_files(root)
        for name in files.list(""):
            path, read = root / name, reader_of(files, name)
            assert read is not None
            content = path.read_bytes()
            for _ in range(8):
                damaged = mutate(content, chance)
                path.write_bytes(damaged)
                if damaged != content:
                    with pytest.raises(CorruptCheckpointError, match=path.name):
                        read()
            path.write_bytes(content)
            read()


def test_a_graph_is_read_once(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph, which may be large, is read once to check a restart."""
    read: list[str] = []
    whole = LocalFiles.read_chunks

    def counted(files: LocalFiles, name: str, chunk_bytes: int) -> Iterator[bytes]:
        read.append(name)
        return whole(files, name, chunk_bytes)

    monkeypatch.setattr(LocalFiles, "read_chunks", counted)
    assert restart_problem(open_files(url / STREAM)) is None
    assert len([name for name in read if name.startswith("graph/")]) == 1


@pytest.mark.deep
@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_the_command_that_is_named_mends_it(
    run: Run, url: Path, tmp_path: Path, is_lost: bool
) -> None:
    """For each damaged file, the printed command makes a restart possible."""
    names = [path.relative_to(url / STREAM) for path in sorted((url / STREAM).rglob("*.*"))]
    hopeless = set()
    for number, name in enumerate(names):
        copy = shutil.copytree(url, tmp_path / str(number))
        path = copy / STREAM / name
        if is_lost:
            path.unlink()
        else:
            flip(0.5)(path)
        status, data, _ = run("verify", copy)
        if status == 0 or data["restart_refused"] is None:
            continue
        if data["command"] is None:
            hopeless.add(str(name))
            continue
        assert run(*shlex.split(data["command"])[3:])[0] == 0, name
        assert begin_restart(copy) == data["good_ms"], name
    # All that comes later depends on the first takeover, on the graph, and on what was read.
    damaged = set() if is_lost else {f"batches/000000000000{n}000-e1.begin" for n in (3, 4)}
    assert hopeless == damaged | {
        "epochs/0000000001.takeover",
        "graph/0000000000000000-e1.graph",
    }

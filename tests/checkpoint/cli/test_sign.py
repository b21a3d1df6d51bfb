"""sign: add, change or remove the key of a checkpoint; interrupted runs can be completed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint import (
    CheckpointError,
    DriverProcess,
    Files,
    SignedFiles,
    SigningKey,
    open_files,
    take_over,
)
from checkpoint.cli import sign
from checkpoint.cli.sign import KeyChange, sign_streams
from checkpoint.cli.verify import verify_stream
from checkpoint.storage.trust import signed_with
from tests.checkpoint.cli.conftest import Run
from tests.support.faults import SimulatedCrash
from tests.support.simulated_disk import SimulatedDisk
from tests.support.stream_model import STREAM, Driver, World, require_right

KEYS = {"FIRST": "the first key, of many bytes", "SECOND": "the second key, of many bytes"}
FIRST, SECOND = SigningKey(variable="FIRST"), SigningKey(variable="SECOND")
CHANGES = [KeyChange(None, FIRST), KeyChange(FIRST, SECOND), KeyChange(FIRST, None)]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Return the paths of files with keys."""
    (tmp_path / "keys").mkdir(mode=0o700)
    for name, key in KEYS.items():
        path = tmp_path / "keys" / name
        path.write_text(f"{key}\n")
        path.chmod(0o600)
    return {name: str(tmp_path / "keys" / name) for name in KEYS}


def seen_by(disk: Files, key: SigningKey | None) -> Files:
    return disk if key is None else SignedFiles(disk, key)


def is_whole(disk: Files, key: SigningKey | None) -> bool:
    """Return whether all files can be read with a key, or without one."""
    try:
        return verify_stream(seen_by(disk, key)).problems == []
    except CheckpointError:
        return False


def a_disk(world: World, key: SigningKey | None) -> SimulatedDisk:
    disk = SimulatedDisk()
    for upto_ms in (2000, 3000):
        Driver(seen_by(disk, key), world).run(upto_ms)
    return disk.restart()


def crashes(change: KeyChange, stride: int) -> Iterator[tuple[int, SimulatedDisk, World]]:
    """Yield the files after a crash and after a power loss at each step."""
    for at in range(1, 10_000, stride):
        world = World()
        disk = a_disk(world, change.old)
        disk._crash_at = at
        with suppress(SimulatedCrash):
            sign_streams([disk], change)
        yield at, disk.restart(), deepcopy(world)
        yield at, disk.power_loss(Random(at).randrange), deepcopy(world)
        if not disk.has_crashed:
            return


@pytest.mark.deep
@pytest.mark.parametrize("change", CHANGES, ids=["on", "another", "off"])
def test_interruption(change: KeyChange) -> None:
    """After a crash at any step the next run completes the change, and the stream resumes."""
    found: set[tuple[bool, bool]] = set()
    for _, disk, world in crashes(change, 11):
        found.add((is_whole(disk, change.old), is_whole(disk, change.new)))
        sign_streams([disk], change)
        new = None if change.new is None else change.new.key_id
        assert {signed_with(disk, name) for name in disk.list("")} == {new}
        assert is_whole(disk, change.new)
        assert change.old is None or not is_whole(disk, change.old)
        driver = Driver(seen_by(disk, change.new), world)
        driver.run(5000)
        require_right(world, driver)
    assert found == {(True, False), (False, False), (False, True)}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from([None, FIRST, SECOND]), st.integers(1, 400)), max_size=5))
def test_changes_of_mind(steps: list[tuple[SigningKey | None, int]]) -> None:
    """Any sequence of interrupted and repeated changes ends with the last key."""
    world = World()
    disk, key = a_disk(world, None), None
    for new, at in steps:
        if new == key:
            continue
        change = KeyChange(key, new)
        disk._crash_at = len(disk.steps) + at
        with suppress(SimulatedCrash):
            sign_streams([disk], change)
        disk = disk.restart()
        sign_streams([disk], change)
        key = new
    driver = Driver(seen_by(disk, key), world)
    driver.run(4000)
    require_right(world, driver)
    assert is_whole(disk, key)


def test_the_command(
    run: Run, url: Path, keys: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signing, changing the key and unsigning each leave a stream that resumes."""
    modes = {path: path.stat().st_mode for path in url.rglob("*.*")}
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["FIRST"])
    status, data, _ = run("sign", url, "--dry-run")
    assert (status, data["done"], data["streams"][0]["changed"]) == (0, False, len(modes))
    assert run("verify", url)[0] == 3
    status, lines, _ = run("sign", url, as_json=False)
    assert status == 0
    first, second = FIRST.key_id, SECOND.key_id
    assert lines[-1] == f"the checkpoint was not signed, is signed with key {first}"
    assert run("verify", url)[0] == 0
    assert run("show", url)[1]["key"] == first
    Driver(open_files(url / STREAM), world).run(8000)
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["SECOND"])
    status, _, error = run("sign", url)
    assert status == 2
    assert f"is signed with key {first}" in error
    assert error.endswith("; or name its key in CHECKPOINT_OLD_KEY_FILE\n")
    monkeypatch.setenv("CHECKPOINT_OLD_KEY_FILE", keys["FIRST"])
    status, data, _ = run("sign", url)
    assert (status, data["old_key"], data["key"]) == (0, first, second)
    epochs = sorted((url / STREAM / "epochs").iterdir())
    assert run("sign", url)[1]["streams"][0]["changed"] == 0
    assert sorted((url / STREAM / "epochs").iterdir()) == epochs
    monkeypatch.delenv("CHECKPOINT_OLD_KEY_FILE")
    driver = Driver(open_files(url / STREAM), world)
    driver.run(9000)
    assert run("sign", url, "--off")[0] == 0
    monkeypatch.delenv("CHECKPOINT_KEY_FILE")
    assert run("verify", url)[0] == 0
    driver = Driver(open_files(url / STREAM), world)
    driver.run(10_000)
    require_right(world, driver)
    assert {path: path.stat().st_mode for path in modes if path.exists()}.items() <= modes.items()
    assert not list(url.rglob(".*"))


def test_all_streams_of_a_checkpoint(
    run: Run, url: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All streams are signed, or the one given by --stream."""
    Driver(open_files(url / "stream-9000-00000002"), World()).run(2000)
    take_over(open_files(url / "query"), "q", DriverProcess.of_this_process(0)).lease.release()
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["FIRST"])
    assert len(run("sign", url, "--stream", STREAM)[1]["streams"]) == 1
    assert run("sign", url, "--stream", "x")[0] == 2
    status, data, _ = run("sign", url)
    assert (status, len(data["streams"])) == (0, 3)
    for directory in (STREAM, "stream-9000-00000002", "query"):
        assert run("verify", url / directory)[0] == 0


@pytest.mark.parametrize(
    ("variables", "words", "error"),
    [
        ({}, [], "cannot sign without a key; name its file in CHECKPOINT_KEY_FILE"),
        ({}, ["--off"], "cannot remove the signatures without the current key"),
        (
            {"CHECKPOINT_KEY_FILE": "FIRST", "CHECKPOINT_OLD_KEY_FILE": "FIRST"},
            [],
            "are the same: ",
        ),
    ],
)
def test_keys_that_are_missing(
    run: Run,
    url: Path,
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    words: list[str],
    error: str,
) -> None:
    """Missing keys are reported, and nothing is changed."""
    for name, key in variables.items():
        monkeypatch.setenv(name, keys[key])
    status, _, said = run("sign", url, *words)
    assert status == 2
    assert error in said


def test_while_a_driver_runs(
    run: Run, url: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sign refuses while a driver runs, before anything is changed."""
    take_over(open_files(url / STREAM), STREAM, DriverProcess.of_this_process(0))
    before = {path: path.read_bytes() for path in url.rglob("*.*")}
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["FIRST"])
    status, _, error = run("sign", url)
    assert status == 4
    assert "is running; stop it first" in error
    assert {path: path.read_bytes() for path in url.rglob("*.*")} == before


def test_a_driver_that_starts_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the new driver, and the next run completes the change."""
    disk = a_disk(World(), FIRST)
    change = KeyChange(FIRST, SECOND)
    rewrite = sign._rewrite

    def then_a_driver(*arguments: object) -> None:
        rewrite(*arguments)  # type: ignore[arg-type]
        take_over(SignedFiles(disk, SECOND), STREAM, DriverProcess.of_this_process(0))

    with monkeypatch.context() as patch:
        patch.setattr(sign, "_rewrite", then_a_driver)
        with pytest.raises(CheckpointError, match=r"a driver has claimed epoch 4 .* run the same"):
            sign_streams([disk], change)
    sign_streams([disk], change)
    assert is_whole(disk, SECOND)


def test_what_others_could_have_written_is_not_signed(
    run: Run, url: Path, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that others can write are not signed, as they would count as genuine."""
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["FIRST"])
    path = next((url / STREAM / "graph").iterdir())
    path.chmod(0o666)
    status, _, error = run("sign", url)
    assert status == 1
    assert f"{path} can be written by others (mode 0666)" in error


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def removed_signature(path: Path) -> None:
    path.write_bytes(b"anything")


@pytest.mark.parametrize("damage", [flipped, removed_signature])
def test_what_is_forged_is_not_signed(
    run: Run,
    url: Path,
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> None:
    """Each file is verified with its current key before the first one is changed."""
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["FIRST"])
    assert run("sign", url)[0] == 0
    damage(max((url / STREAM / "state").rglob("*.state")))
    before = {path: path.read_bytes() for path in url.rglob("*.*")}
    monkeypatch.setenv("CHECKPOINT_KEY_FILE", keys["SECOND"])
    monkeypatch.setenv("CHECKPOINT_OLD_KEY_FILE", keys["FIRST"])
    status, _, error = run("sign", url)
    assert status == 1
    assert "signature is wrong" in error or "is not signed" in error
    assert {path: path.read_bytes() for path in url.rglob("*.*")} == before

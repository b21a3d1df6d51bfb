"""Fencing: the newer driver owns the stream, and the older one learns which driver that is."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from checkpoint import (
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    Files,
    StorageRefusedError,
    StorageUncertainError,
    open_files,
    take_over,
    unsigned,
)
from checkpoint.log.fencing import (
    FenceChecks,
    _driver_of,
    claim_epoch,
    claimed_epochs,
    is_released,
    read_claim,
    require_newest,
    require_unused,
)
from checkpoint.storage.files import ReadAhead
from tests.support.faults import FaultyFiles
from tests.support.request_clock import counting_requests

pytestmark = pytest.mark.usefixtures("no_sync")

DRIVER = DriverProcess.of_this_process(1000, {"python": "3.11"})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return open_files(tmp_path)


def test_each_driver_has_an_epoch_of_its_own(files: Files) -> None:
    """Each driver claims the next epoch, and its facts can be read."""
    guards = [claim_epoch(files, "stream-1", DRIVER) for _ in range(3)]
    assert [lease.epoch for lease in guards] == [1, 2, 3] == claimed_epochs(files)
    assert read_claim(files, 2) == guards[1].claim
    assert guards[0].claim.token != guards[1].claim.token
    assert read_claim(files, 1).driver == DRIVER


def test_of_many_that_claim_at_once_each_has_another_epoch(files: Files) -> None:
    """Concurrent claims get different epochs."""
    start = threading.Barrier(8, timeout=60)

    def claim(_: int) -> int:
        start.wait()
        return claim_epoch(files, "stream-1", DRIVER).epoch

    with ThreadPoolExecutor(8) as drivers:
        assert sorted(drivers.map(claim, range(8))) == list(range(1, 9))


def test_the_older_driver_is_told_who_is_newer(files: Files) -> None:
    """The next check names both epochs, host and process."""
    older = claim_epoch(files, "stream-1", DRIVER)
    older.check()
    newer = claim_epoch(files, "stream-1", replace(DRIVER, host="other-host", pid=77))
    with pytest.raises(
        ConcurrentWriterError, match="process 77 on host other-host has taken"
    ) as it:
        pickle.loads(pickle.dumps(older)).check()
    assert (it.value.epoch, it.value.other_epoch) == (1, 2)
    newer.check()


def test_an_old_driver_is_fenced_also_when_its_epoch_was_cleaned_up(files: Files) -> None:
    """Later claims may be deleted as well."""
    older = claim_epoch(files, "stream-1", DRIVER)
    for _ in range(3):
        claim_epoch(files, "stream-1", DRIVER)
    for epoch in (1, 2, 3):
        files.delete(f"epochs/000000000{epoch}.claim")
    with pytest.raises(ConcurrentWriterError, match="with epoch 4"):
        older.check()
    assert claim_epoch(files, "stream-1", DRIVER).epoch == 5


def test_a_check_in_the_background(files: Files) -> None:
    """Its result is that of the check which was started last."""
    checks = FenceChecks(claim_epoch(files, "stream-1", DRIVER))
    with counting_requests(at_once=2) as clock:
        checks.wait()
        checks.start()
        assert clock.now == 0
        checks.wait()
        assert clock.now == 1
        claim_epoch(files, "stream-1", DRIVER)
        checks.wait()
        checks.start()
        for _ in range(2):
            with pytest.raises(ConcurrentWriterError, match="has taken over"):
                checks.wait()


def test_a_check_on_a_local_disk(files: Files) -> None:
    """It needs no thread: it is made once, when it is waited for."""
    checks = FenceChecks(claim_epoch(files, "stream-1", DRIVER))
    with counting_requests() as clock:
        checks.start()
        for _ in range(2):
            checks.wait()
            assert clock.now == 1
        checks.start()
        claim_epoch(files, "stream-1", DRIVER)
        with pytest.raises(ConcurrentWriterError, match="has taken over"):
            checks.wait()


def test_a_claim_after_an_earlier_listing(files: Files) -> None:
    """The listing spares another one, and does no harm if it is out of date."""
    claim_epoch(files, "stream-1", DRIVER)
    earlier = ReadAhead(files, {"epochs/": files.list("epochs/")})
    assert claim_epoch(files, "stream-1", DRIVER, earlier).epoch == 2
    assert claim_epoch(files, "stream-1", DRIVER, earlier).epoch == 3


def test_a_deleted_checkpoint_is_no_other_driver(files: Files) -> None:
    """The driver stops with the name of the missing file."""
    lease = claim_epoch(files, "stream-1", DRIVER)
    files.delete(lease.claim.name)
    with pytest.raises(CorruptCheckpointError, match=r"0000000001\.claim is missing"):
        lease.check()


def test_a_lost_claim_is_not_claimed_again(files: Files) -> None:
    """Other files of an epoch reserve its number, too."""
    claim_epoch(files, "stream-1", DRIVER).release()
    files.delete("epochs/0000000001.claim")
    assert claim_epoch(files, "stream-1", DRIVER).epoch == 2


def test_a_claim_that_may_have_been_made_is_read_back(files: Files) -> None:
    """An uncertain claim counts only if its file exists."""
    faulty = FaultyFiles(files, 2, "after", StorageUncertainError)
    assert claim_epoch(faulty, "stream-1", DRIVER).epoch == 1
    with pytest.raises(StorageUncertainError, match="epoch 2 may or may not be claimed"):
        claim_epoch(FaultyFiles(files, 2, "before", StorageUncertainError), "stream-1", DRIVER)
    with pytest.raises(StorageRefusedError):
        claim_epoch(FaultyFiles(files, 2, "before", StorageRefusedError), "stream-1", DRIVER)
    assert claimed_epochs(files) == [1]


def test_a_stream_that_was_left_is_unused(files: Files) -> None:
    """A stream is unused if its driver released it or died, not if that is unknown."""
    require_unused(files)
    lease = claim_epoch(files, "stream-1", DRIVER)
    with pytest.raises(ConcurrentWriterError, match="is running; stop it first"):
        require_unused(files)
    lease.release()
    lease.release()
    assert is_released(files, 1)
    require_unused(files)
    claim_epoch(files, "stream-1", replace(DRIVER, host="elsewhere"))
    with pytest.raises(ConcurrentWriterError, match="is not visible from this host"):
        require_unused(files)


def test_a_process_is_alive_or_not() -> None:
    """A zombie is dead, and a process with the same id is another one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        made = replace(DRIVER, pid=child.pid, process="")
        assert made.is_running()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not replace(made, process="boot:1").is_running()
    assert not made.is_running()
    assert DRIVER.is_running()
    assert not replace(DRIVER, process="an earlier boot:17").is_running()
    assert replace(DRIVER, host="elsewhere").is_running() is None


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="only Linux has namespaces")
def test_a_process_of_another_container_cannot_be_seen(files: Files) -> None:
    """In another pid namespace of the same host, a process id means another process."""
    boot, start, namespace = DRIVER.process.split(":")
    assert DRIVER.is_running()
    other = replace(DRIVER, process=f"{boot}:{start}:{int(namespace) + 1}")
    assert other.is_running() is None
    assert replace(other, pid=2**22 + 1).is_running() is None
    assert replace(other, process=f"an earlier boot:{start}:{namespace}1").is_running() is False
    claim_epoch(files, "stream-1", other)
    with pytest.raises(ConcurrentWriterError, match=r"this host or container; .* --driver-gone"):
        require_unused(files)
    require_unused(files, is_gone=True)
    claim_epoch(files, "stream-1", DRIVER)
    with pytest.raises(ConcurrentWriterError, match="is running; stop it first"):
        require_unused(files, is_gone=True)


def test_a_driver_that_was_replaced_may_delete_nothing(files: Files) -> None:
    """The error names the newer driver."""
    claim_epoch(files, "stream-1", DRIVER)
    require_newest(files, 1)
    claim_epoch(files, "stream-1", DRIVER)
    with pytest.raises(
        ConcurrentWriterError, match=f"process {DRIVER.pid} .* so nothing is deleted"
    ):
        require_newest(files, 1)


@pytest.mark.parametrize("damage", [b"", b"junk"])
def test_a_damaged_claim_is_named_and_still_fences(
    files: Files, tmp_path: Path, damage: bytes
) -> None:
    """The existence of a claim is enough to fence."""
    older = claim_epoch(files, "stream-1", DRIVER)
    claim_epoch(files, "stream-1", DRIVER)
    (tmp_path / "epochs" / "0000000002.claim").write_bytes(damage)
    with pytest.raises(CorruptCheckpointError, match=r"0000000002\.claim"):
        read_claim(files, 2)
    with pytest.raises(ConcurrentWriterError, match=r"another driver .*0000000002\.claim"):
        older.check()
    assert "0000000002.claim" in _driver_of(files, 2)


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setenv("CHECKPOINT_KEY", "a key of more than sixteen bytes")
    return open_files(tmp_path / "signed")


@pytest.mark.parametrize("forged", [b"", b"junk" * 20])
def test_a_forged_end_ends_nothing(signed: Files, tmp_path: Path, forged: bytes) -> None:
    """Only a genuine release counts, not a damaged or unsigned one."""
    claim_epoch(signed, "stream-1", DRIVER)
    (tmp_path / "signed/epochs/0000000001.released").write_bytes(forged)
    for files in (signed, unsigned(signed)):
        assert not is_released(files, 1)
    with pytest.raises(ConcurrentWriterError, match="is running; stop it first"):
        require_unused(signed)


@pytest.mark.parametrize("forged", [b"", b"junk" * 20])
def test_a_forged_claim_stops_nobody(
    signed: Files, tmp_path: Path, forged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver continues, the next one claims a later epoch, and that fences."""
    older = claim_epoch(signed, "stream-1", DRIVER)
    (tmp_path / "signed/epochs/0000000002.claim").write_bytes(forged)
    older.check()
    require_newest(signed, 1)
    assert "ignoring a claim" in caplog.text
    with pytest.raises(ConcurrentWriterError, match=r"epoch 1 .*is running"):
        require_unused(signed)
    assert claim_epoch(signed, "stream-1", DRIVER).epoch == 3
    with pytest.raises(ConcurrentWriterError, match="epoch 3"):
        older.check()


@pytest.mark.parametrize("ending", ["claim", "released"])
def test_what_another_stream_says_of_its_epochs_counts_for_it_alone(
    signed: Files, tmp_path: Path, ending: str
) -> None:
    """Claims of another stream are ignored, even with the same key."""
    other = open_files(tmp_path / "other")
    for _ in range(2):
        claim_epoch(other, "stream-2", DRIVER).release()
    lease = take_over(signed, "stream-1", DRIVER).lease
    epoch = 2 if ending == "claim" else 1
    name = f"epochs/{epoch:010d}.{ending}"
    shutil.copy(tmp_path / "other" / name, tmp_path / "signed" / name)
    lease.check()
    require_newest(signed, 1)
    with pytest.raises(ConcurrentWriterError, match=r"epoch 1 .*is running"):
        require_unused(signed)


def test_a_claim_in_the_place_of_another_is_found(signed: Files, tmp_path: Path) -> None:
    """The takeover written under the original claim reveals it."""
    shutil.copytree(tmp_path / "signed", tmp_path / "copy")
    take_over(signed, "stream-1", DRIVER)
    take_over(open_files(tmp_path / "copy"), "stream-1", DRIVER)
    name = "epochs/0000000001.claim"
    shutil.copy(tmp_path / "copy" / name, tmp_path / "signed" / name)
    with pytest.raises(CorruptCheckpointError, match="not the claim under which the takeover"):
        read_claim(signed, 1)

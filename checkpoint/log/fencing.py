"""Fencing: of two drivers on one checkpoint the newer one wins; neither clocks nor locks take part.

A driver takes a stream by claiming the next epoch: it creates a file that nobody else can create::

    epochs/0000000001.claim     who it is: host, process, versions
    epochs/0000000001.takeover  what it builds on (checkpoint.log.lineage)
    epochs/0000000001.released  it has stopped by itself, nothing of it is running

Every name that a driver writes holds its epoch, so a late driver damages nothing of another one,
and what it writes is void. It looks for a newer claim (:meth:`WriterLease.check`) only where
something follows that cannot be void: before the outputs of a batch, after its commit, and before
it deletes.

A claim has a random token, which all that is written under it repeats. So of two copies of a stream
that went on apart, with the same epochs, no file is taken for one of the other.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from checkpoint.errors import (
    RESTORE,
    AlreadyExistsError,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    Damage,
    UntrustedFileError,
)
from checkpoint.log.record_files import create_once, read_record, record_frames
from checkpoint.log.state_files import new_attempt
from checkpoint.storage.files import Files, location
from checkpoint.storage.framing import FileKind
from checkpoint.storage.json_records import JsonRecord

EPOCH_PREFIX = "epochs/"
CLAIM, TAKEOVER, RELEASED = "claim", "takeover", "released"

_log = logging.getLogger("checkpoint")

_NAME = re.compile(re.escape(EPOCH_PREFIX) + rf"(\d{{10,}})\.({CLAIM}|{TAKEOVER}|{RELEASED})")


class DriverProcess(JsonRecord, frozen=True):
    """A driver, as a person looks for it.

    Args:
        host: name of its host.
        pid: its process id.
        process: what tells this process from others of that id; empty where nothing does.
        started_ms: when it took over, by its clock.
        facts: versions and the like; never secrets.
    """

    host: str
    pid: int
    process: str
    started_ms: int
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    @classmethod
    def of_this_process(
        cls, started_ms: int, facts: Mapping[str, str] | None = None
    ) -> DriverProcess:
        """Return this process as an owner."""
        pid = os.getpid()
        process = f"{_process(pid) or ':'}:{_pid_namespace()}"
        return cls(socket.gethostname(), pid, process, started_ms, facts or {})

    def is_running(self) -> bool | None:
        """Whether the process is alive; None when this process cannot know.

        So on another host, and in another container of this one, where an id is of another process.
        """
        if self.host != socket.gethostname():
            return None
        boot, start, namespace = (*self.process.split(":"), "", "", "")[:3]
        is_this_boot = boot == _process(os.getpid()).partition(":")[0]
        if is_this_boot and namespace and namespace != _pid_namespace():
            return None
        if not _exists(self.pid):
            return False
        found = _process(self.pid)
        return found == f"{boot}:{start}" or not (found and start)


class Claim(JsonRecord, frozen=True):
    """An epoch and who has it.

    Args:
        stream_id: id of the stream.
        epoch: number of the epoch, from 1.
        driver: the driver.
        token: 64 random bits, which tell it from a rival on the same host.
    """

    stream_id: str
    epoch: int
    driver: DriverProcess
    token: str

    @property
    def name(self) -> str:
        """Name of its file."""
        return epoch_file(self.epoch, CLAIM)


class _TakeoverIds(msgspec.Struct, frozen=True):
    """Of which stream, and under which claim, a takeover was written; it says more."""

    stream_id: str
    token: str


@dataclass(frozen=True)
class WriterLease:
    """Says whether this driver still has the stream. Small, and can be pickled."""

    files: Files
    claim: Claim

    @property
    def epoch(self) -> int:
        """The epoch of this driver."""
        return self.claim.epoch

    def check(self) -> None:
        """Return if there is no newer claim; costs one listing.

        Raises ConcurrentWriterError, CorruptCheckpointError or StorageRefusedError.
        """
        claims = claimed_epochs(self.files)
        is_newest = claims[-1:] == [self.epoch]
        if self.epoch not in claims or not (is_newest or self._newest() == self.epoch):
            raise self._fenced()

    def release(self) -> None:
        """Say that this driver has stopped and nothing of it is running any more."""
        with suppress(AlreadyExistsError):
            header = _header(self.claim.stream_id, self.epoch)
            frames = record_frames(FileKind.CLAIM, header, self.claim)
            self.files.create(epoch_file(self.epoch, RELEASED), frames)

    def give_up(self) -> None:
        """Release what this driver could not make use of; it has an error of its own to tell."""
        with suppress(CheckpointError):
            self.release()

    def _newest(self) -> int:
        return _newest_claim(self.files, self.claim.stream_id)

    def _fenced(self) -> CheckpointError:
        newest = self._newest()
        if newest <= self.epoch:
            file = location(self.files, self.claim.name)
            wanted = f"the claim of epoch {self.epoch}, which this driver has made"
            return CorruptCheckpointError(file, "is missing", wanted, RESTORE, Damage.MISSING)
        return ConcurrentWriterError(
            f"{driver_of(self.files, newest)} has taken over {self.files.url} with epoch {newest}; "
            f"this one, {self.claim.driver} with epoch {self.epoch}, must stop: only one driver "
            "may run on a checkpoint",
            self.epoch,
            newest,
        )


def claim_epoch(files: Files, stream_id: str, driver: DriverProcess) -> WriterLease:
    """Claim the next epoch of a stream: from now on every older driver is fenced.

    Raises CheckpointError.
    """
    while True:
        epoch = next_epoch(files)
        claim = Claim(stream_id, epoch, driver, new_attempt())
        frames = record_frames(FileKind.CLAIM, _header(stream_id, epoch), claim)
        with suppress(AlreadyExistsError):  # by a rival: the one after it, then
            what = f"epoch {epoch} may be claimed or not"
            create_once(files, claim.name, frames, AlreadyExistsError, what)
            return WriterLease(files, claim)


def next_epoch(files: Files) -> int:
    """Return the number of the epoch to claim: also after one of which the claim was lost."""
    found = map(epoch_of_file, files.list(EPOCH_PREFIX))
    return max((epoch for epoch in found if epoch is not None), default=0) + 1


def claimed_epochs(files: Files) -> list[int]:
    """Return the numbers of all claims, sorted."""
    return epochs_with(files.list(EPOCH_PREFIX), CLAIM)


def read_claim(files: Files, epoch: int) -> Claim:
    """Read who has claimed an epoch.

    Raises FileNotFoundError or CorruptCheckpointError.
    """
    claim = _read_claim(files, epoch, CLAIM)
    takeover = _takeover_of(files, epoch)
    if takeover is not None and takeover != (claim.stream_id, claim.token):
        found = "is not the claim under which the takeover of its epoch was written"
        raise CorruptCheckpointError(
            location(files, claim.name), found, "that one", RESTORE, Damage.ANOTHER_COPY
        )
    return claim


def read_release(files: Files, epoch: int) -> Claim:
    """Read of which claim an epoch says that its driver has stopped.

    Raises FileNotFoundError or CorruptCheckpointError.
    """
    end = _read_claim(files, epoch, RELEASED)
    with suppress(FileNotFoundError):  # deleted a moment ago, and this will be next
        if end != read_claim(files, epoch):
            file, found = (
                location(files, epoch_file(epoch, RELEASED)),
                "is the end of another driver",
            )
            raise CorruptCheckpointError(
                file, found, "that of who has claimed the epoch", RESTORE, Damage.MISPLACED
            )
    return end


def _read_claim(files: Files, epoch: int, ending: str) -> Claim:
    name, what = epoch_file(epoch, ending), "a claim"
    claim = read_record(files, name, FileKind.CLAIM, {"epoch": epoch}, Claim, what)
    if claim.epoch != epoch:
        found = f"is the claim of epoch {claim.epoch}"
        raise CorruptCheckpointError(
            location(files, name), found, f"of epoch {epoch}", RESTORE, Damage.MISPLACED
        )
    return claim


def _newest_claim(files: Files, stream_id: str | None = None) -> int:
    """Return the newest epoch of a stream that a driver has claimed, 0 for none."""
    for epoch in reversed(claimed_epochs(files)):
        if _is_genuine(files, epoch, stream_id):
            return epoch
    return 0


def _is_genuine(files: Files, epoch: int, stream_id: str | None) -> bool:
    """Whether an epoch was claimed by a driver of the stream, as far as anybody can know."""
    try:
        found = read_claim(files, epoch).stream_id
    except FileNotFoundError:
        return False  # deleted a moment ago
    except UntrustedFileError as error:
        _log.warning("a claim is not counted: %s", error)
        return False
    except CorruptCheckpointError:
        return True  # without a key it may have been that of a driver
    if stream_id not in (None, found):
        file = location(files, epoch_file(epoch, CLAIM))
        _log.warning("a claim is not counted: %s is of stream %s", file, found)
        return False
    return True


def _stream_of(files: Files) -> str | None:
    """Return the stream of which the newest takeover is, None where there is none that says."""
    for epoch in reversed(epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)):
        takeover = _takeover_of(files, epoch)
        if takeover is not None:
            return takeover[0]
    return None


def _takeover_of(files: Files, epoch: int) -> tuple[str, str] | None:
    """Return stream and claim that a takeover names, None where it cannot be read."""
    with suppress(CorruptCheckpointError, FileNotFoundError):
        name, what = epoch_file(epoch, TAKEOVER), "the takeover of an epoch"
        takeover = read_record(files, name, FileKind.TAKEOVER, {"epoch": epoch}, _TakeoverIds, what)
        return takeover.stream_id, takeover.token
    return None


def require_newest(files: Files, epoch: int) -> None:
    """Raise ConcurrentWriterError if there is a newer claim: then nothing may be deleted."""
    if max(claimed_epochs(files), default=0) <= epoch:
        return
    newest = _newest_claim(files, _stream_of(files))
    if newest > epoch:
        raise ConcurrentWriterError(
            f"{driver_of(files, newest)} of epoch {newest} has taken over {files.url} from epoch "
            f"{epoch}, so nothing is deleted; stop this driver",
            epoch,
            newest,
        )


def driver_of(files: Files, epoch: int) -> str:
    """Return who has an epoch, for messages."""
    try:
        return str(read_claim(files, epoch).driver)
    except (CheckpointError, FileNotFoundError) as error:
        return f"another driver ({error})"


def is_released(files: Files, epoch: int) -> bool:
    """Whether the driver of an epoch has said that it stopped; what cannot be read says nothing."""
    with suppress(CorruptCheckpointError, FileNotFoundError):
        read_release(files, epoch)
        return True
    return False


def require_unused(files: Files, *, is_gone: bool = False) -> None:
    """Raise ConcurrentWriterError if a driver may be at work on a stream.

    *is_gone* vouches for a driver that cannot be seen from here. One that is seen to run is refused
    nevertheless.
    """
    newest = _newest_claim(files, _stream_of(files))
    if not newest or is_released(files, newest):
        return
    driver = read_claim(files, newest).driver
    is_running = driver.is_running()
    if is_running or (is_running is None and not is_gone):
        known = (
            "is running; stop it first"
            if is_running
            else "cannot be seen from this host or container; stop it first, or, where it is gone "
            "for certain (its host is off, its Pod is deleted), say so by --driver-gone"
        )
        raise ConcurrentWriterError(
            f"{driver} has claimed epoch {newest} of {files.url} and {known}", 0, newest
        )


def epoch_file(epoch: int, ending: str) -> str:
    """Return the name of a file of an epoch."""
    return f"{EPOCH_PREFIX}{epoch:010d}.{ending}"


def epochs_with(names: list[str], ending: str) -> list[int]:
    """Return the epochs that have the file with that *ending* among *names*, sorted."""
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match and match[2] == ending)


def epoch_of_file(name: str) -> int | None:
    """Return the epoch that a file of :data:`EPOCH_PREFIX` belongs to; None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _header(stream_id: str, epoch: int) -> dict[str, object]:
    return {"stream_id": stream_id, "epoch": epoch}


def _process(pid: int) -> str:
    """Return what tells a process from an earlier one of that id, empty where nothing does."""
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        # Field 3 is the state, Z when it is dead and nobody has asked; 22 the start, in ticks.
        return f"{boot}:{'dead' if fields[0] == 'Z' else fields[19]}"
    return ""


def _pid_namespace() -> str:
    """Return in which namespace the ids of processes are those of this one, empty if unknown."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _exists(pid: int) -> bool:
    """Whether there is a process of that id; one of another user counts."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True

"""Fencing: of two drivers on one checkpoint the newer one wins, without clocks or locks.

A driver takes a stream over by claiming the next epoch: it creates a file that no other driver can
create::

    epochs/0000000001.claim     the driver: host, process, versions
    epochs/0000000001.takeover  the batches it builds on (checkpoint.log.lineage)
    epochs/0000000001.released  the driver has stopped, nothing of it is running

Every name that a driver writes contains its epoch, so a late driver damages no file of another
one, and its files are void. It checks for a newer claim (:meth:`WriterLease.check`) only around
steps that cannot be void: before the outputs of a batch, after its commit, and before a deletion.

A driver that takes over claims first and reads then. So if a check that *starts* after a record was
written finds no newer claim, every later driver sees that record. That is what the two checks of a
batch are for: before its outputs, because a later driver must run the batch again with the same
input; after its commit, because that batch must not run again. How long a check takes does not
matter, so it runs in the background (:class:`FenceChecks`), and what depends on it waits.

A claim has a random token, which is repeated in everything written under it. So if two copies of a
stream run on separately, with the same epochs, no file of one is mistaken for a file of the other.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from checkpoint.errors import (
    RESTORE,
    AlreadyExistsError,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    Damage,
    UntrustedFileError,
)
from checkpoint.log.record_files import (
    RecordId,
    create_once,
    misplaced,
    missing,
    read_record,
    record_frames,
)
from checkpoint.log.state_files import new_attempt
from checkpoint.storage.files import Files, location
from checkpoint.storage.framing import FileKind
from checkpoint.storage.json_records import JsonRecord

EPOCH_PREFIX = "epochs/"
CLAIM, TAKEOVER, RELEASED = "claim", "takeover", "released"

_log = logging.getLogger("checkpoint")

_E = TypeVar("_E", "Claim", "Takeover")
_NAME = re.compile(re.escape(EPOCH_PREFIX) + rf"(\d{{10,}})\.({CLAIM}|{TAKEOVER}|{RELEASED})")


class DriverProcess(JsonRecord, frozen=True):
    """The process of a driver.

    Args:
        host: name of its host.
        pid: its process id.
        process: distinguishes this process from others of that id; empty if unknown.
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
        """Return this process."""
        pid = os.getpid()
        process = f"{_process(pid) or ':'}:{_pid_namespace()}"
        return cls(socket.gethostname(), pid, process, started_ms, facts or {})

    def is_running(self) -> bool | None:
        """Return whether the process is alive; None on another host or in another container."""
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
    """An epoch, from 1, and its driver; *token* has 64 random bits, different for each claim."""

    stream_id: str
    epoch: int
    driver: DriverProcess
    token: str

    @property
    def name(self) -> str:
        """Name of its file."""
        return epoch_file(self.epoch, CLAIM)


class Takeover(JsonRecord, frozen=True):
    """The batches that an epoch builds on.

    Args:
        stream_id: id of the stream.
        epoch: the epoch.
        parent: the epoch before it; None for the first one of a stream.
        upto_ms: time of the newest committed batch of that lineage that still counts; None if no
            batch does.
        begins: batches after that one which were begun in that lineage, to run again.
        reason: ``"start"``, ``"rewind"`` or ``"import"``.
        token: token of the claim of the epoch; set by ``write_takeover``.
        parent_token: token of the parent; read by ``write_takeover`` if it is empty.
    """

    stream_id: str
    epoch: int
    parent: int | None
    upto_ms: int | None
    begins: tuple[RecordId, ...] = ()
    reason: str = "start"
    token: str = ""
    parent_token: str = ""

    def __post_init__(self) -> None:
        if self.parent is None and (self.upto_ms is not None or self.begins):
            raise ValueError(f"the first epoch of a stream builds on no batch, got {self}")
        if self.parent is not None and not 0 <= self.parent < self.epoch:
            raise ValueError(f"epoch {self.epoch} must build on an older one, got {self.parent}")


@dataclass(frozen=True)
class WriterLease:
    """The ownership of a stream by the driver of an epoch. Small, and can be pickled."""

    files: Files
    claim: Claim

    @property
    def epoch(self) -> int:
        """The epoch of this driver."""
        return self.claim.epoch

    def check(self) -> None:
        """Raise if there is a newer claim; costs one listing.

        Raises ConcurrentWriterError, CorruptCheckpointError or StorageRefusedError.
        """
        claims = claimed_epochs(self.files)
        is_newest = claims[-1:] == [self.epoch]
        if self.epoch not in claims or not (is_newest or self._newest() == self.epoch):
            raise self._fenced()

    def release(self) -> None:
        """Record that this driver has stopped and nothing of it is running any more."""
        with suppress(AlreadyExistsError):
            header = _header(self.claim.stream_id, self.epoch)
            frames = record_frames(FileKind.CLAIM, header, self.claim)
            self.files.create(epoch_file(self.epoch, RELEASED), frames)

    def give_up(self) -> None:
        """Release the lease after another error, which is the one to report."""
        with suppress(CheckpointError):
            self.release()

    def _newest(self) -> int:
        return _newest_claim(self.files, self.claim.stream_id)

    def _fenced(self) -> CheckpointError:
        newest = self._newest()
        if newest <= self.epoch:
            wanted = f"the claim of epoch {self.epoch}, which this driver made"
            return missing(location(self.files, self.claim.name), wanted)
        return ConcurrentWriterError(
            f"{_driver_of(self.files, newest)} has taken over {self.files.url} with epoch "
            f"{newest}; this one, {self.claim.driver} with epoch {self.epoch}, must stop: only one "
            "driver may run on a checkpoint",
            self.epoch,
            newest,
        )


class FenceChecks:
    """The checks of a lease in the background: a batch continues until it needs the result.

    On a local disk a check takes less time than a thread, so it is made when it is waited for.
    """

    def __init__(self, lease: WriterLease) -> None:
        self._lease = lease
        self._newest: Future[None] | None = None
        self._is_due = False

    def start(self) -> None:
        """Start a check; :meth:`wait` returns its result."""
        self._is_due = self._lease.files.at_once < 2
        if not self._is_due:
            thread = ThreadPoolExecutor(1, "checkpoint-fence")
            self._newest = thread.submit(self._lease.check)
            thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the check that was started last. Raises the errors of WriterLease.check."""
        if self._is_due:
            self._lease.check()
            self._is_due = False
        elif self._newest is not None:
            self._newest.result()


def claim_epoch(
    files: Files, stream_id: str, driver: DriverProcess, listed: Files | None = None
) -> WriterLease:
    """Claim the next epoch of a stream: from now on every older driver is fenced.

    *listed* are the same files with an earlier listing, which spares one if it is still right.
    """
    epoch = next_epoch(listed or files)
    while True:
        claim = Claim(stream_id, epoch, driver, new_attempt())
        frames = record_frames(FileKind.CLAIM, _header(stream_id, epoch), claim)
        with suppress(AlreadyExistsError):  # a rival was faster: claim the one after it
            what = f"epoch {epoch} may or may not be claimed"
            create_once(files, claim.name, frames, AlreadyExistsError, what)
            return WriterLease(files, claim)
        epoch = next_epoch(files)


def next_epoch(files: Files) -> int:
    """Return the number of the epoch to claim, after all that have any file."""
    found = map(epoch_of_file, files.list(EPOCH_PREFIX))
    return max((epoch for epoch in found if epoch is not None), default=0) + 1


def claimed_epochs(files: Files) -> list[int]:
    """Return the sorted numbers of all claims."""
    return epochs_with(files.list(EPOCH_PREFIX), CLAIM)


def read_claim(files: Files, epoch: int) -> Claim:
    """Read the claim of an epoch. Raises FileNotFoundError or CorruptCheckpointError."""
    claim = _read_epoch_file(files, epoch, CLAIM, Claim)
    takeover = _takeover_of(files, epoch)
    if takeover and (takeover.stream_id, takeover.token) != (claim.stream_id, claim.token):
        found = "is not the claim under which the takeover of its epoch was written"
        raise CorruptCheckpointError(
            location(files, claim.name), found, "that one", RESTORE, Damage.ANOTHER_COPY
        )
    return claim


def newest_driver(files: Files) -> DriverProcess | None:
    """Return the driver of the newest claim, None without a readable one."""
    with suppress(CorruptCheckpointError, FileNotFoundError, IndexError):
        return read_claim(files, claimed_epochs(files)[-1]).driver
    return None


def read_release(files: Files, epoch: int) -> Claim:
    """Read the claim whose driver has stopped.

    Raises FileNotFoundError or CorruptCheckpointError.
    """
    end = _read_epoch_file(files, epoch, RELEASED, Claim)
    with suppress(FileNotFoundError):  # deleted in the meantime, as this file will be next
        if end != read_claim(files, epoch):
            file = location(files, epoch_file(epoch, RELEASED))
            raise misplaced(file, "is the end of another driver", "that of the epoch's claim")
    return end


def read_takeover(files: Files, epoch: int) -> Takeover:
    """Read the takeover of an epoch. Raises FileNotFoundError or CorruptCheckpointError."""
    return _read_epoch_file(files, epoch, TAKEOVER, Takeover)


def _read_epoch_file(files: Files, epoch: int, ending: str, form: type[_E]) -> _E:
    name = epoch_file(epoch, ending)
    what = "the takeover" if form is Takeover else "the claim"
    kind = FileKind.TAKEOVER if form is Takeover else FileKind.CLAIM
    record = read_record(files, name, kind, {"epoch": epoch}, form, f"{what} of an epoch")
    if record.epoch != epoch:
        found = f"is {what} of epoch {record.epoch}"
        raise misplaced(location(files, name), found, f"of epoch {epoch}")
    return record


def _newest_claim(files: Files, stream_id: str | None = None) -> int:
    """Return the newest genuine claim of a stream, or 0."""
    for epoch in reversed(claimed_epochs(files)):
        if _is_genuine(files, epoch, stream_id):
            return epoch
    return 0


def _is_genuine(files: Files, epoch: int, stream_id: str | None) -> bool:
    """Return whether an epoch was claimed by a driver of the stream, as far as can be known."""
    try:
        found = read_claim(files, epoch).stream_id
    except FileNotFoundError:
        return False  # deleted in the meantime
    except UntrustedFileError as error:
        _log.warning("ignoring a claim: %s", error)
        return False
    except CorruptCheckpointError:
        return True  # it may have been written by a driver
    if stream_id not in (None, found):
        file = location(files, epoch_file(epoch, CLAIM))
        _log.warning("ignoring a claim: %s is of stream %s", file, found)
        return False
    return True


def _stream_of(files: Files) -> str | None:
    """Return the stream of the newest readable takeover, or None."""
    for epoch in reversed(epochs_with(files.list(EPOCH_PREFIX), TAKEOVER)):
        takeover = _takeover_of(files, epoch)
        if takeover is not None:
            return takeover.stream_id
    return None


def _takeover_of(files: Files, epoch: int) -> Takeover | None:
    with suppress(CorruptCheckpointError, FileNotFoundError):
        return read_takeover(files, epoch)
    return None


def require_newest(files: Files, epoch: int) -> None:
    """Raise ConcurrentWriterError if there is a newer claim: then nothing may be deleted."""
    if max(claimed_epochs(files), default=0) <= epoch:
        return
    newest = _newest_claim(files, _stream_of(files))
    if newest > epoch:
        raise ConcurrentWriterError(
            f"{_driver_of(files, newest)} of epoch {newest} has taken over {files.url} from epoch "
            f"{epoch}, so nothing is deleted; stop this driver",
            epoch,
            newest,
        )


def _driver_of(files: Files, epoch: int) -> str:
    """Return the driver of an epoch, for messages."""
    try:
        return str(read_claim(files, epoch).driver)
    except (CheckpointError, FileNotFoundError) as error:
        return f"another driver ({error})"


def is_released(files: Files, epoch: int) -> bool:
    """Return whether the driver of an epoch has recorded that it stopped."""
    with suppress(CorruptCheckpointError, FileNotFoundError):
        read_release(files, epoch)
        return True
    return False


def require_unused(files: Files, *, is_gone: bool = False) -> None:
    """Raise ConcurrentWriterError if a driver may be running on a stream.

    *is_gone* vouches for a driver that is not visible from here, not for one that is seen to run.
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
            else "is not visible from this host or container; stop it first, or, if it is gone for "
            "certain (its host is off, its Pod is deleted), give --driver-gone"
        )
        raise ConcurrentWriterError(
            f"{driver} has claimed epoch {newest} of {files.url} and {known}", 0, newest
        )


def epoch_file(epoch: int, ending: str) -> str:
    """Return the name of a file of an epoch."""
    return f"{EPOCH_PREFIX}{epoch:010d}.{ending}"


def epochs_with(names: list[str], ending: str) -> list[int]:
    """Return the sorted epochs that have the file with that *ending* among *names*."""
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match and match[2] == ending)


def epoch_of_file(name: str) -> int | None:
    """Return the epoch of a file below :data:`EPOCH_PREFIX`; None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _header(stream_id: str, epoch: int) -> dict[str, object]:
    return {"stream_id": stream_id, "epoch": epoch}


def _process(pid: int) -> str:
    """Return the boot id and start time of a process, empty if unknown."""
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        # Field 3 is the state, Z if it is dead and not yet reaped; 22 the start time in ticks.
        return f"{boot}:{'dead' if fields[0] == 'Z' else fields[19]}"
    return ""


def _pid_namespace() -> str:
    """Return the namespace of this process's ids, empty if unknown."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    return ""


def _exists(pid: int) -> bool:
    """Return whether there is a process of that id, of any user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True

"""A disk in memory whose power can fail, and what it has then of what was not synced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from checkpoint.errors import AlreadyExistsError
from checkpoint.storage.files import Names, require_name, require_prefix
from tests.support.faults import SimulatedCrash

Omission = Literal["file sync", "directory sync", "exclusive create"]


class SimulatedDisk:
    """Files on a disk, created in the steps of :class:`checkpoint.LocalFiles`.

    Each step (open, write, sync, link, unlink, sync of the directory, delete) can be the last one.
    What :meth:`power_loss` returns is what the next start of the machine finds::

        disk = SimulatedDisk(crash_at=7)
        with suppress(SimulatedCrash):
            run(disk)
        recover(disk.power_loss(Random(seed).randrange))

    Args:
        crash_at: number of the step before which the process dies, from 1; 0 for never.
        omit: a step that this disk leaves out, to see that somebody notices.
    """

    def __init__(self, crash_at: int = 0, omit: Omission | None = None) -> None:
        self.steps: list[str] = []
        self._crash_at = crash_at
        self._omit = omit
        self._seen: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}

    @property
    def url(self) -> str:
        return "file:///simulated"

    @property
    def at_once(self) -> int:
        return 1

    @property
    def has_crashed(self) -> bool:
        """Whether the step to die at was reached."""
        return 0 < self._crash_at <= len(self.steps)

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        require_name(name)
        inode = _Inode()
        self._step(f"open {name}")
        for chunk in chunks:
            self._step(f"write {name}")
            inode.writes.append(bytes(chunk))
        self._step(f"sync {name}")
        if self._omit != "file sync":
            inode.synced = len(inode.writes)
        self._step(f"link {name}")
        is_taken = name in self._seen and self._omit != "exclusive create"
        if not is_taken:
            self._seen[name] = inode
        self._step(f"sync directory of {name}")
        if self._omit != "directory sync":
            self._sync_directory(name)
        if is_taken:
            raise AlreadyExistsError(f"{name} exists already")
        return len(inode.content)

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        inode = _Inode()
        self._step(f"open {require_name(name)}")
        for chunk in chunks:
            self._step(f"write {name}")
            inode.writes.append(bytes(chunk))
        self._step(f"sync {name}")
        if self._omit != "file sync":
            inode.synced = len(inode.writes)
        self._step(f"rename {name}")
        self._seen[name] = inode
        self._step(f"sync directory of {name}")
        if self._omit != "directory sync":
            self._sync_directory(name)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        content = self.read(name)
        for start in range(0, len(content), chunk_bytes):
            yield content[start : start + chunk_bytes]

    def read(self, name: str) -> bytes:
        require_name(name)
        self._require_alive()
        if name not in self._seen:
            raise FileNotFoundError(name)
        return self._seen[name].content

    def exists(self, name: str) -> bool:
        self._require_alive()
        return require_name(name) in self._seen

    def list(self, prefix: str) -> Names:
        require_prefix(prefix)
        self._require_alive()
        return sorted(name for name in self._seen if name.startswith(prefix))

    def directories(self, directory: str = "") -> Names:
        above = f"{directory}/" if directory else ""
        inside = (name.removeprefix(above).partition("/") for name in self.list(above))
        return sorted({name for name, slash, _ in inside if slash})

    def delete(self, name: str) -> None:
        self._step(f"unlink {require_name(name)}")
        self._seen.pop(name, None)

    def restart(self) -> SimulatedDisk:
        """Return the disk as the next process finds it when only this one died."""
        disk = SimulatedDisk(omit=self._omit)
        disk._seen = dict(self._seen)
        disk._durable = dict(self._durable)
        return disk

    def power_loss(self, choose: Callable[[int], int]) -> SimulatedDisk:
        """Return the disk as the next start of the machine finds it.

        Args:
            choose: returns one of the numbers from 0 to below its argument, such as
                ``random.Random(seed).randrange``.
        """
        disk = SimulatedDisk(omit=self._omit)
        for name in sorted({*self._seen, *self._durable}):
            seen, durable = self._seen.get(name), self._durable.get(name)
            # Entries reach the disk one by one, in any order, unless the directory was synced.
            kept = durable if seen is durable or choose(2) else seen
            if kept is not None:
                survivor = _Inode()
                survivor.writes = [kept.after_power_loss(choose)]
                survivor.synced = 1
                disk._seen[name] = disk._durable[name] = survivor
        return disk

    def flip_bit(self, name: str, at: int) -> None:
        """Damage one bit of a file, as a disk does that grows old."""
        content = bytearray(self.read(name))
        content[at // 8 % len(content)] ^= 1 << at % 8
        inode = _Inode()
        inode.writes = [bytes(content)]
        inode.synced = 1
        self._seen[name] = self._durable[name] = inode

    def _step(self, step: str) -> None:
        self._require_alive()
        self.steps.append(step)
        self._require_alive()

    def _require_alive(self) -> None:
        if self.has_crashed:
            raise SimulatedCrash(f"before step {self._crash_at}: {self.steps[self._crash_at - 1]}")

    def _sync_directory(self, name: str) -> None:
        directory = name.rpartition("/")[0]
        for entry in {*self._seen, *self._durable}:
            if entry.rpartition("/")[0] == directory:
                if entry in self._seen:
                    self._durable[entry] = self._seen[entry]
                else:
                    self._durable.pop(entry, None)


class _Inode:
    """A file: the writes to it, and how many of them were synced."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.synced = 0

    @property
    def content(self) -> bytes:
        return b"".join(self.writes)

    def after_power_loss(self, choose: Callable[[int], int]) -> bytes:
        """The content that is left: each write that was not synced is kept, stale, torn or gone."""
        kept = self.writes[: self.synced]
        for number, write in enumerate(self.writes[self.synced :], self.synced):
            fate = choose(4)
            if fate == 0:
                kept.append(write)
            elif fate == 1:
                kept.append(bytes(len(write)))  # the length arrived, the data did not
            elif fate == 2:
                kept.append(write[: choose(len(write) + 1)])
                break
            else:
                is_last = number == len(self.writes) - 1
                kept.append(b"" if is_last else self.writes[number + 1][: len(write)])
        return b"".join(kept)

"""Shared by the tests of checkpoint: batches to commit, and an operating system that fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import checkpoint.storage.local_files
from checkpoint import (
    CommitLog,
    CommitRecord,
    Files,
    OperatorSnapshot,
    StateFileId,
    StatePartition,
    new_attempt,
    read_state_file,
    write_state_file,
)
from tests.support.faults import SimulatedCrash

PARTITIONS = 2
OPERATORS = ("counts", "Last seen")


class Batches:
    """Commits batches of a stream with two stateful operators, and reads them back."""

    def state(self, uid: str, time_ms: int, partition: int) -> list[bytes]:
        """Return the payloads of a partition after a batch."""
        return [f"{uid} {time_ms} {partition} {block}".encode() * 50 for block in range(3)]

    def partition(self, uid: str, time_ms: int, partition: int) -> StatePartition:
        return StatePartition("stream-1", uid, time_ms, partition, PARTITIONS, "stable")

    def record(self, files: Files, time_ms: int, epoch: int) -> CommitRecord:
        """Write all state files of a batch and return the record that names them."""
        operators = {}
        for uid in OPERATORS:
            refs = []
            for partition in range(PARTITIONS):
                file_id = StateFileId(
                    "stream-1", uid, time_ms, partition, PARTITIONS, "stable", epoch, new_attempt()
                )
                payloads = self.state(uid, time_ms, partition)
                refs.append(write_state_file(files, file_id, ((data, 10) for data in payloads)))
            operators[uid] = OperatorSnapshot("stable", tuple(refs))
        return CommitRecord(
            "stream-1", time_ms // 1000, time_ms, epoch, operators, {"python": "3.11"}
        )

    def commit(self, files: Files, time_ms: int, epoch: int) -> CommitRecord:
        """Write all state files of a batch and commit it."""
        return CommitLog(files).commit(self.record(files, time_ms, epoch))

    def require_whole(self, files: Files, record: CommitRecord) -> None:
        """Assert that every partition of *record* has its content."""
        assert sorted(record.snapshots) == sorted(OPERATORS)
        for uid, commit in record.snapshots.items():
            assert len(commit.files) == PARTITIONS
            for number, ref in enumerate(commit.files):
                wanted = self.partition(uid, record.batch_time_ms, number)
                found = list(read_state_file(files, ref, wanted))
                assert found == self.state(uid, record.batch_time_ms, number)


@pytest.fixture
def batches() -> Batches:
    return Batches()


class FaultyOs:
    """The ``os`` module, recording the calls that change a disk, and failing at one of them.

    Args:
        at: number of the call that fails, from 1; 0 for none. After a crash every call fails.
        error: what to raise instead of that call.
        only: the call to count; None counts all that change a disk.
    """

    _COUNTED = ("mkdir", "open", "write", "fsync", "link", "unlink")

    def __init__(self, at: int, error: BaseException, only: str | None = None) -> None:
        self.calls: list[str] = []
        self.fired = False
        self._at = at
        self._error = error
        self._only = only
        self._count = 0
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in self._COUNTED:
            return function

        def call(*args: Any) -> Any:
            if self.fired and isinstance(self._error, SimulatedCrash):
                raise self._error
            self._count += self._only in (None, name)
            if self._count == self._at and not self.fired and self._only in (None, name):
                self.fired = True
                raise self._error
            result = function(*args)
            self._record(name, args, result)
            return result

        return call

    def _record(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        path = self._paths.get(args[0]) if name in ("write", "fsync") else args[0]
        if name == "open":
            self._paths[result] = args[0]
            if args[1] & os.O_CREAT == 0:
                return
        basename = os.path.basename(str(path))
        self.calls.append(f"{name} {'temp' if basename.endswith('.tmp') else basename}")


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not sync files to the disk.

    No test here cuts the power, and the tests of local files check the order of the calls.
    """
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def faulty_os(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FaultyOs]]:
    """Give local files an operating system that fails, and forget known directories."""

    def install(at: int, error: BaseException, only: str | None = None) -> FaultyOs:
        faulty = FaultyOs(at, error, only)
        monkeypatch.setattr(checkpoint.storage.local_files, "os", faulty)
        monkeypatch.setattr(checkpoint.storage.local_files, "_durable_directories", set())
        return faulty

    yield install
    monkeypatch.undo()

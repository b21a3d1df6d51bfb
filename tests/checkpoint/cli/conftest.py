"""Fixtures of the tests of the commands: real checkpoints, and a way to run a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from checkpoint import (
    BeginRecord,
    CommitRecord,
    DriverProcess,
    GraphSnapshot,
    InputSnapshots,
    ReceivedBlocks,
    RecordId,
    open_files,
    take_over,
    write_graph,
)
from checkpoint.cli.main import main
from checkpoint.log.batch_records import StoreCommit
from checkpoint.state_store import EMPTY, DataValues, LmdbBackend, SnapshotRule, StateStore, StoreId
from checkpoint.state_store.maintenance import snapshot_if_due
from tests.support.stream_model import STREAM, Driver, World

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture(autouse=True)
def _no_sync(no_sync: None) -> None:
    """Do not sync files to the disk."""


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def url(tmp_path: Path, world: World) -> Path:
    """A checkpoint with one stream: seven batches in two starts, the second one stopped."""
    root = tmp_path / "checkpoint"
    for upto_ms in (5000, 7000):
        Driver(open_files(root / STREAM), world).run(upto_ms)
    return root


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A stream with a store, a file input and a receiver, which ended in the middle of a batch."""
    root = tmp_path / "stored"
    files = open_files(root)
    (tmp_path / "local").mkdir(mode=0o700)
    backend = LmdbBackend(files, str(tmp_path / "local"), 1)
    store = StateStore(backend, DataValues())
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    write_graph(owned.lease, GraphSnapshot(STREAM, 0, 1, {"operators": {}}, b""))
    received = ReceivedBlocks(files, STREAM, "socket", 1)
    inputs = InputSnapshots(owned, STREAM)
    inputs.write(0, {"lines": {"files": []}, "socket": {"blocks": []}})
    version_ids = [EMPTY, EMPTY]
    begins, commits = owned.begins, owned.commits
    for number in range(5):
        time_ms = 1000 * (number + 1)
        block = received.write(number, b"payload", 1)
        read = {
            "lines": {"files": [[f"/in/{number}", time_ms, 9]], "settled_ms": time_ms},
            "socket": {"blocks": [block], "records": 1},
        }
        begun = BeginRecord(STREAM, number, time_ms, 1, read)
        begins.begin(replace(begun, inputs_snapshot=inputs.newest, graph=RecordId(0, 1)))
        if number == 4:
            break
        partitions = []
        for partition, version_id in enumerate(version_ids):
            store_id = StoreId(STREAM, "sessions", "default", partition, 2)
            with store.writer(store_id, version_id) as writer:
                writer.put((partition, number), {"n": number})
                writer.put(("last", partition), time_ms)
                committed = writer.commit()
            version_ids[partition] = committed.version_id
            if number == 1:
                snapshot_if_due(backend, store_id, committed.version_id, SnapshotRule(1, 1))
            partitions.append(committed)
        stores = (StoreCommit("sessions", "default", "stable", tuple(partitions)),)
        commits.commit(CommitRecord(STREAM, number, time_ms, 1, {}, {}, stores))
    owned.lease.release()
    return root


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command; return its status, its JSON or lines, and standard error."""

    def call(*arguments: object, as_json: bool = True) -> tuple[int, Any, str]:
        words = [str(argument) for argument in arguments]
        status = main([*words, "--json"] if as_json else words)
        shown = capsys.readouterr()
        if not as_json:
            return status, shown.out.splitlines(), shown.err
        if words[0] in ("read", "diff"):
            return status, [json.loads(line) for line in shown.out.splitlines()], shown.err
        return status, json.loads(shown.out) if shown.out else None, shown.err

    return call

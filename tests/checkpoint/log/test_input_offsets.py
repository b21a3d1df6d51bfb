"""History of inputs: it is complete as long as it is needed."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from checkpoint import (
    BeginRecord,
    CheckpointError,
    CommitRecord,
    ConcurrentWriterError,
    CorruptCheckpointError,
    DriverProcess,
    Files,
    InputPast,
    InputSnapshots,
    NotDurableError,
    OwnedStream,
    RecordId,
    open_files,
    read_plan,
    take_over,
)
from checkpoint.log import input_offsets
from checkpoint.log.input_offsets import (
    Facts,
    files_in,
    input_snapshot_file,
    input_snapshot_ids,
    read_inputs,
)
from checkpoint.state_store import StreamRetention
from tests.support.faults import FAULTS, Effect, FaultyFiles, SimulatedCrash, fault_ids

pytestmark = pytest.mark.usefixtures("no_sync")

STREAM = "stream-1"


def memory() -> Files:
    return open_files(f"memory://{uuid.uuid4()}")


class Driver:
    """Reads files as a source does, and records what each batch was allowed to read."""

    def __init__(self, files: Files) -> None:
        self.owned: OwnedStream = take_over(files, STREAM, DriverProcess.of_this_process(0))
        self.inputs = InputSnapshots(self.owned, STREAM)
        self.begins, self.commits = self.owned.begins, self.owned.commits
        self.retention = StreamRetention(self.owned)
        past = self.inputs.past("lines")
        self.taken = dict.fromkeys(files_in(past.facts), past.upto_ms)
        self.read = {ms: tuple(files_in(facts)) for ms, facts in past.batches.items()}
        for time_ms, paths in self.read.items():
            if time_ms > past.upto_ms:
                self.taken |= dict.fromkeys(paths, time_ms)
        self.last_ms = max([0, *self.owned.plan.committed_ms])
        if past.facts is None:
            self.inputs.write(self.last_ms, self.snapshot(self.last_ms))

    def snapshot(self, upto_ms: int) -> dict[str, Facts]:
        taken = [path for path, time_ms in self.taken.items() if time_ms <= upto_ms]
        return {"lines": {"files": taken}}

    def batch(self, time_ms: int, there: Iterable[str]) -> None:
        """Run a batch; one that was begun before runs with its original input."""
        if time_ms not in self.read:
            new = tuple(path for path in there if path not in self.taken)
            self.begin(time_ms, {"lines": {"files": new} if new else {}})
            self.taken |= dict.fromkeys(new, time_ms)
            self.read[time_ms] = new
        number = time_ms // 1000
        self.commits.commit(CommitRecord(STREAM, number, time_ms, self.owned.epoch, {}, {}))
        self.last_ms = time_ms

    def begin(self, time_ms: int, said: Facts) -> None:
        begun = BeginRecord(STREAM, time_ms // 1000, time_ms, self.owned.epoch, said)
        self.begins.begin(replace(begun, inputs_snapshot=self.inputs.newest))

    def retire(self, oldest_ms: int) -> None:
        def retire_inputs(upto_ms: int, batches: int) -> RecordId | None:
            return self.inputs.retire(upto_ms, batches, len(self.taken), self.snapshot)

        assert self.retention.retire(oldest_ms, retire_inputs=retire_inputs) == []


def past_of(files: Files) -> InputPast:
    return read_inputs(files, read_plan(files)).past("lines")


def begun(files: Files, batches: int) -> Driver:
    """A stream in which each batch has read a file."""
    driver = Driver(files)
    there: list[str] = []
    for number in range(1, batches + 1):
        there.append(f"/{number}")
        driver.batch(1000 * number, there)
    return driver


def test_what_batches_read_is_known() -> None:
    """The history goes back to the start of the stream; a new input has none."""
    files = memory()
    begun(files, 2)
    batches = {1000: {"files": ["/1"]}, 2000: {"files": ["/2"]}}
    assert past_of(files) == InputPast(0, {"files": []}, batches)
    assert read_inputs(files, read_plan(files)).past("other") == InputPast(0, None, {})


def test_a_stream_of_which_nothing_is_known_has_no_past() -> None:
    """Without snapshots and begin records there is no history."""
    assert past_of(memory()) == InputPast(-1, None, {})


@pytest.mark.parametrize("few", [1, 10])
def test_a_snapshot_stands_for_records_that_are_deleted(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """A snapshot is written once it replaces enough begin records."""
    monkeypatch.setattr(input_offsets, "_FEW_BATCHES", few)
    files = memory()
    driver = begun(files, 5)
    driver.retire(4000)
    is_due = few == 1
    kept = [4000, 5000] if is_due else [1000, 2000, 3000, 4000, 5000]
    assert [found.time_ms for found in driver.begins.all_ids()] == kept
    assert [found.time_ms for found in input_snapshot_ids(files)] == ([3999] if is_due else [0])
    found = past_of(files)
    assert files_in(found.facts) == (["/1", "/2", "/3"] if is_due else [])
    assert sorted(found.batches) == kept
    driver.batch(6000, ["/6"])
    assert driver.begins.read(6000).inputs_snapshot == (
        RecordId(3999, 1) if is_due else RecordId(0, 1)
    )
    driver.retire(5000)
    assert len(input_snapshot_ids(files)) == 1


def test_snapshots_and_records_stay_few() -> None:
    """Snapshots of a growing directory replace more and more batches, up to a limit."""
    files = memory()
    driver = Driver(files)
    driver.taken = {f"/old/{number}": 0 for number in range(5000)}
    written = set()
    for number in range(1, 201):
        driver.batch(1000 * number, [*driver.taken, f"/{number}"])
        if number % 10 == 0:
            driver.retire(1000 * number)
            written |= set(input_snapshot_ids(files))
            assert len(driver.begins.all_ids()) <= 80
            assert len(input_snapshot_ids(files)) <= 2
    assert len(written) == 4
    assert len(files_in(past_of(files).facts)) == 5179


def test_a_snapshot_is_written_once() -> None:
    """The same snapshot again is allowed; another one comes from another driver."""
    driver = begun(memory(), 1)
    for _ in range(2):
        driver.inputs.write(500, {"lines": {"files": []}})
    with pytest.raises(ConcurrentWriterError, match="is another snapshot of inputs"):
        driver.inputs.write(500, {"lines": {"files": ["/1"]}})


def test_a_driver_that_was_replaced_writes_none() -> None:
    """A fenced driver cannot write a snapshot."""
    files = memory()
    older = begun(files, 1)
    Driver(files)
    with pytest.raises(ConcurrentWriterError):
        older.inputs.write(500, {})


Lose = Callable[[Files], str]


def lose_snapshot(files: Files) -> str:
    return input_snapshot_file(max(input_snapshot_ids(files)))


def lose_begin(files: Files) -> str:
    return next(iter(files.list("batches/")))


@pytest.mark.parametrize("lose", [lose_snapshot, lose_begin])
@pytest.mark.parametrize("is_retired", [False, True])
def test_what_is_lost_is_missed(
    monkeypatch: pytest.MonkeyPatch, lose: Lose, is_retired: bool
) -> None:
    """A lost record is an error; its files are not read as new."""
    monkeypatch.setattr(input_offsets, "_FEW_BATCHES", 1)
    files = memory()
    driver = begun(files, 5)
    if is_retired:
        driver.retire(4000)
        driver.batch(6000, ["/6"])
    lost = lose(files)
    content = files.read(lost)
    files.delete(lost)
    with pytest.raises(CorruptCheckpointError, match=f"{lost} is missing"):
        past_of(files)
    files.create(lost, [content])
    assert past_of(files).facts is not None


@pytest.mark.parametrize("place", [30, -40])
def test_damage(tmp_path: Path, place: int) -> None:
    """Damaged and renamed snapshots are rejected."""
    files = open_files(tmp_path)
    begun(files, 1)
    path = tmp_path / input_snapshot_file(RecordId(0, 1))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError):
        past_of(files)
    data[place] ^= 1
    path.write_bytes(data)
    path.rename(tmp_path / input_snapshot_file(RecordId(500, 1)))
    with pytest.raises(CorruptCheckpointError, match=r"is of 0 ms of epoch 1"):
        past_of(files)


def test_what_is_taken_back_is_read_again() -> None:
    """Batches of a fenced driver do not count as read."""
    files = memory()
    driver = begun(files, 3)
    driver.begin(4000, {"lines": {"files": ["/4"]}})
    later = Driver(files)
    assert later.read[4000] == ("/4",)
    driver.begin(5000, {"lines": {"files": ["/5"]}})
    assert 5000 not in past_of(files).batches


FAULTS_OF_INPUTS: list[tuple[Effect, type[BaseException]]] = [*FAULTS, ("after", NotDurableError)]
ARRIVALS = {1000: ("/a", "/b"), 2000: (), 3000: ("/c",), 4000: ("/d",), 5000: ("/e",)}


def run_all(files: Files, read: dict[int, tuple[str, ...]]) -> None:
    """Run the remaining batches, and record what each may have read."""
    driver = Driver(files)
    for time_ms, paths in driver.read.items():
        assert read.setdefault(time_ms, paths) == paths
    there: list[str] = []
    for time_ms, paths in ARRIVALS.items():
        there += paths
        if time_ms > driver.last_ms:
            driver.batch(time_ms, there)
            assert read.setdefault(time_ms, driver.read[time_ms]) == driver.read[time_ms]
        if time_ms in (3000, 5000):
            driver.retire(time_ms)


@pytest.mark.deep
@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(("effect", "error"), FAULTS_OF_INPUTS, ids=fault_ids(FAULTS_OF_INPUTS))
def test_a_fault_at_any_operation_loses_no_file_and_repeats_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
    effect: Effect,
    error: type[BaseException],
) -> None:
    """After any fault, two more drivers find each file in exactly one batch."""
    monkeypatch.setattr(input_offsets, "_FEW_BATCHES", 1)
    for at in itertools.count(1):
        files = open_files(tmp_path / str(at)) if place == "local" else memory()
        faulty = FaultyFiles(files, at, effect, error)
        read: dict[int, tuple[str, ...]] = {}
        try:
            run_all(faulty, read)
        except (SimulatedCrash, CheckpointError):
            assert faulty.fired
        for _ in range(2):
            run_all(files, read)
        assert sorted(path for paths in read.values() for path in paths) == [
            "/a", "/b", "/c", "/d", "/e"
        ]  # fmt: skip
        for name in files.list(""):  # all places in memory are one
            files.delete(name)
        if not faulty.fired:
            break
    assert at > 20

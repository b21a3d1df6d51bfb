"""The file log: what a batch reads is on disk before it reads, and is never forgotten too early."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import (
    BeginRecord,
    CheckpointError,
    ConcurrentWriterError,
    CorruptCheckpointError,
    FileBase,
    FileBatch,
    FileHistory,
    FileLog,
    Files,
    FileStamp,
    NotDurableError,
    Owner,
    RecordId,
    StorageRefusedError,
    StorageUncertainError,
    compaction_due,
    open_files,
    take_over,
)
from checkpoint.testing import Effect, FaultyFiles, SimulatedCrash
from tests.support.faults import FAULTS, fault_ids

pytestmark = pytest.mark.usefixtures("no_sync")

START = FileBase(0, new_since_ms=500, settled_ms=0, there_before=(FileStamp("/old", 5, 1),))


def memory() -> Files:
    return open_files(f"memory://{uuid.uuid4()}")


def stamps(*paths: str) -> tuple[FileStamp, ...]:
    return tuple(FileStamp(path, 900, len(path)) for path in paths)


def batch(time_ms: int, *paths: str) -> FileBatch:
    return FileBatch(time_ms, time_ms - 1, stamps(*paths))


def begun(files: Files) -> FileLog:
    log = FileLog(files, "stream-1", "lines")
    log.compact(START)
    return log


def history_of(log: FileLog) -> FileHistory:
    history = log.load()
    assert history is not None
    return history


def test_a_log_that_was_never_begun_is_none() -> None:
    """So the reader begins it."""
    assert FileLog(memory(), "stream-1", "lines").load() is None


def test_what_was_recorded_is_read_back() -> None:
    """Start, batches in order, and how far they come; a batch without files has no record."""
    log = begun(memory())
    assert history_of(log) == FileHistory(START, {})
    assert history_of(log).settled_ms == 0
    first, second = batch(2000, "/in/ü \udcff.txt", "/in/b"), batch(10_000, "/in/c")
    log.record(second)
    log.record(first)
    history = history_of(log)
    assert list(history.batches.items()) == [(2000, first), (10_000, second)]
    assert history.settled_ms == 9999


def test_thousands_of_files_are_one_record() -> None:
    """A record is written in blocks, so it has no limit of its own."""
    log = begun(memory())
    many = batch(1000, *(f"/in/{number}" for number in range(2500)))
    log.record(many)
    assert history_of(log).batches[1000] == many


def test_recording_the_same_again_is_fine() -> None:
    """A driver that does not know whether it came through does it again."""
    log = begun(memory())
    log.record(batch(1000, "/a"))
    log.record(batch(1000, "/a"))
    log.compact(START)
    assert history_of(log).batches == {1000: batch(1000, "/a")}


def test_a_batch_that_another_driver_recorded_is_left_alone() -> None:
    """The second driver has to stop."""
    log = begun(memory())
    log.record(batch(1000, "/a"))
    with pytest.raises(ConcurrentWriterError, match="batch at 1000 ms is recorded already"):
        log.record(batch(1000, "/b"))
    assert history_of(log).batches[1000] == batch(1000, "/a")


def test_the_newest_record_that_names_a_file_counts() -> None:
    """A record that appeared late names files that a later batch has taken."""
    log = begun(memory())
    log.record(batch(1000, "/a", "/b"))
    log.record(batch(2000, "/b", "/c"))
    batches = history_of(log).batches
    assert [batches[time].files for time in (1000, 2000)] == [stamps("/a"), stamps("/b", "/c")]


def test_a_base_stands_for_the_batches_before_it() -> None:
    """They are deleted, as older bases are; what came later stays."""
    files = memory()
    log = begun(files)
    for time_ms in (1000, 2000, 3000):
        log.record(batch(time_ms, f"/{time_ms}"))
    base = FileBase(2000, 500, 1999, START.there_before, stamps("/1000", "/2000"))
    log.compact(base)
    assert history_of(log) == FileHistory(base, {3000: batch(3000, "/3000")})
    assert len(files.list("")) == 2
    log.compact(FileBase(3000, 500, 2999, (), stamps("/3000")))
    assert history_of(log).settled_ms == 2999


def test_logs_of_several_inputs_are_kept_apart() -> None:
    """They share the directory of the stream."""
    files = memory()
    begun(files).record(batch(1000, "/a"))
    other = FileLog(files, "stream-1", "Other lines")
    assert other.load() is None
    other.compact(START)
    assert history_of(other).batches == {}


def test_a_log_without_its_base_is_damaged() -> None:
    """Without it nobody knows what was taken."""
    files = memory()
    log = begun(files)
    log.record(batch(1000, "/a"))
    files.delete("files/lines/bases/0000000000000000-e1.base")
    with pytest.raises(CorruptCheckpointError, match="bases is missing; expected the base"):
        log.load()


@pytest.mark.parametrize("lost", [1000, 3000, 4000])
def test_a_record_that_is_lost_is_missed(lost: int) -> None:
    """The newest is named by the batch that was begun with it, each other one by the next: nobody
    takes the batch for one without files, and its files for new ones."""
    files = memory()
    log = begun(files)
    assert log.newest_records == {"files/lines": RecordId(0, 1)}
    for time_ms in (1000, 3000, 4000):
        log.record(batch(time_ms, f"/{time_ms}"))
    again = FileLog(files, "stream-1", "lines", 2, log.newest_records)
    history_of(again)
    again.record(batch(6000, "/6000"))
    name = f"files/lines/batches/{lost:016d}-e1.batch"
    files.delete(name)
    with pytest.raises(CorruptCheckpointError, match=f"{name} is missing; .*restore the file"):
        FileLog(files, "stream-1", "lines", 3, again.newest_records).load()
    base = FileBase(lost, 500, lost, (), stamps(f"/{lost}"))
    again.compact(base)
    assert history_of(FileLog(files, "stream-1", "lines", 3, again.newest_records)).base == base


def test_a_log_that_is_lost_is_missed() -> None:
    """Also where no batch had files yet: then it is a single file."""
    files = memory()
    log = begun(files)
    files.delete("files/lines/bases/0000000000000000-e1.base")
    with pytest.raises(CorruptCheckpointError, match="bases is missing; expected the base"):
        FileLog(files, "stream-1", "lines", 2, log.newest_records).load()


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_damaged_record_is_never_taken_for_a_good_one(position: int) -> None:
    """Wherever the damage is."""
    files = memory()
    log = begun(files)
    log.record(batch(1000, *(f"/in/{number}" for number in range(20))))
    name = "files/lines/batches/0000000000001000-e1.batch"
    data = bytearray(files.read(name))
    data[position % len(data)] ^= 0x10
    files.delete(name)
    files.create(name, [bytes(data)])
    with pytest.raises(CorruptCheckpointError):
        log.load()


def test_a_record_of_another_stream_is_refused() -> None:
    """A directory that was copied together from two is not recovered from."""
    files = memory()
    begun(files)
    with pytest.raises(CorruptCheckpointError, match="stream_id 'stream-1'; expected stream_id"):
        FileLog(files, "stream-2", "lines").load()


@pytest.mark.parametrize("ids", [("", "lines", 1), ("stream-1", "", 1), ("stream-1", "lines", -1)])
def test_a_log_needs_ids(ids: Any) -> None:
    """They are what keeps logs apart."""
    with pytest.raises(ValueError, match="needs the ids of stream and input"):
        FileLog(memory(), *ids)


FAULTS_OF_FILES: list[tuple[Effect, type[BaseException]]] = [*FAULTS, ("after", NotDurableError)]


class Driver:
    """Takes files as a reader does, and remembers what the batches were allowed to read."""

    def __init__(self) -> None:
        self.read: dict[int, tuple[FileStamp, ...]] = {}

    def run(self, files: Files, arrivals: dict[int, tuple[str, ...]], compact_at: int) -> None:
        log = FileLog(files, "stream-1", "lines")
        history = log.load()
        if history is None:
            log.compact(START)
            history = FileHistory(START, {})
        taken = {stamp.path: stamp for stamp in history.base.taken}
        for known in history.batches.values():
            taken |= {stamp.path: stamp for stamp in known.files}
        there: list[str] = []
        for time_ms, paths in arrivals.items():
            there += paths
            if time_ms in history.batches:
                self.read[time_ms] = history.batches[time_ms].files
                continue
            new = stamps(*(path for path in there if path not in taken))
            if time_ms > max(history.batches, default=history.base.upto_ms) and new:
                log.record(FileBatch(time_ms, time_ms, new))
                self.read[time_ms] = new
                taken |= {stamp.path: stamp for stamp in new}
            if time_ms == compact_at and history.base.upto_ms < time_ms:
                known_upto = tuple(taken.values())
                log.compact(FileBase(time_ms, 500, time_ms, START.there_before, known_upto))


ARRIVALS = {1000: ("/a", "/b"), 2000: (), 3000: ("/c",), 4000: ("/d",), 5000: ("/e",)}


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(("effect", "error"), FAULTS_OF_FILES, ids=fault_ids(FAULTS_OF_FILES))
def test_a_fault_at_any_operation_loses_no_file_and_repeats_none(
    tmp_path: Path, place: str, effect: Effect, error: type[BaseException]
) -> None:
    """Two more drivers find every file in exactly one batch, the one that may have read it."""
    for at in itertools.count(1):
        files = open_files(tmp_path / str(at)) if place == "local" else memory()
        faulty = FaultyFiles(files, at, effect, error)
        driver = Driver()
        try:
            driver.run(faulty, ARRIVALS, compact_at=3000)
        except (SimulatedCrash, CheckpointError):
            assert faulty.fired
        read_before = dict(driver.read)
        for _ in range(2):
            driver.run(files, ARRIVALS, compact_at=3000)
            for time_ms, found in read_before.items():
                assert driver.read[time_ms] == found
            paths = [stamp.path for found in driver.read.values() for stamp in found]
            assert sorted(paths) == ["/a", "/b", "/c", "/d", "/e"]
            read_before = dict(driver.read)
        if not faulty.fired:
            break
    assert at > 10


def test_a_crash_anywhere_in_a_compaction_is_finished_by_the_next(tmp_path: Path) -> None:
    """The history is the same at every moment, and no file is left behind."""
    for at in itertools.count(1):
        files = open_files(tmp_path / str(at))
        log = begun(files)
        for time_ms in (1000, 2000, 3000):
            log.record(batch(time_ms, f"/{time_ms}"))
        base = FileBase(2000, 500, 1999, START.there_before, stamps("/1000", "/2000"))
        faulty = FaultyFiles(files, at, "after")
        try:
            FileLog(faulty, "stream-1", "lines").compact(base)
        except SimulatedCrash:
            assert faulty.fired
        history = history_of(log)
        known = {stamp.path for stamp in history.base.taken}
        known |= {stamp.path for each in history.batches.values() for stamp in each.files}
        assert known == {"/1000", "/2000", "/3000"}
        log.compact(base)
        assert history_of(log) == FileHistory(base, {3000: batch(3000, "/3000")})
        assert len(files.list("")) == 2
        if not faulty.fired:
            break
    assert at > 4


def test_an_uncertain_record_that_cannot_be_read_back_stops() -> None:
    """Nobody can tell, so nobody guesses."""

    class Dead(FaultyFiles):
        def read(self, name: str) -> bytes:
            raise StorageRefusedError("gone")

    files = memory()
    begun(files)
    log = FileLog(Dead(files, 1, "after", StorageUncertainError), "stream-1", "lines")
    with pytest.raises(StorageUncertainError, match=r"1000 ms may be recorded or not: .* gone"):
        log.record(batch(1000, "/a"))


def test_a_base_before_the_one_that_counts_is_refused(tmp_path: Path) -> None:
    """It would not count, and what it stands for would be gone; after a rewind it is the newest."""
    log = FileLog(open_files(tmp_path), "stream-1", "lines")
    log.compact(FileBase(2000, 0, 0))
    log.record(FileBatch(1000, 1000, stamps("/1000")))
    with pytest.raises(ValueError, match="cannot follow the one up to 2000 ms"):
        log.compact(FileBase(1000, 0, 0, (), stamps("/1000")))
    loaded = log.load()
    assert loaded is not None
    assert loaded.batches[1000].files == stamps("/1000")


def test_what_an_older_driver_records_after_it_was_replaced_does_not_count() -> None:
    """The batch is the newer driver's; of what was begun before, it has the same files."""
    files = memory()
    first = take_over(files, "stream-1", Owner.of_this_process(0))
    older = FileLog(files, "stream-1", "lines", 1)
    older.compact(FileBase(0, 0, 0))
    older.record(batch(1000, "/a"))
    first.begins.begin(BeginRecord("stream-1", 0, 1000, 1, {}))
    older.record(batch(2000, "/not-begun"))
    take_over(files, "stream-1", Owner.of_this_process(0))
    older.record(batch(3000, "/late"))
    newer = FileLog(files, "stream-1", "lines", 2)
    assert history_of(newer).batches == {1000: batch(1000, "/a")}
    newer.record(batch(2000, "/late", "/not-begun"))
    assert list(history_of(newer).batches) == [1000, 2000]
    with pytest.raises(ConcurrentWriterError, match="so nothing is deleted"):
        older.compact(FileBase(1000, 0, 0))
    assert list(history_of(newer).batches) == [1000, 2000]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4000))
def test_compaction_writes_little_and_keeps_few_records(sizes: list[int]) -> None:
    """A directory that only grows: bases write a few times its files, records stay bounded."""
    base_files = batches = batch_files = written = total = 0
    for size in sizes:
        batches, batch_files, total = batches + 1, batch_files + size, total + size
        if compaction_due(base_files, batches, batch_files):
            base_files, batches, batch_files = total, 0, 0
            written += base_files
        assert batches <= 1000
    assert written <= 6 * total

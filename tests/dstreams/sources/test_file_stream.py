"""Files of a directory as a source: each file in one batch, recorded before it is read."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import open_files
from dstreams.common.settings import UNLIMITED_MS
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.file_formats import FixedRecords
from dstreams.sources.file_listing import FileStamp, stamps_in
from dstreams.sources.file_stream import FileSource
from dstreams.sources.source import PlannedInput, SourceEnvironment, SourceStorage
from tests.support.surroundings import Driven, Surroundings, Written


def put(path: Path, text: str, modified_ms: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(0, modified_ms * 1_000_000))


def names(planned: PlannedInput) -> list[str]:
    return [file.path.rpartition("/")[2] for file in files_of(planned)]


def files_of(planned: PlannedInput) -> tuple[FileStamp, ...]:
    return stamps_in(planned.facts)


def started(source: FileSource, environment: SourceEnvironment) -> Driven:
    reader = source.open(environment)
    reader.start()
    return Driven(reader)


def text_files(directory: Path | str, **parameters: Any) -> FileSource:
    parameters = {"new_since_ms": 0, **parameters}
    return FileSource(f"file://{directory}", "textFileStream", **parameters)


@pytest.mark.parametrize("directory", ["", " ", None, 3, b"/data"])
def test_a_directory_that_is_no_text_is_refused(directory: Any) -> None:
    """The message has the operation, the value and its type."""
    with pytest.raises(InvalidStreamError, match="directory of textFileStream must be a path"):
        FileSource(directory, "textFileStream")


def test_a_relative_file_url_is_refused_at_construction() -> None:
    """It is known to be wrong before anything starts."""
    with pytest.raises(InvalidStreamError, match="must be absolute"):
        FileSource("file:data")


def test_a_filter_that_takes_no_path_is_refused_at_construction() -> None:
    """A function of another number of arguments would fail in every batch."""
    takes_two: Any = lambda path, other: True  # noqa: E731
    with pytest.raises(InvalidStreamError, match=r"f\(path\) -> bool"):
        FileSource("/data", filter=takes_two)


def test_the_name_says_operation_and_place() -> None:
    """The name appears in messages and on the page."""
    assert FileSource("/data/in", "textFileStream").name == "textFileStream(/data/in)"


def test_each_new_file_is_in_one_batch(surroundings: Surroundings, tmp_path: Path) -> None:
    """Files there before are ignored, new ones taken once, a batch without any is empty."""
    put(tmp_path / "old.txt", "", 10_000)
    reader = started(text_files(tmp_path, new_since_ms=10_000), surroundings.environment())
    put(tmp_path / "a.txt", "", 10_500)
    put(tmp_path / "b.txt", "", 11_500)
    plans = [reader.plan(time_ms) for time_ms in (11_000, 12_000, 13_000)]
    assert [names(plan) for plan in plans] == [["a.txt"], ["b.txt"], []]
    assert files_of(plans[0])[0].path == f"file://{tmp_path}/a.txt"
    assert [plan.records for plan in plans] == [None, None, 0]
    assert [plan.description for plan in plans] == [
        "new files: a.txt",
        "new files: b.txt",
        "no new files",
    ]


def test_files_that_were_there_may_count(surroundings: Surroundings, tmp_path: Path) -> None:
    """All within the window, or by a maximum age also those that are older."""
    surroundings.clock.time_ms = 101_000
    put(tmp_path / "a.txt", "", 10_000)
    put(tmp_path / "b.txt", "", 90_000)
    for since_ms, max_age_ms, expected in [
        (95_000, None, []),
        (50_000, None, ["b.txt"]),
        (None, None, ["b.txt"]),
        (None, 20_000, ["b.txt"]),
        (None, UNLIMITED_MS, ["a.txt", "b.txt"]),
        (95_000, UNLIMITED_MS, []),
        (50_000, UNLIMITED_MS, ["b.txt"]),
    ]:
        source = text_files(tmp_path, new_since_ms=since_ms, max_age_ms=max_age_ms)
        assert names(started(source, surroundings.environment()).plan(101_000)) == expected


def test_settings_say_what_a_stream_does_not(surroundings: Surroundings, tmp_path: Path) -> None:
    """The age of files, for all streams and for one."""
    surroundings.clock.time_ms = 901_000
    for number in range(3):
        put(tmp_path / f"{number}.txt", "", 1000 + number)
    environment = surroundings.environment(file_max_age_ms=UNLIMITED_MS)
    reader = started(text_files(tmp_path, max_files=2), environment)
    first = reader.plan(900_000)
    assert names(first) == ["0.txt", "1.txt"]
    assert first.description == "new files: 0.txt, 1.txt; 1 more wait"
    assert names(reader.plan(901_000)) == ["2.txt"]
    own = text_files(tmp_path, max_files=3, max_age_ms=1000)
    assert names(started(own, environment).plan(900_000)) == []
    assert names(started(own, environment).plan(1900)) == ["0.txt", "1.txt", "2.txt"]


def test_the_remember_window_is_rounded_up_to_whole_batches(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """60 s in batches of 7 s is 63 s."""
    surroundings.clock.time_ms = 100_000
    put(tmp_path / "a.txt", "", 37_000)
    put(tmp_path / "b.txt", "", 37_001)
    reader = started(text_files(tmp_path), surroundings.environment(batch_ms=7000))
    assert names(reader.plan(100_000)) == ["b.txt"]


def test_files_of_a_clock_that_was_set_back_are_read(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """Batch times stay ahead of the clock, and new files are still new."""
    hour_ms = 3_600_000
    reader = started(text_files(tmp_path, new_since_ms=hour_ms), surroundings.environment())
    put(tmp_path / "old.txt", "", 5000)
    surroundings.clock.time_ms = hour_ms + 1000
    assert names(reader.plan(hour_ms + 1000)) == []
    surroundings.clock.time_ms = 10_000
    put(tmp_path / "a.txt", "", 9500)
    assert names(reader.plan(hour_ms + 2000)) == ["a.txt"]


def test_ignored_files_are_named_in_the_log_once(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Name, reason and remedy, in one line; many are counted."""
    for number in range(12):
        put(tmp_path / f"{number:02}.txt", "", 9000)
    reader = started(text_files(tmp_path, new_since_ms=10_000), surroundings.environment())
    for time_ms in (11_000, 12_000):
        assert files_of(reader.plan(time_ms)) == ()
    (message,) = caplog.messages
    assert message.startswith(f"textFileStream(file://{tmp_path}): ignored 12 files: ")
    assert "00.txt (modified at 1970-01-01T00:00:09.000+00:00, which is not after" in message
    assert "not new; to read it, set newFilesOnly=False)" in message
    assert message.endswith(" and 2 more")


def test_unfinished_and_changed_files_are_named(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Skipped names are logged as information, changed files as a warning."""
    caplog.set_level(logging.INFO)
    put(tmp_path / "_a.txt", "", 500)
    put(tmp_path / "b.txt", "one", 500)
    reader = started(text_files(tmp_path), surroundings.environment())
    assert names(reader.plan(1000)) == ["b.txt"]
    put(tmp_path / "b.txt", "one two", 1500)
    for time_ms in (2000, 3000):
        assert names(reader.plan(time_ms)) == []
    name = f"textFileStream(file://{tmp_path})"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"{name}: skipped 1 files: file://{tmp_path}/_a.txt (name begins with _)"),
        (
            "WARNING",
            f"{name}: 1 files changed after they were read, and are not read again: "
            f"file://{tmp_path}/b.txt; write new data to a new file",
        ),
    ]


def test_files_that_were_there_before_are_named_at_the_start(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a maximum age, these files are recorded by path."""
    caplog.set_level(logging.INFO)
    put(tmp_path / "a.txt", "", 500)
    source = text_files(tmp_path, new_since_ms=1000, max_age_ms=UNLIMITED_MS)
    reader = started(source, surroundings.environment())
    put(tmp_path / "b.txt", "", 400)
    assert names(reader.plan(2000)) == ["b.txt"]
    (message,) = caplog.messages
    assert f"skipped 1 files that existed at the start: file://{tmp_path}/a.txt" in message


def test_a_missing_directory_is_a_warning_and_may_appear(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it is missing, also when it vanishes; what was taken is remembered."""
    directory = tmp_path / "later"
    reader = started(text_files(directory), surroundings.environment())
    assert files_of(reader.plan(1000)) == ()
    assert caplog.messages == [
        f"textFileStream(file://{directory}): no such directory; "
        "batches stay empty until it appears"
    ]
    directory.mkdir()
    put(directory / "a.txt", "", 1500)
    assert names(reader.plan(2000)) == ["a.txt"]
    directory.rename(tmp_path / "away")
    for time_ms in (3000, 4000):
        assert files_of(reader.plan(time_ms)) == ()
    assert len(caplog.messages) == 2
    (tmp_path / "away").rename(directory)
    assert files_of(reader.plan(500_000)) == ()


def test_start_refuses_what_is_no_directory(surroundings: Surroundings, tmp_path: Path) -> None:
    """A file will never become a directory."""
    put(tmp_path / "a.txt", "", 0)
    reader = text_files(tmp_path / "a.txt").open(surroundings.environment())
    with pytest.raises(SourceError, match="is not a directory"):
        reader.start()


def test_a_failed_listing_fails_the_batch_and_a_later_one_takes_the_files(
    surroundings: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was chosen, so nothing is lost, however long it lasts."""
    reader = started(text_files(tmp_path), surroundings.environment())
    put(tmp_path / "a.txt", "", 500)

    def fail(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "scandir", fail)
        with pytest.raises(SourceError, match="cannot be listed: Input/output error"):
            reader.plan(1000)
    assert names(reader.plan(3_600_000)) == ["a.txt"]


def test_a_filter_decides_and_its_failure_is_told(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """The message names the filter, the stream and the path; the next batch asks again."""
    put(tmp_path / "a.csv", "", 500)
    put(tmp_path / "b.txt", "", 500)
    reader = started(
        text_files(tmp_path, filter=lambda path: path.endswith(".csv")), surroundings.environment()
    )
    assert names(reader.plan(1000)) == ["a.csv"]
    answers = iter([ZeroDivisionError("by zero"), True, True])

    def sometimes(path: str) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reader = started(text_files(tmp_path, filter=sometimes), surroundings.environment())
    with pytest.raises(SourceError, match=r"sometimes.*, the filter of textFile.* failed for file"):
        reader.plan(1000)
    assert names(reader.plan(2000)) == ["a.csv", "b.txt"]


def test_a_file_of_odd_records_fails_one_batch_and_the_next_has_the_others(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """The message names the file and says what is wrong with it."""
    put(tmp_path / "bad.bin", "1234567", 400)
    put(tmp_path / "good.bin", "1234567890", 500)
    source = text_files(tmp_path, format=FixedRecords(5))
    reader = started(source, surroundings.environment())
    with pytest.raises(
        SourceError,
        match=r"bad.bin \(its 7 bytes are not a multiple of the record length, 5 bytes: "
        r"the last record has 2\)",
    ):
        reader.plan(1000)
    planned = reader.plan(2000)
    assert (names(planned), planned.records) == (["good.bin"], 2)


def test_stopping_takes_what_is_there_and_nothing_that_comes_later(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """A graceful stop runs batches as long as files wait."""
    reader = started(text_files(tmp_path, max_files=2), surroundings.environment())
    for number in range(3):
        put(tmp_path / f"{number}.txt", "", 500)
    reader.stop_receiving()
    put(tmp_path / "late.txt", "", 500)
    taken = []
    while reader.has_pending():
        taken.append(names(reader.plan(1000 * (len(taken) + 1))))
    assert taken == [["0.txt", "1.txt"], ["2.txt"]]
    reader.stop_receiving()
    assert not reader.has_pending()
    reader.close()
    reader.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_stopping_without_new_files_leaves_nothing_pending(
    surroundings: Surroundings, tmp_path: Path, is_there: bool
) -> None:
    """Also when the directory is missing, or the reader was never started."""
    directory = tmp_path if is_there else tmp_path / "later"
    put(tmp_path / ".hidden", "", 500)
    reader = text_files(directory).open(surroundings.environment())
    reader.stop_receiving()
    assert not reader.has_pending()
    reader.start()
    reader.stop_receiving()
    assert not reader.has_pending()


# The record ----------------------------------------------------------------------------------


@pytest.fixture
def recording(surroundings: Surroundings) -> Callable[..., SourceEnvironment]:
    """Make the environment of a stream with a checkpoint."""

    def environment(written: Written, **settings: Any) -> SourceEnvironment:
        files = open_files(f"memory://{uuid.uuid4()}")
        there = surroundings.environment(**settings)
        return replace(there, storage=SourceStorage(files, "stream", "files", 1), past=written.past)

    return environment


def test_a_batch_says_which_files_it_reads(
    recording: Callable[..., SourceEnvironment], tmp_path: Path
) -> None:
    """Its begin record has them; that of a batch without files has none."""
    written = Written()
    reader = written.started(text_files(tmp_path).open(recording(written)))
    written.batch(reader, 1000)
    path = tmp_path / "a.txt"
    put(path, "one", 1500)
    written.batch(reader, 2000)
    assert written.batches == {
        1000: {"end": None, "records": 0, "description": "no new files"},
        2000: {
            "start": None,
            "end": 1,
            "files": [[f"file://{path}", 1500, 3]],
            "settled_ms": 2000,
            "description": "new files: a.txt",
        },
    }


def test_a_reader_after_an_earlier_one_repeats_and_loses_nothing(
    recording: Callable[..., SourceEnvironment], tmp_path: Path
) -> None:
    """Batches that were begun have their files again, later ones the rest."""
    source, written = text_files(tmp_path, max_files=1), Written()
    first = written.started(source.open(recording(written)))
    put(tmp_path / "a.txt", "", 500)
    put(tmp_path / "b.txt", "", 600)
    before = [names(written.batch(first, time_ms)) for time_ms in (1000, 2000)]
    put(tmp_path / "c.txt", "", 2500)
    put(tmp_path / "b.txt", "changed", 2600)
    second = written.started(source.open(recording(written)))
    times = (1000, 1500, 2000, 900_000, 901_000)
    again = [names(written.batch(second, time_ms)) for time_ms in times]
    assert before == [["a.txt"], ["b.txt"]]
    assert again == [["a.txt"], [], ["b.txt"], ["c.txt"], []]


def test_a_start_that_takes_longer_than_batches_can_be_taken_up(
    recording: Callable[..., SourceEnvironment], surroundings: Surroundings, tmp_path: Path
) -> None:
    """Killed after the first batch, when more of them are older than the start, it loses none."""
    surroundings.clock.time_ms = 4500
    source, written = text_files(tmp_path), Written()
    environment = recording(written)
    first = written.started(source.open(environment), 1000)
    put(tmp_path / "a.txt", "", 1500)
    assert names(written.batch(first, 2000)) == ["a.txt"]
    put(tmp_path / "b.txt", "", 2500)
    surroundings.clock.time_ms = 9000
    second = written.started(source.open(environment))
    assert [names(written.batch(second, time_ms)) for time_ms in (2000, 3000, 4000)] == [
        ["a.txt"],
        ["b.txt"],
        [],
    ]


def test_a_restart_knows_what_was_there_at_the_first_start(
    recording: Callable[..., SourceEnvironment], tmp_path: Path
) -> None:
    """Files that appear while no driver runs are new, regardless of the new definition's time."""
    put(tmp_path / "old.txt", "", 100)
    rules: dict[str, Any] = {"max_age_ms": UNLIMITED_MS}
    written = Written()
    first = text_files(tmp_path, new_since_ms=1000, **rules).open(recording(written))
    written.batch(written.started(first), 2000)
    put(tmp_path / "meanwhile.txt", "", 50)
    again = text_files(tmp_path, new_since_ms=9_000_000, **rules).open(recording(written))
    assert names(written.batch(written.started(again), 10_000_000)) == ["meanwhile.txt"]


@pytest.mark.parametrize("max_age_ms", [None, UNLIMITED_MS])
def test_a_crash_in_any_batch_loses_no_file_and_repeats_none(
    recording: Callable[..., SourceEnvironment], tmp_path: Path, max_age_ms: int | None
) -> None:
    """Before its begin record is there, or after: what that says is what it reads."""
    arrivals = [["old"], ["a", "b"], [], ["c"], [*"defg"], ["h"], *[[]] * 4]
    for crash, is_begun in itertools.product(range(len(arrivals)), (False, True)):
        directory = tmp_path / f"{crash}-{is_begun}"
        directory.mkdir()
        source = text_files(directory, new_since_ms=0, max_files=2, max_age_ms=max_age_ms)
        put(directory / "old", "", 0)
        written = Written()
        reader = written.started(source.open(recording(written)))
        read: dict[int, list[str]] = {}
        for batch, new in enumerate(arrivals):
            for name in new:
                if name != "old":
                    put(directory / name, "", batch * 1000 - 500)
            time_ms = batch * 1000 + 1
            if batch == crash:
                if is_begun:
                    read[time_ms] = names(written.batch(reader, time_ms))
                else:
                    reader.plan(time_ms)
                reader = written.started(source.open(recording(written)))
                known = {ms: found for ms, found in read.items() if ms in written.batches}
                assert {ms: names(written.batch(reader, ms)) for ms in known} == known
            read[time_ms] = names(written.batch(reader, time_ms))
            if time_ms > 3001:
                written.retire(reader, time_ms - 3000)
        assert sorted(name for found in read.values() for name in found) == list("abcdefgh")


def test_old_batches_become_one_snapshot(
    recording: Callable[..., SourceEnvironment], tmp_path: Path
) -> None:
    """Snapshots replace the data of single batches: a restart reads no file twice."""
    source, written = text_files(tmp_path, max_age_ms=UNLIMITED_MS), Written()
    reader = written.started(source.open(recording(written)))
    for number in range(100):
        put(tmp_path / f"{number:03}", "", number * 1000)
        assert len(names(written.batch(reader, (number + 1) * 1000))) == 1
        assert reader.snapshot_size() == number + 1
        if number:
            written.retire(reader, number * 1000)
            assert len(reader._selection._settled) <= 2
    again = written.started(source.open(recording(written)))
    assert names(written.batch(again, 100_000)) == ["099"]
    assert names(written.batch(again, 101_000)) == []


def test_without_a_record_there_is_nothing_to_retire(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """Without a checkpoint directory the memory of the driver has to do."""
    reader = started(text_files(tmp_path), surroundings.environment())
    for number in range(9):
        put(tmp_path / f"{number}.txt", "", number * 1000 + 500)
        assert len(names(reader.plan(number * 1000 + 1000))) == 1
        assert len(reader._selection._settled) == 1
    reader.release(reader.end)
    assert names(reader.plan(10_000)) == []


# On Spark ------------------------------------------------------------------------------------


def test_the_files_of_a_batch_are_one_rdd_of_lines(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """All lines of all files, twice the same, planned without a job."""
    reader = started(text_files(tmp_path), surroundings.environment(sc))
    put(tmp_path / "a.txt", "one\ntwo\n", 100)
    put(tmp_path / "b.txt", "grün", 200)
    put(tmp_path / "c.txt", "", 300)
    planned = reader.plan(1000)
    for _ in range(2):
        assert sorted(reader.read(planned).collect()) == ["grün", "one", "two"]


def test_a_batch_without_files_has_no_partitions(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """No new file costs no task."""
    reader = started(text_files(tmp_path), surroundings.environment(sc))
    rdd = reader.read(reader.plan(1000))
    assert rdd.getNumPartitions() == 0
    assert rdd.collect() == []


def test_a_file_that_was_deleted_before_it_is_read_is_named(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """It fails where the RDD is made, so that no state is built on what cannot be read."""
    reader = started(text_files(tmp_path), surroundings.environment(sc))
    put(tmp_path / "a.txt", "one", 100)
    planned = reader.plan(1000)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(SourceError, match=r"cannot be opened: .*/a.txt.*; it has a.txt"):
        reader.read(planned)


def test_special_characters_in_names_are_read_exactly(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """A name is never taken for a list or a pattern, in the directory and in the file."""
    directory = tmp_path / "in, [x]{y,z}*"
    directory.mkdir()
    file_names = [
        "a,b",
        "a?b",
        "a*b",
        "a[b]c",
        "a{b,c}d",
        "a\\b",
        "a b",
        "a%20b",
        "a#b",
        "ü",
        "~^$",
    ]
    for name in file_names:
        put(directory / name, name, 100)
    source = FileSource(str(directory), new_since_ms=0)
    reader = started(source, surroundings.environment(sc))
    assert sorted(reader.read(reader.plan(1000)).collect()) == sorted(file_names)


def test_one_file_of_many_that_look_alike_is_read_alone(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """Escaping a comma makes a pattern; it matches that one file only."""
    for name, modified_ms in [("a,b", 200), ("axb", 100), ("ab", 100)]:
        put(tmp_path / name, name, modified_ms)
    source = FileSource(str(tmp_path), new_since_ms=100)
    reader = started(source, surroundings.environment(sc))
    assert reader.read(reader.plan(1000)).collect() == ["a,b"]


def test_a_name_with_a_colon_is_left_out_and_named(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The other files of the batch are read."""
    caplog.set_level(logging.WARNING)
    put(tmp_path / "12:30.txt", "no", 100)
    put(tmp_path / "good.txt", "yes", 100)
    reader = started(text_files(tmp_path), surroundings.environment(sc))
    assert reader.read(reader.plan(1000)).collect() == ["yes"]
    assert "12:30.txt (a colon in the name" in caplog.text


def test_other_file_systems_are_reached_through_hadoop(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """A mount table of Hadoop represents other schemes than file."""
    sc._jsc.hadoopConfiguration().set(
        "fs.viewfs.mounttable.tests.link./in", tmp_path.absolute().as_uri()
    )
    put(tmp_path / "a,1.txt", "through viewfs", 100)
    source = FileSource("viewfs://tests/in", new_since_ms=0)
    reader = started(source, surroundings.environment(sc))
    planned = reader.plan(1000)
    assert [file.path for file in files_of(planned)] == ["viewfs://tests/in/a,1.txt"]
    assert reader.read(planned).collect() == ["through viewfs"]


def test_a_password_in_the_directory_is_not_told() -> None:
    """The name of the source is in logs, on the page and in metrics."""
    source = FileSource("hdfs://me:secret@host/in?sig=abc", "textFileStream", new_since_ms=0)
    assert source.name == "textFileStream(hdfs://me:***@host/in?sig=***)"
    assert source.directory == "hdfs://me:secret@host/in?sig=abc"

"""New text files as lines: each file in one batch, whatever it is called."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.text_files import TextFileSource
from tests.support.surroundings import Surroundings


def put(path: Path, text: str, modified_ms: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(0, modified_ms * 1_000_000))


@pytest.mark.parametrize("directory", ["", " ", None, 3, b"/data"])
def test_a_directory_that_is_no_text_is_refused(directory: Any) -> None:
    """The message has the value and its type."""
    with pytest.raises(InvalidStreamError, match="directory of textFileStream must be a path"):
        TextFileSource(directory)


def test_a_relative_file_url_is_refused_at_construction() -> None:
    """It is known to be wrong before anything starts."""
    with pytest.raises(InvalidStreamError, match="must be absolute"):
        TextFileSource("file:data")


def test_the_name_says_operation_and_place() -> None:
    """The name appears in messages and on the page."""
    assert TextFileSource("/data/in").name == "textFileStream(/data/in)"


def test_each_new_file_is_in_one_batch(surroundings: Surroundings, tmp_path: Path) -> None:
    """Files there before are ignored, new ones taken once, a batch without any is empty."""
    surroundings.clock.time_ms = 10_000
    put(tmp_path / "old.txt", "", 10_000)
    reader = TextFileSource(f"file://{tmp_path}").open(surroundings.environment())
    reader.start()
    put(tmp_path / "a.txt", "", 10_500)
    put(tmp_path / "b.txt", "", 11_500)
    plans = [reader.plan(time_ms) for time_ms in (11_000, 12_000, 13_000)]
    assert [plan.content for plan in plans] == [
        (f"file://{tmp_path}/a.txt",),
        (f"file://{tmp_path}/b.txt",),
        (),
    ]
    assert [plan.records for plan in plans] == [None, None, 0]
    assert [plan.description for plan in plans] == [
        "new files: a.txt",
        "new files: b.txt",
        "no new files",
    ]


def test_files_may_count_from_a_time_before_the_start(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """The time at which the stream was defined, or 0 for every file within the window."""
    surroundings.clock.time_ms = 100_000
    put(tmp_path / "a.txt", "", 50_000)
    put(tmp_path / "b.txt", "", 90_000)
    for since_ms, count in [(None, 0), (60_000, 1), (0, 2)]:
        reader = TextFileSource(f"file://{tmp_path}", since_ms).open(surroundings.environment())
        assert len(reader.plan(101_000).content) == count


def test_the_remember_window_is_rounded_up_to_whole_batches(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    """60 s in batches of 7 s is 63 s."""
    put(tmp_path / "a.txt", "", 37_000)
    put(tmp_path / "b.txt", "", 37_001)
    reader = TextFileSource(f"file://{tmp_path}").open(surroundings.environment(batch_ms=7000))
    assert reader.plan(100_000).content == (f"file://{tmp_path}/b.txt",)


def test_ignored_files_are_named_in_the_log_once(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Name and reason, in one line; many are counted."""
    surroundings.clock.time_ms = 10_000
    for number in range(12):
        put(tmp_path / f"{number:02}.txt", "", 9000)
    reader = TextFileSource(f"file://{tmp_path}").open(surroundings.environment())
    for time_ms in (11_000, 12_000):
        assert reader.plan(time_ms).content == ()
    (message,) = caplog.messages
    assert message.startswith(f"textFileStream(file://{tmp_path}): ignored 12 files: ")
    assert f"{tmp_path}/00.txt (modified at 1970-01-01T00:00:09.000+00:00" in message
    assert message.endswith(" and 2 more")


def test_a_missing_directory_is_a_warning_and_may_appear(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it is missing, also when it vanishes again; batches are empty meanwhile."""
    directory = tmp_path / "later"
    reader = TextFileSource(f"file://{directory}").open(surroundings.environment())
    reader.start()
    assert reader.plan(1000).content == ()
    assert caplog.messages == [
        f"textFileStream(file://{directory}): no such directory; "
        "batches stay empty until it appears"
    ]
    directory.mkdir()
    put(directory / "a.txt", "", 1500)
    assert len(reader.plan(2000).content) == 1
    (directory / "a.txt").unlink()
    directory.rmdir()
    for time_ms in (3000, 4000):
        assert reader.plan(time_ms).content == ()
    assert len(caplog.messages) == 2


def test_start_refuses_what_is_no_directory(surroundings: Surroundings, tmp_path: Path) -> None:
    """A file will never become a directory."""
    put(tmp_path / "a.txt", "", 0)
    reader = TextFileSource(f"file://{tmp_path}/a.txt").open(surroundings.environment())
    with pytest.raises(SourceError, match="is not a directory"):
        reader.start()


def test_a_failed_listing_fails_the_batch_and_a_later_one_takes_the_files(
    surroundings: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was chosen, so nothing is lost within the window."""
    reader = TextFileSource(f"file://{tmp_path}").open(surroundings.environment())
    reader.start()
    put(tmp_path / "a.txt", "", 500)

    def fail(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "scandir", fail)
        with pytest.raises(SourceError, match="cannot be listed: Input/output error"):
            reader.plan(1000)
    assert reader.plan(2000).content == (f"file://{tmp_path}/a.txt",)


def test_stopping_leaves_nothing_pending(surroundings: Surroundings, tmp_path: Path) -> None:
    """Files wait where they are, so a graceful stop does not wait for them."""
    reader = TextFileSource(f"file://{tmp_path}").open(surroundings.environment())
    reader.stop_receiving()
    assert not reader.has_pending()
    reader.close()
    reader.close()


def test_the_files_of_a_batch_are_one_rdd_of_lines(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """All lines of all files, twice the same, planned without a job."""
    reader = TextFileSource(str(tmp_path), 0).open(surroundings.environment(sc))
    put(tmp_path / "a.txt", "one\ntwo\n", 100)
    put(tmp_path / "b.txt", "grün", 200)
    put(tmp_path / "c.txt", "", 300)
    planned = reader.plan(1000)
    for _ in range(2):
        assert sorted(reader.rdd(planned).collect()) == ["grün", "one", "two"]


def test_a_batch_without_files_has_no_partitions(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """No new file costs no task."""
    reader = TextFileSource(str(tmp_path)).open(surroundings.environment(sc))
    rdd = reader.rdd(reader.plan(1000))
    assert rdd.getNumPartitions() == 0
    assert rdd.collect() == []


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
    reader = TextFileSource(str(directory), 0).open(surroundings.environment(sc))
    reader.start()
    assert sorted(reader.rdd(reader.plan(1000)).collect()) == sorted(file_names)


def test_one_file_of_many_that_look_alike_is_read_alone(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """Escaping a comma makes a pattern; it matches that one file only."""
    for name, modified_ms in [("a,b", 200), ("axb", 100), ("ab", 100)]:
        put(tmp_path / name, name, modified_ms)
    reader = TextFileSource(str(tmp_path), 100).open(surroundings.environment(sc))
    assert reader.rdd(reader.plan(1000)).collect() == ["a,b"]


def test_a_name_with_a_colon_is_left_out_and_named(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The other files of the batch are read."""
    caplog.set_level(logging.WARNING)
    put(tmp_path / "12:30.txt", "no", 100)
    put(tmp_path / "good.txt", "yes", 100)
    reader = TextFileSource(str(tmp_path), 0).open(surroundings.environment(sc))
    assert reader.rdd(reader.plan(1000)).collect() == ["yes"]
    assert "12:30.txt (a colon in the name" in caplog.text


def test_other_file_systems_are_reached_through_hadoop(
    surroundings: Surroundings, tmp_path: Path, sc: SparkContext
) -> None:
    """A mount table of Hadoop's stands for any scheme that is not file."""
    sc._jsc.hadoopConfiguration().set(
        "fs.viewfs.mounttable.tests.link./in", tmp_path.absolute().as_uri()
    )
    put(tmp_path / "a,1.txt", "through viewfs", 100)
    reader = TextFileSource("viewfs://tests/in", 0).open(surroundings.environment(sc))
    reader.start()
    planned = reader.plan(1000)
    assert planned.content == ("viewfs://tests/in/a,1.txt",)
    assert reader.rdd(planned).collect() == ["through viewfs"]

"""Each batch as a directory that is complete or not there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from checkpoint import StorageRefusedError
from dstreams.errors import InvalidStreamError, OutputConflictError
from dstreams.sinks import hadoop_directory
from dstreams.sinks.hadoop_directory import HadoopDirectory, is_of_hadoop
from dstreams.sinks.output_batch import OutputBatch
from dstreams.sinks.text_files import TextFilesWriter
from tests.support.batches import batch_at
from tests.support.jobs import count_jobs


def lines(directory: Path) -> list[str]:
    """The lines of a complete output, in the order of its partitions."""
    assert (directory / "_SUCCESS").exists()
    parts = sorted(directory.glob("part-*"))
    return [line for part in parts for line in part.read_text().splitlines()]


def explode(record: int) -> int:
    raise ValueError(f"record {record}")


@pytest.mark.parametrize(
    ("prefix", "suffix", "directory"),
    [
        ("out/counts", None, "out/counts-1000"),
        ("out/counts", "txt", "out/counts-1000.txt"),
        ("out/counts", "", "out/counts-1000"),
        ("", None, "-1000"),
        ("out/", "a.b", "out/-1000.a.b"),
    ],
)
def test_a_batch_is_named_as_spark_names_it(
    prefix: str, suffix: str | None, directory: str
) -> None:
    """Prefix, dash, batch time, and the suffix behind a dot if there is one."""
    assert TextFilesWriter(prefix, suffix).directory(1000) == directory


@pytest.mark.parametrize(
    ("prefix", "suffix", "message"),
    [
        (None, None, r"prefix of saveAsTextFiles must be a str, got None \(NoneType\)"),
        (b"out", None, r"prefix of saveAsTextFiles must be a str, got b'out' \(bytes\)"),
        ("out", 3, r"suffix of saveAsTextFiles must be a str, got 3 \(int\)"),
    ],
)
def test_a_name_that_is_no_text_is_refused(prefix: Any, suffix: Any, message: str) -> None:
    """The message has the parameter, the value and its type."""
    with pytest.raises(InvalidStreamError, match=message):
        TextFilesWriter(prefix, suffix)


def test_a_batch_is_written_with_one_job_and_leaves_nothing_else(
    tmp_path: Path, sc: SparkContext
) -> None:
    """The text of each record is a line; the hidden directory has become the visible one."""
    output = TextFilesWriter(f"{tmp_path}/out/counts", "txt")
    rdd = sc.parallelize([("a", 1), "grün", 3], 2)
    assert count_jobs(sc, lambda: output(batch_at(1000), rdd)) == 1
    assert lines(tmp_path / "out" / "counts-1000.txt") == ["('a', 1)", "grün", "3"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["counts-1000.txt"]


def test_an_empty_batch_is_a_complete_directory(tmp_path: Path, sc: SparkContext) -> None:
    """Readers can distinguish a batch without records from a batch that is not written yet."""
    TextFilesWriter(f"{tmp_path}/counts")(batch_at(1000), sc.emptyRDD())
    assert lines(tmp_path / "counts-1000") == []


def test_nobody_sees_a_batch_that_is_not_complete(tmp_path: Path, sc: SparkContext) -> None:
    """While the job runs the directory is not there, and what is there is hidden."""
    folder = str(tmp_path)

    def visible(record: int) -> list[str]:
        return sorted(path.name for path in Path(folder).iterdir() if path.name[0] not in "._")

    TextFilesWriter(f"{tmp_path}/counts")(batch_at(1000), sc.parallelize([1, 2], 2).map(visible))
    assert lines(tmp_path / "counts-1000") == ["[]", "[]"]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_has_success_stays(
    tmp_path: Path, sc: SparkContext, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """No directory of the parent has _SUCCESS and then goes away."""
    monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", {"file"} if at_once else set())
    seen: set[str] = set()
    rename = HadoopDirectory._rename

    def looked(self: HadoopDirectory, source: Any, target: Any) -> None:
        assert list(tmp_path.glob(".*/.*/_SUCCESS"))
        seen.update(path.parent.name for path in tmp_path.glob("*/_SUCCESS"))
        rename(self, source, target)

    monkeypatch.setattr(HadoopDirectory, "_rename", looked)
    TextFilesWriter(f"{tmp_path}/counts")(batch_at(1000), sc.parallelize([1, 2], 2))
    assert seen == set()
    assert [path.name for path in tmp_path.iterdir()] == ["counts-1000"]


@pytest.mark.deep
def test_a_failed_batch_leaves_nothing(tmp_path: Path, sc: SparkContext) -> None:
    """Neither the directory nor what was written on the way to it."""
    output = TextFilesWriter(f"{tmp_path}/counts")
    rdd = sc.parallelize([1, 2], 1)
    with pytest.raises(Py4JJavaError, match="ValueError: record"):
        output(batch_at(1000), rdd.map(explode))
    assert list(tmp_path.iterdir()) == []
    output(batch_at(1000), rdd)
    assert lines(tmp_path / "counts-1000") == ["1", "2"]


def changed_at(path: Path) -> tuple[int, int, int]:
    """Say which file it is and when it was written, but not when it was read."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def test_a_batch_that_runs_again_changes_nothing(tmp_path: Path, sc: SparkContext) -> None:
    """No reader that has seen it sees it go or change, and no job runs."""
    output = TextFilesWriter(f"{tmp_path}/counts")
    output(batch_at(1000), sc.parallelize(range(6), 3))
    before = changed_at(tmp_path / "counts-1000")
    again = sc.parallelize([7], 1)
    assert count_jobs(sc, lambda: output(batch_at(1000), again)) == 0
    assert lines(tmp_path / "counts-1000") == ["0", "1", "2", "3", "4", "5"]
    assert changed_at(tmp_path / "counts-1000") == before


@pytest.mark.parametrize("at_once", [True, False])
def test_a_driver_that_was_replaced_while_it_wrote_changes_nothing(
    tmp_path: Path, sc: SparkContext, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """It stood still in its job, and the one that took over has published the batch meanwhile."""
    schemes = {"file"} if at_once else set()
    monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", schemes)
    output, batch = TextFilesWriter(f"{tmp_path}/out/counts"), batch_at(1000)
    newer = sc.parallelize(["newer"], 1)

    def stand_still(self: Any, path: str) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", schemes)
        self.saveAsTextFile(path)
        output(batch, newer)

    older = sc.parallelize(["older"], 1)
    monkeypatch.setattr(type(older), "saveAsTextFile", stand_still)
    output(batch, older)
    assert lines(tmp_path / "out" / "counts-1000") == ["newer"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["counts-1000"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            batch_at(1000, "stream-other"),
            r"counts-1000 is the output of batch 0 of stream-0-test, not of batch 0 of stream-othe"
            r"r: two streams write there, .* its own prefix, or remove file:\S+/counts-1000 and re",
        ),
        (
            batch_at(1000, beginning="bb"),
            r"counts-1000 has batch 0 of stream-0-test with token aa; this is batch 0 with token "
            r"bb\. .* older copy .* remove file:\S+/counts-1000 and the directories of later times",
        ),
    ],
    ids=["another stream", "another history"],
)
def test_a_complete_output_is_never_replaced(
    tmp_path: Path,
    sc: SparkContext,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
    other: OutputBatch,
    message: str,
) -> None:
    """The error says whose it is, why that may be, and what to remove; no job runs."""
    if not at_once:
        monkeypatch.setattr(hadoop_directory, "RENAME_AT_ONCE", set())
    output = TextFilesWriter(f"{tmp_path}/counts")
    output(batch_at(1000, beginning="aa"), sc.parallelize([1]))

    def write() -> None:
        with pytest.raises(OutputConflictError, match=message):
            output(other, sc.parallelize([2]))

    assert count_jobs(sc, write) == 0
    assert lines(tmp_path / "counts-1000") == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["counts-1000"]


def test_batches_that_were_left_out(tmp_path: Path, sc: SparkContext) -> None:
    """Output of another history is found before the first batch after the gap."""
    output = TextFilesWriter(f"{tmp_path}/counts")
    for time_ms in (1000, 3000):
        output(batch_at(time_ms, beginning="aa"), sc.parallelize([time_ms]))
    gap = OutputBatch("stream-0-test", 8, 9000, "bb", range(1, 8))
    with pytest.raises(
        OutputConflictError, match=r"counts-3000 has batch 2 .*; this is batch 8 with"
    ):
        output(gap, sc.parallelize([1]))
    shutil.rmtree(tmp_path / "counts-3000")
    output(gap, sc.parallelize([1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts-1000", "counts-9000"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path, sc: SparkContext) -> None:
    """By the first batch of the next one; what other streams and other outputs write stays."""
    token = "0123456789abcdef" * 2
    others = [
        f".counts-7000.csv.stream-0-test.{token}",
        f".counts-7000.json.stream-other.{token}",
        f".others-7000.json.stream-0-test.{token}",
        ".counts-7000.json.mine",
    ]
    for name in (f".counts-7000.json.stream-0-test.{token}", *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-00000").touch()
    TextFilesWriter(f"{tmp_path}/counts", "json")(batch_at(8000), sc.parallelize([1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "counts-8000.json"])


def test_a_url_that_hadoop_does_not_know_is_that_of_an_object_store(
    sc: SparkContext, tmp_path: Path
) -> None:
    """Paths, file: and hdfs: belong to Hadoop; an error names an unknown scheme."""
    assert is_of_hadoop(sc, f"{tmp_path}/a")
    assert is_of_hadoop(sc, f"file:{tmp_path}/a")
    assert is_of_hadoop(sc, "hdfs://somewhere/a")
    assert not is_of_hadoop(sc, "memory://somewhere/a")
    with pytest.raises(StorageRefusedError, match="nobodys://x/a-1000"):
        TextFilesWriter("nobodys://x/a")(batch_at(1000), sc.parallelize([1]))


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_is_no_complete_output_is_not_replaced(
    tmp_path: Path, sc: SparkContext, make: Any
) -> None:
    """It may be somebody else's; the message says what to remove, and no job runs."""
    output = TextFilesWriter(f"{tmp_path}/counts")
    make(tmp_path / "counts-1000")

    def write() -> None:
        with pytest.raises(FileExistsError, match=r"remove the directory file:\S+/counts-1000,"):
            output(batch_at(1000), sc.parallelize([1]))

    assert count_jobs(sc, write) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["counts-1000"]

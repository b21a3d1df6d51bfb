"""Lines that workers read of files themselves are the lines that the JVM reads of them."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, DStream, StreamingContext
from dstreams.common.settings import Settings
from dstreams.sources.file_formats import TextLines
from dstreams.sources.file_formats import line_ranges as ranges_of
from dstreams.sources.file_listing import FileStamp
from dstreams.spark.jvm import compressed_endings
from dstreams.spark.lines import LineRange, LineRanges
from dstreams.testing import BatchDriver, ManualClock
from tests.support.jobs import count_jobs

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.aggregates import Count  # noqa: E402 - needs pyarrow
from dstreams.arrow.decode_lines import LinesToBlocks, decoder_of  # noqa: E402 - needs pyarrow
from dstreams.arrow.schemas import schema_of  # noqa: E402

JVM_READS = "mapreduce.input.linerecordreader.line.maxlength"
ENDS = [b"\n"] * 6 + [b"\r\n", b"\r\n", b"\r", b"\n\n", b"\r\r\n", b"\n\r"]
ODD_BYTES = [b"\xff", b"\xed\xa0\x80", b"\xe2\x82", b"\xf0\x90\x80", b"\xc0\x80", b"\xf5", b"\x00"]


class Sale(NamedTuple):
    shop: str
    cents: int | None


@contextmanager
def jvm_reads(sc: SparkContext) -> Iterator[None]:
    """Let workers leave the lines to the JVM: by a setting whose value is the default."""
    conf = sc._jsc.hadoopConfiguration()
    conf.set(JVM_READS, str(2**31 - 1))
    try:
        yield
    finally:
        conf.unset(JVM_READS)


def files_of(driver: BatchDriver, directory: Path) -> DStream[str]:
    """The lines of the files of a directory, whenever they were written."""
    return driver.context.fileStream(str(directory), newFilesOnly=False, maxFileAge=math.inf)


def odd_file(rng: random.Random) -> bytes:
    """Lines of JSON, nearly all of them records, between ends of all kinds."""
    made = [b"\xef\xbb\xbf"] if rng.random() < 0.1 else []
    ends = rng.choice([[b"\n"], [b"\r\n"], ENDS])
    is_odd = rng.random() < 0.5
    for _ in range(rng.choice([0, 1, 3, 40])):
        shop = rng.choice(["north", "süd", "鍵😀", "\\ud83d", ""]).encode()
        if is_odd and rng.random() < 0.1:
            shop += rng.choice(ODD_BYTES)
        cents = b"x" if is_odd and rng.random() < 0.05 else b"%d" % rng.randrange(100)
        made.append(b'{"shop": "%b", "cents": %b}' % (shop, cents))
        made.append(rng.choice(ends))
    if made and rng.random() < 0.3:
        made.pop()
    if rng.random() < 0.2:
        made.append(rng.choice(ODD_BYTES))
    return b"".join(made)


def put(directory: Path, contents: list[bytes]) -> list[FileStamp]:
    directory.mkdir(exist_ok=True)
    stamps = []
    for number, content in enumerate(contents):
        path = directory / f"lines-{number:03}"
        path.write_bytes(content)
        stamps.append(FileStamp(f"file://{path}", 0, len(content)))
    return stamps


@pytest.mark.deep
def test_random_files_are_the_lines_of_the_jvm(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines in order, including invalid UTF-8."""
    rng = random.Random(17)
    schema = schema_of({"line": str}, "toBlocks")
    to_blocks = LinesToBlocks(decoder_of("text", schema, "toBlocks"), "toBlocks", "FAILFAST", 7)
    for number in range(3):
        files = put(tmp_path / f"{number}", [odd_file(rng) for _ in range(60)])
        rdd: Any = TextLines().rdd(sc, files)
        expected = rdd.collect()
        with monkeypatch.context() as patch:
            patch.setattr("dstreams.sources.file_formats._LOCAL_OPEN_BYTES", 10**number)
            found = ranges_of(files, (), 2, False)
        rdd.line_ranges = lambda found=found: found
        blocks: Any = to_blocks(rdd).collect()
        assert max(block.num_rows for block in blocks) <= 7
        assert [line for block in blocks for line in block.column("line").to_pylist()] == expected


def read(sc: SparkContext, directory: Path, contents: list[bytes], **options: Any) -> Any:
    """The rows of a batch of files, and what is said of its input."""
    with BatchDriver(sc) as driver:
        blocks = files_of(driver, directory).toBlocks(Sale, **options)
        assert blocks.schema is not None
        rows = driver.output(blocks.toRows(Sale))
        counts = driver.output(blocks.map(lambda block: block.num_rows))
        driver.run(1)
        put(directory, contents)
        (info,) = driver.run(1)
    assert sum(counts[-1] or []) == len(rows[-1] or [])
    return rows[-1], info.inputs[0].records, info.inputs[0].metadata.get("rejected")


@pytest.mark.deep
@pytest.mark.parametrize("format", ["json", "csv"])
def test_streams_of_random_files_are_the_same_by_both_ways(
    sc: SparkContext, tmp_path: Path, format: str
) -> None:
    """The records, the number of lines, and the number of skipped lines."""
    rng = random.Random(format)
    contents = [odd_file(rng) for _ in range(60)]
    if format == "csv":
        contents = [
            content.replace(b'{"shop": ', b"").replace(b', "cents": ', b",").replace(b"}", b"")
            for content in contents
        ]
    options = {"format": format, "mode": "DROPMALFORMED"}
    by_workers = read(sc, tmp_path / "workers", contents, **options)
    with jvm_reads(sc):
        by_jvm = read(sc, tmp_path / "jvm", contents, **options)
    assert by_workers == by_jvm
    assert by_workers[1] > 100
    assert by_workers[2] > 3


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each RDD of lines that the JVM makes, of how many files it is."""
    found: list[int] = []
    make = TextLines.rdd

    def noting(self: TextLines, spark: SparkContext, files: Any) -> Any:
        found.append(len(files))
        return make(self, spark, files)

    monkeypatch.setattr(TextLines, "rdd", noting)
    return found


def test_workers_read_the_files(sc: SparkContext, tmp_path: Path, made: list[int]) -> None:
    """One job counts and decodes; the JVM has an RDD of lines in the first batch alone."""
    with BatchDriver(sc) as driver:
        lines = files_of(driver, tmp_path)
        sales = driver.output(lines.toBlocks(Sale, format="json").toRows(Sale))
        driver.run(1)
        for number in range(3):
            put(tmp_path / f"{number}", [b'{"shop": "a", "cents": 1}\n\n', b'{"shop": "b"}'])
            for path in (tmp_path / f"{number}").iterdir():
                path.rename(tmp_path / f"{number}-{path.name}")
            infos: list[Any] = []
            assert count_jobs(sc, lambda infos=infos: infos.extend(driver.run(1))) == 1
            assert sales[-1] == [Sale("a", 1), Sale("b", None)]
            assert infos[0].inputs[0].records == 3
    assert made == [2]


def test_lines_that_two_outputs_read_in_two_ways(
    sc: SparkContext, tmp_path: Path, made: list[int]
) -> None:
    """As texts by the JVM, as blocks by workers: they are counted once."""
    with BatchDriver(sc) as driver:
        lines = files_of(driver, tmp_path)
        texts = driver.output(lines)
        upper = driver.output(driver.context.union(lines, lines.map(str.upper)))
        sales = driver.output(lines.toBlocks(Sale, format="json").toRows(Sale))
        driver.run(1)
        for number in range(3):
            (tmp_path / f"{number}").write_bytes(b'{"shop": "b"}\r\n{"shop": "c"}')
            (info,) = driver.run(1)
            assert texts[-1] == ['{"shop": "b"}', '{"shop": "c"}']
            assert len(upper[-1] or []) == 4
            assert [sale.shop for sale in sales[-1] or []] == ["b", "c"]
            assert info.inputs[0].records == 2
    assert made == [1, 1, 1]


@pytest.mark.deep
def test_a_bad_line_is_named_by_file_and_line(sc: SparkContext, tmp_path: Path) -> None:
    """Also in a range that does not begin where its file does; empty lines are counted."""
    good = b'{"shop": "a"}\n\n' * 400_000
    with BatchDriver(sc) as driver:
        driver.output(files_of(driver, tmp_path).toBlocks(Sale, format="json"))
        driver.run(1)
        put(tmp_path, [good + b'{"shop": "\xff", "cents": "1"}'])
        with pytest.raises(
            BatchFailedError,
            match=rf"""toBlocks at .* cannot decode line 800001 of {tmp_path}/lines-000: """
            r"""'\{"shop": "\ufffd", "cents": "1"\}': cents is int64, got '1'; correct""",
        ):
            driver.run(1)


def test_a_bad_line_that_is_left_out_is_named_in_the_log(
    sc: SparkContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of a partition, and how many there were."""
    with BatchDriver(sc) as driver:
        blocks = files_of(driver, tmp_path).toBlocks(Sale, format="json", mode="DROPMALFORMED")
        driver.output(blocks)
        driver.run(1)
        put(tmp_path, [b'\n{"shop": "a"}\r\n{"shop": 1}\n{\n'])
        (info,) = driver.run(1)
    assert info.inputs[0].metadata["rejected"] == 2
    (said,) = (record.getMessage() for record in caplog.records if "were skipped" in record.message)
    assert f"such as line 3 of {tmp_path}/lines-000: '{{\"shop\": 1}}': shop is string" in said


@pytest.mark.parametrize(
    "name", ["a.gz", "a.bz2", "a.deflate", "a.snappy", "a.lz4", "a.zst", ".lines-000.crc"]
)
def test_what_the_jvm_has_to_read(sc: SparkContext, tmp_path: Path, name: str) -> None:
    """Files that are compressed, that have checksums, and those of other file systems."""
    endings = compressed_endings(sc)
    assert endings is not None
    (file,) = put(tmp_path, [b"line"])
    assert ranges_of([file], endings, 2, False) is not None
    (tmp_path / name).write_bytes(b"")
    other = FileStamp(f"file:{tmp_path}/{name}", 0, 0)
    assert ranges_of([file] if name.endswith("crc") else [file, other], endings, 2, False) is None
    assert ranges_of([file, FileStamp("hdfs://a/b", 0, 1)], endings, 2, False) is None
    assert ranges_of([file, FileStamp(f"{file.path}-gone", 0, 1)], endings, 2, False) is None
    with jvm_reads(sc):
        assert compressed_endings(sc) is None


def test_a_compressed_file_is_decompressed(sc: SparkContext, tmp_path: Path) -> None:
    """By the JVM, and so are the other files of its batch."""
    with BatchDriver(sc) as driver:
        sales = driver.output(files_of(driver, tmp_path).toBlocks(Sale, format="json").toRows(Sale))
        driver.run(1)
        (tmp_path / "a.gz").write_bytes(gzip.compress(b'{"shop": "a"}\n'))
        (tmp_path / "b").write_bytes(b'{"shop": "b"}\n')
        driver.run(1)
    assert sales[-1] == [Sale("a", None), Sale("b", None)]


@pytest.mark.deep
@pytest.mark.parametrize("skips", [False, True])
def test_a_file_that_vanishes_while_the_batch_runs(
    sc: SparkContext, tmp_path: Path, skips: bool
) -> None:
    """It fails the batch with what to do; or the others are read, and the batch says so."""
    options = Settings.from_conf(dict(sc.getConf().getAll())).replace(ignore_missing_files=skips)
    with BatchDriver(sc, settings=options) as driver:
        blocks = files_of(driver, tmp_path).toBlocks(Sale, format="json")
        gone = blocks.transform(lambda rdd: _without(tmp_path / "lines-000", rdd))
        shops = driver.output(gone.flatMap(lambda block: block.column("shop").to_pylist()))
        driver.run(1)
        put(tmp_path, [b'{"shop": "a"}\n', b'{"shop": "b"}\n'])
        if skips:
            (info,) = driver.run(1)
            assert shops[-1] == ["b"]
            assert info.inputs[0].description.endswith(
                "; 1 vanished while the batch ran: lines-000"
            )
        else:
            with pytest.raises(BatchFailedError, match=r"lines-000 is input of the batch at \d+"):
                driver.run(1)


def _without(path: Path, rdd: Any) -> Any:
    path.unlink(missing_ok=True)
    return rdd


def test_files_are_read_as_large_as_they_are(tmp_path: Path) -> None:
    """As by the JVM, by their size when the RDD is made, and not by that of the plan."""
    (file,) = put(tmp_path, [b"one\ntwo\n"])
    made = [
        ranges_of([file._replace(size_bytes=size)], (), 1, skips_missing=True) for size in (1, 100)
    ]
    assert made == [LineRanges(((LineRange(f"{tmp_path}/lines-000", 0, 8),),), True)] * 2


def test_persisted_lines_are_read_once(sc: SparkContext, tmp_path: Path) -> None:
    """By the JVM, for rows and blocks alike; and so are lines behind a function."""
    with BatchDriver(sc) as driver:
        lines = files_of(driver, tmp_path).cache()
        driver.output(lines)
        shops = [
            driver.output(each.toBlocks(Sale, format="json").toRows().map(lambda sale: sale[0]))
            for each in (lines, lines.filter(lambda line: "b" not in line))
        ]
        driver.run(1)
        put(tmp_path, [b'{"shop": "a"}\n{"shop": "b"}\n'])
        (info,) = driver.run(1)
    assert [each[-1] for each in shops] == [["a", "b"], ["a"]]
    assert info.inputs[0].records == 2


@pytest.mark.deep
def test_a_window_over_files_goes_on_after_a_restart(sc: SparkContext, tmp_path: Path) -> None:
    """A replayed batch reads the same lines, by workers, from the files in its record."""
    source, seen = tmp_path / "in", tmp_path / "seen"
    source.mkdir()

    def keep(rdd: Any) -> None:
        with seen.open("a") as file:
            file.write(f"{sorted(map(tuple, rdd.collect()))}\n")

    def create() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        ssc.checkpoint(str(tmp_path / "checkpoint"))
        lines = ssc.fileStream(str(source), newFilesOnly=False, maxFileAge=math.inf)
        sales = lines.toBlocks(Sale, format="json")
        sales.aggregateByKeyAndWindow("shop", 3, sales=Count()).toRows().foreachRDD(keep)
        return ssc

    for life in range(2):
        ssc = StreamingContext.getOrCreate(str(tmp_path / "checkpoint"), create)
        for batch in range(2):
            (source / f"{life}-{batch}").write_bytes(b'{"shop": "%d"}\n' % batch * (life + 1))
            ssc.step()
        ssc.stop(stopSparkContext=False)
    assert seen.read_text().splitlines() == [
        "[('0', 1)]",
        "[('0', 1), ('1', 1)]",
        "[('0', 3), ('1', 1)]",
        "[('0', 2), ('1', 3)]",
    ]

"""Streams of lines as streams of blocks, from files and from records; skipped lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, DStream, InvalidStreamError
from dstreams.testing import BatchDriver, run_batches
from tests.support.jobs import count_jobs

pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")


class Sale(NamedTuple):
    shop: str
    cents: int | None


LINES = [f'{{"shop": "ü{number}", "cents": {number}}}' for number in range(50)]
SALES = [Sale(f"ü{number}", number) for number in range(50)]


def files_of(driver: BatchDriver, directory: Path) -> DStream[str]:
    """The lines of the files of a directory, whenever they were written."""
    return driver.context.fileStream(str(directory), newFilesOnly=False, maxFileAge=math.inf)


@pytest.mark.parametrize("rows", [7, 10_000])
def test_lines_of_files(sc: SparkContext, tmp_path: Path, rows: int) -> None:
    """Files come as bytes; the input is counted by the same job."""
    with BatchDriver(sc) as driver:
        lines = files_of(driver, tmp_path)
        blocks = lines.toBlocks(Sale, rows, format="json")
        sales = driver.output(blocks.toRows(Sale))
        driver.run(1)
        for part in range(2):
            text = "\r\n".join(LINES[part::2]) + "\n\n"
            (tmp_path / f"lines-{part}").write_bytes(text.encode())
        infos: list[Any] = []
        assert count_jobs(sc, lambda: infos.extend(driver.run(1))) == 1
    assert sorted(sales[-1] or [], key=lambda sale: sale.cents or 0) == SALES
    (read,) = infos[0].inputs
    assert read.records == 52
    assert "rejected" not in read.metadata


def test_lines_behind_functions(sc: SparkContext) -> None:
    """A function before it has made other texts of the lines, bytes among them."""
    batches: list[list[Any] | None] = [["a;1", "b;2"], [], None, [b"c;"]]
    seen = run_batches(
        sc,
        batches,
        lambda lines: lines.map(lambda line: line).toBlocks(Sale, format="csv", sep=";").toRows(),
    )
    assert [sorted(batch or []) for batch in seen] == [
        [("a", 1), ("b", 2)], [], [], [("c", None)],
    ]  # fmt: skip


def test_lines_of_files_behind_functions(sc: SparkContext, tmp_path: Path) -> None:
    """A function before it still receives strings."""
    with BatchDriver(sc) as driver:
        lines = files_of(driver, tmp_path).filter(lambda line: "ü1" in line)
        shops = driver.output(lines.map(str.upper).toBlocks({"line": str}, format="text").toRows())
        driver.run(1)
        (tmp_path / "lines").write_text("\n".join(LINES[:3]))
        driver.run(1)
    assert shops[-1] == [(LINES[1].upper(),)]


def test_lines_that_are_left_out(sc: SparkContext, caplog: pytest.LogCaptureFixture) -> None:
    """They are counted in the input of the batch, and the first of them is in the log."""
    bad = ["{", LINES[0], '{"shop": 1}', "", LINES[1]]
    with BatchDriver(sc) as driver:
        lines = driver.context.queueStream([sc.parallelize(bad, 1), sc.parallelize(LINES, 2)])
        sales = driver.output(
            lines.toBlocks(Sale, format="json", mode="DROPMALFORMED").toRows(Sale)
        )
        first, second = driver.run(2)
        total = driver.context.status().totals.rejected
    assert sorted(sales[0] or []) == SALES[:2]
    assert len(sales[1] or []) == 50
    assert first.inputs[0].metadata["rejected"] == 2
    assert first.inputs[0].description.endswith("; 2 could not be decoded and were skipped")
    assert "rejected" not in second.inputs[0].metadata
    assert list(total.values()) == [2]
    (said,) = (record.getMessage() for record in caplog.records if "were skipped" in record.message)
    assert said.startswith("toBlocks at test_line_streams.py:")
    assert said.endswith("such as line 1 of partition 0: '{': " + said.rpartition("'{': ")[2])


def test_a_line_that_fails_the_batch(sc: SparkContext) -> None:
    """It is named, with its place and the reason, and what to do."""
    with BatchDriver(sc) as driver:
        lines = driver.context.queueStream([sc.parallelize([*LINES, '{"shop": 1}'], 1)])
        driver.output(lines.toBlocks(Sale, 20, format="json"))
        with pytest.raises(
            BatchFailedError,
            match=r"""toBlocks at test_line_streams.py:\d+ cannot decode line 51 of partition 0: """
            r"""'\{"shop": 1\}': shop is string, got 1; correct .* skip such lines """
            r"""with mode='DROPMALFORMED'""",
        ):
            driver.run(1)


def test_what_cannot_be_defined(sc: SparkContext) -> None:
    """A rule that there is not, and what a format cannot be."""
    with BatchDriver(sc) as driver:
        lines = driver.input([])
        with pytest.raises(InvalidStreamError, match=r"mode of toBlocks .* one of FAILFAST, DROPM"):
            lines.toBlocks(Sale, format="json", mode="PERMISSIVE")  # type: ignore[arg-type]
        with pytest.raises(InvalidStreamError, match=r"format of toBlocks .* is 'avro'"):
            lines.toBlocks(Sale, format="avro")  # type: ignore[arg-type]

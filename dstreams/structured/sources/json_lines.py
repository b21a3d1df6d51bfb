"""Lines of JSON files as values; a line that is none is named by file and number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyspark import RDD, SparkContext
from pyspark.rdd import PipelinedRDD

from dstreams.errors import SourceError
from dstreams.sources.file_formats import combined, joined
from dstreams.sources.file_listing import FileStamp
from dstreams.spark.jvm import file_splits
from dstreams.spark.nesting import require_shallow
from dstreams.spark.worker_gc import settle_worker

BadLines = Literal["FAILFAST", "DROPMALFORMED"]
"""What becomes of a line that is no JSON: the batch fails, or the line is left out."""

_AROUND = 40
_SPLIT = re.compile(r"(.*):(\d+)\+\d+", re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class FileSplit:
    """What one task reads.

    Args:
        path: of the file, as Hadoop writes it.
        start: first byte; lines that begin after it are read, from 0 on also the first one.
    """

    path: str
    start: int

    def name_of(self, number: int) -> str:
        """Return which line of the file the line *number*, from 1, of this split is."""
        before = 0 if self.start == 0 else self._lines_before()
        if before is None:
            return f"line {number} after byte {self.start} of {self.path}"
        return f"line {before + number} of {self.path}"

    def _lines_before(self) -> int | None:
        """Return how many lines begin up to where this begins; None where that is not known."""
        path = self.path.removeprefix("file:")
        if not path.startswith("/") or path.endswith(".bz2"):  # cut where it is compressed
            return None
        try:
            with open(path, "rb") as file:
                content = file.read(self.start + 1)
        except OSError:
            return None
        return 1 + sum(found.end() <= self.start for found in _LINE_END.finditer(content))


@dataclass(frozen=True)
class ParseLines:
    """Task: lines -> values; empty lines are none.

    Args:
        splits: what each partition reads.
        bad_lines: what becomes of a line that is no JSON.
    """

    splits: tuple[FileSplit, ...]
    bad_lines: BadLines = "FAILFAST"

    def __call__(self, split: int, lines: Iterable[str]) -> Iterator[Any]:
        settle_worker()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = loads(line)
            except ValueError as error:
                if self.bad_lines == "DROPMALFORMED":
                    continue
                raise SourceError(
                    f"{self.splits[split].name_of(number)} is no JSON ({_what(line, error)}); "
                    "write one value a line: correct the line or remove it, or leave out all such "
                    "lines with option mode DROPMALFORMED"
                ) from error
            yield value


def loads(line: str) -> Any:
    """Return the value that a line is.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    require_shallow(line)
    return json.loads(line)


@dataclass(frozen=True)
class JsonLines:
    """The format of files of JSON: what each line is.

    Args:
        bad_lines: what becomes of a line that is no JSON.
    """

    has_partitions_of_files: ClassVar[bool] = True

    bad_lines: BadLines = "FAILFAST"

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        lines = spark.textFile(joined(files))
        found = map(_SPLIT.fullmatch, file_splits(lines))
        splits = tuple(FileSplit(one[1], int(one[2])) for one in found if one is not None)
        return combined(PipelinedRDD(lines, ParseLines(splits, self.bad_lines)), files)

    def count(self, files: Sequence[FileStamp]) -> int | None:
        return None

    def refuses(self, file: FileStamp) -> str | None:
        return None


def _what(line: str, error: ValueError) -> str:
    """Say what is wrong with a line, and show that place of it."""
    if not isinstance(error, json.JSONDecodeError):
        return f"{error}: {line[: 2 * _AROUND]!r}"
    first = max(0, error.pos - _AROUND)
    return f"{error.msg} at character {error.colno}: {line[first : error.pos + _AROUND]!r}"

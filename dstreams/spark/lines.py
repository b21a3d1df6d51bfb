r"""Lines as bytes, for workers that decode many lines at once.

Workers read ranges of lines from files, or lines from the JVM. The lines are the same as those of
Hadoop's reader: they end with ``\n``, ``\r\n`` or ``\r``, except for the last one.

>>> import io
>>> file = io.BytesIO(b"one\ntwo\r\nthree\rfour")
>>> [list(texts(file, LineRange("", start, end))) for start, end in [(0, 5), (5, 6), (6, 19)]]
[[b'one\ntwo'], [], [b'three\nfour']]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from struct import Struct
from typing import Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.serializers import SpecialLengths, UTF8Deserializer

from dstreams.spark.counting import uncounted

TEXT_BYTES = 1 << 20
"""Bytes that are read at once, few enough for the CPU's cache."""

_LENGTH = Struct("!i")
_LOOK_BYTES = 1 << 12
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


class LineRange(NamedTuple):
    """The lines of a file that begin after byte *start*, and at or before *end*.

    If *start* is 0, the first line of the file is included.
    """

    path: str
    start: int
    end: int

    def texts(self, text_bytes: int = TEXT_BYTES) -> Iterator[bytes]:
        r"""Yield texts of one or more lines, separated by ``\n``.

        Raises:
            FileNotFoundError: the file does not exist any more.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below, also if reading stops early
        except FileNotFoundError:
            raise FileNotFoundError(f"File file:{self.path} does not exist") from None
        with file:
            yield from texts(file, self, text_bytes)

    def lines_before(self) -> int:
        """Return the number of lines in the file before this range."""
        before = LineRange(self.path, 0, self.start)
        return 0 if not self.start else sum(text.count(b"\n") + 1 for text in before.texts())


class LineRanges(NamedTuple):
    """The ranges that each task of an RDD reads; *skips_missing* ignores deleted files."""

    partitions: tuple[tuple[LineRange, ...], ...]
    skips_missing: bool


@runtime_checkable
class HasLineRanges(Protocol):
    """An RDD of lines of files; *line_ranges* returns None if only the JVM can read them."""

    line_ranges: Callable[[], LineRanges | None]


def cut(
    files: Iterable[tuple[str, int]], partitions: int, open_bytes: int
) -> tuple[tuple[LineRange, ...], ...]:
    """Divide files among partitions of about the same number of bytes.

    Args:
        files: path and size of each file, in order; empty files are skipped.
        partitions: the number of partitions, at least 1.
        open_bytes: the cost of opening a file, in bytes.

    >>> cut([("a", 100), ("b", 0), ("c", 50)], 2, 10)
    ((LineRange(path='a', start=0, end=75),), (LineRange(path='a', start=75, end=100), \
LineRange(path='c', start=0, end=50)))
    """
    there = [(path, size) for path, size in files if size]
    total = sum(size + open_bytes for _, size in there)
    parts: list[list[LineRange]] = [[] for _ in range(partitions)]
    part = before = 0
    for path, size in there:
        start = 0
        while start < size:
            # The end of the partition, as a position in this file.
            limit = (part + 1) * total // partitions - before - open_bytes
            if part < partitions - 1 and limit <= start:
                part += 1
                continue
            end = size if part == partitions - 1 else min(size, limit)
            parts[part].append(LineRange(path, start, end))
            start = end
        before += size + open_bytes
    return tuple(map(tuple, parts))


def texts(file: BinaryIO, lines: LineRange, text_bytes: int = TEXT_BYTES) -> Iterator[bytes]:
    """Yield the lines of a range of an open file, as :meth:`LineRange.texts` does."""
    stop = _next_line(file, lines.end)
    at = _next_line(file, lines.start) if lines.start else 0
    file.seek(at)
    rest = b"" if at else file.read(min(len(_BYTE_ORDER_MARK), stop))
    at += len(rest)
    if rest == _BYTE_ORDER_MARK:
        rest = b""
    while data := file.read(min(text_bytes, stop - at)):
        at += len(data)
        data = rest + data if rest else data
        whole = len(data) if at >= stop else _end_of_lines(data)
        if whole:
            yield _text(data[:whole])
        else:
            text_bytes *= 2  # otherwise a long line would be copied many times
        rest = data[whole:]
    if rest:
        yield _text(rest)


def with_replacements(text: bytes) -> bytes:
    """Return a text with invalid UTF-8 replaced by U+FFFD, as the JVM does it.

    The JVM replaces a surrogate by one character, Python by three.

    >>> with_replacements(b"a\\xff\\xed\\xa0\\x80b").decode()
    'a\ufffd\ufffdb'
    """
    return _SURROGATE.sub("\ufffd".encode(), text).decode(errors="replace").encode()


def _next_line(file: BinaryIO, at: int) -> int:
    """Return the start of the line after that of byte *at*, or the end of the file.

    A line includes its end: the second byte of ``\\r\\n`` belongs to the line before it.
    """
    file.seek(at)
    while data := file.read(_LOOK_BYTES):
        found = _LINE_END.search(data)
        if found:
            at += found.end()
            is_cut = found.end() == len(data) and data.endswith(b"\r")
            return at + (is_cut and file.read(1) == b"\n")
        at += len(data)
    return at


def _end_of_lines(data: bytes) -> int:
    """Return the end of the last complete line, else 0."""
    # A carriage return at the end may be the first half of a line end.
    return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1


def _text(data: bytes) -> bytes:
    """Return complete lines without the last line end."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data.removesuffix(b"\n")


class LineBytesDeserializer(UTF8Deserializer):
    """Reads PySpark's stream of text lines as bytes."""

    def __init__(self) -> None:
        super().__init__(use_unicode=False)  # type: ignore[no-untyped-call]

    def load_stream(self, stream: Any) -> Iterator[bytes | None]:
        if not hasattr(stream, "peek"):
            lines: Iterator[bytes | None] = super().load_stream(stream)  # type: ignore[no-untyped-call]
            return lines
        return chain.from_iterable(_lines_of(stream))

    def __repr__(self) -> str:
        return "LineBytesDeserializer()"


def _lines_of(stream: Any) -> Iterator[list[bytes | None]]:
    """Yield lists of the available lines, without reading beyond the end of the data."""
    length_at, header = _LENGTH.unpack_from, _LENGTH.size
    while True:
        there = stream.peek()
        last, at = len(there) - header, 0
        lines: list[bytes | None] = []
        append = lines.append
        while at <= last:
            (length,) = length_at(there, at)
            end = at + header + length
            if length < 0 or end > len(there):
                break
            append(there[at + header : end])
            at = end
        if at:
            stream.read(at)
            yield lines
            continue
        head = stream.read(header)
        if len(head) < header:
            return
        (length,) = _LENGTH.unpack(head)
        if length == SpecialLengths.END_OF_DATA_SECTION:
            return
        yield [None if length == SpecialLengths.NULL else stream.read(length)]


def read_as_bytes(made: PipelinedRDD, source: RDD[Any]) -> None:
    """Let *made*, a function of the lines of *source*, read bytes if the JVM has the lines."""
    if isinstance(uncounted(source)._jrdd_deserializer, UTF8Deserializer):
        made._prev_jrdd_deserializer = LineBytesDeserializer()

r"""Lines of files that workers read themselves, many at once, instead of one by one from the JVM.

An RDD of lines that has them says which bytes of which files they are. The lines are those that
Hadoop's reader makes of the files: they end by ``\n``, ``\r\n`` or ``\r``, but for the last one.

>>> import io
>>> file = io.BytesIO(b"one\ntwo\r\nthree\rfour")
>>> [list(texts(file, LineRange("", start, end))) for start, end in [(0, 5), (5, 6), (6, 19)]]
[[b'one\ntwo'], [], [b'three\nfour']]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

TEXT_BYTES = 1 << 20
"""Bytes of lines that are read at once: they stay in the processor's cache."""

_LOOK_BYTES = 1 << 12
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


class LineRange(NamedTuple):
    """Lines of a file: those that begin behind byte *start*, and at *end* or before.

    Where *start* is 0 the first line of the file is one of them.
    """

    path: str
    start: int
    end: int

    def texts(self, text_bytes: int = TEXT_BYTES) -> Iterator[bytes]:
        r"""Yield the lines, some at a time: each text is of one line or more, with ``\n`` between.

        Raises:
            FileNotFoundError: there is no such file any more.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below, whoever stops reading
        except FileNotFoundError:
            raise FileNotFoundError(f"File file:{self.path} does not exist") from None
        with file:
            yield from texts(file, self, text_bytes)

    def lines_before(self) -> int:
        """Return how many lines the file has before these."""
        before = LineRange(self.path, 0, self.start)
        return 0 if not self.start else sum(text.count(b"\n") + 1 for text in before.texts())


class LineRanges(NamedTuple):
    """What the tasks of an RDD read: the ranges of each partition.

    *skips_missing*: a file that is not there any more is passed over.
    """

    partitions: tuple[tuple[LineRange, ...], ...]
    skips_missing: bool


@runtime_checkable
class HasLineRanges(Protocol):
    """An RDD of lines of files; *line_ranges* says where they are, None where the JVM must read."""

    line_ranges: Callable[[], LineRanges | None]


def cut(
    files: Iterable[tuple[str, int]], partitions: int, open_bytes: int
) -> tuple[tuple[LineRange, ...], ...]:
    """Divide files, given by path and size, among partitions, about as many bytes for each.

    Args:
        files: the files, in order; what is empty is passed over.
        partitions: how many, at least one.
        open_bytes: to open a file costs as much as to read so many bytes.

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
            # Up to where the partition goes, in this file.
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
    """Yield the lines of a range of an open file, as :meth:`LineRange.texts`."""
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
            text_bytes *= 2  # else a long line would be copied again and again
        rest = data[whole:]
    if rest:
        yield _text(rest)


def with_replacements(text: bytes) -> bytes:
    """Return a text as the JVM has it: what is no UTF-8 in it becomes U+FFFD.

    The JVM takes a surrogate for one character, where Python sees three that are none.

    >>> with_replacements(b"a\\xff\\xed\\xa0\\x80b").decode()
    'a\ufffd\ufffdb'
    """
    return _SURROGATE.sub("\ufffd".encode(), text).decode(errors="replace").encode()


def _next_line(file: BinaryIO, at: int) -> int:
    """Return where the line behind that of byte *at* begins; the end of the file if there is none.

    The line of a byte has its end: that of the second byte of ``\\r\\n`` is over with it.
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
    """Return where the last line ends that is known to be whole; 0 if none is."""
    # A return at the end may be the first half of an end.
    return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1


def _text(data: bytes) -> bytes:
    """Return whole lines without the end of the last one."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data.removesuffix(b"\n")

"""Lines from the JVM as bytes: a worker that decodes many at once needs no text of each.

PySpark reads a line in three calls and makes a text of it. Here whatever the pipe has is looked at
at once, and cut into lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from struct import Struct
from typing import Any

from pyspark import RDD
from pyspark.rdd import PipelinedRDD
from pyspark.serializers import SpecialLengths, UTF8Deserializer

from dstreams.spark.counting import uncounted

_LENGTH = Struct("!i")


class LineBytesDeserializer(UTF8Deserializer):
    """Reads what PySpark reads lines of text from, and leaves them in bytes."""

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
    """Yield the lines that are there each time; nothing is read beyond the end of the data."""
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
    """Let *made*, a function of the lines of *source*, get them as bytes where the JVM has them."""
    if isinstance(uncounted(source)._jrdd_deserializer, UTF8Deserializer):
        made._prev_jrdd_deserializer = LineBytesDeserializer()

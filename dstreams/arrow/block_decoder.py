"""Lines to blocks: what all formats have in common.

A decoder reads many lines at once, by a reader of Arrow's. Where that does not give exactly one row
for each line, each as it would be by itself, it looks at half as many, and at last at each: so one
bad line costs a few more calls, and is found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dstreams.arrow.block_functions import empty_block
from dstreams.arrow.block_rdd import together
from dstreams.spark.blocks import shorten
from dstreams.spark.line_ranges import with_replacements

if TYPE_CHECKING:
    import pyarrow as pa


class MisfitError(ValueError):
    """A line, or a value of it, does not fit the schema."""


class Decoded(NamedTuple):
    """What some lines became: a row for each of those in *rows*, and why others have none.

    Args:
        block: the rows.
        rows: which line each row is of, by its place; None: all lines have one.
        failures: by the place of a line why it is no record. Blank lines have neither.
    """

    block: pa.RecordBatch
    rows: list[int] | None
    failures: dict[int, str]


@dataclass(frozen=True)
class BlockDecoder(ABC):
    """Makes a block of lines, which are str or bytes; None stands for a record of nulls.

    Attributes:
        schema: the columns.
        skips_blank: whether a line of blanks is passed over; else it has to be a record.
    """

    few: ClassVar[int] = 1
    """So many lines are looked at one by one, and not cut in half any more."""

    schema: pa.Schema
    skips_blank: bool = True

    def decode(self, lines: Sequence[Any]) -> Decoded:
        """Return the block of *lines*; nothing that is in a line is raised."""
        whole = self.at_once(lines)
        return self._decode_by_line(lines) if whole is None else Decoded(whole, None, {})

    def decode_text(self, text: bytes) -> Decoded:
        r"""Return the block of a text of lines, with ``\n`` between them and none at its end.

        What is no UTF-8 in it is what the JVM would make of it.
        """
        whole = self.of_text(text)
        if whole is None and not is_utf8(text):
            return self.decode_text(with_replacements(text))
        if whole is None:
            return self._decode_by_line(text.split(b"\n"))
        return Decoded(whole, None, {})

    def _decode_by_line(self, lines: Sequence[Any]) -> Decoded:
        failures: dict[int, str] = {}
        texts: list[tuple[int, bytes | None]] = []
        for place, line in enumerate(lines):
            try:
                text = None if line is None else self.stripped(_bytes_of(line))
            except ValueError as error:
                failures[place] = str(error)
                continue
            if text or not self.skips_blank or text is None:
                texts.append((place, text))
        parts = [part for part in self._parts(texts, failures) if part[1]]
        blocks = [block for block, _ in parts]
        rows = [place for _, places in parts for place in places]
        block = together(blocks, "toBlocks") if blocks else empty_block(self.schema)
        return Decoded(block, rows, dict(sorted(failures.items())))

    def _parts(
        self, texts: list[tuple[int, bytes | None]], failures: dict[int, str]
    ) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Yield blocks of lines and the places of these; those that are none go to *failures*."""
        if not texts:
            return
        places = [place for place, _ in texts]
        block = self.at_once([text for _, text in texts])
        if block is not None:
            yield block, places
        elif len(texts) > self.few:
            half = len(texts) // 2
            yield from self._parts(texts[:half], failures)
            yield from self._parts(texts[half:], failures)
        else:
            for place, text in texts:
                try:
                    yield self.alone(text), [place]
                except (ValueError, ArithmeticError, RecursionError) as error:  # Arrow's as well
                    failures[place] = _reason(error)

    def at_once(self, lines: Sequence[Any]) -> pa.RecordBatch | None:
        """Return the block of lines, None where it is not certain that each has its row."""
        text = joined(lines)
        return None if text is None else self.of_text(text)

    @abstractmethod
    def of_text(self, text: bytes) -> pa.RecordBatch | None:
        r"""Return the block of lines with ``\n`` between them, None as of :meth:`at_once`."""

    @abstractmethod
    def alone(self, text: bytes | None) -> pa.RecordBatch:
        """Return the row of one line.

        Raises:
            ValueError: it is no record, or does not fit; or another error of what reads it.
        """

    def stripped(self, text: bytes) -> bytes:
        """Return a line without what may stand around a record; empty for a blank line."""
        return text.rstrip(b"\r\n")


def joined(lines: Sequence[Any]) -> bytes | None:
    """Return lines as one text of as many lines, None where they are not that."""
    try:
        data = b"\n".join(lines) if isinstance(lines[0], bytes) else "\n".join(lines).encode()
    except (TypeError, ValueError):  # not all are bytes, or texts; or no text of Unicode
        return None
    return data if data.count(b"\n") == len(lines) - 1 else None


def is_utf8(data: bytes) -> bool:
    """Whether bytes are text."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes_of(line: Any) -> bytes:
    if isinstance(line, str):
        return line.encode()
    if isinstance(line, (bytes, bytearray, memoryview)):
        return bytes(line)
    raise MisfitError(f"it is neither text nor bytes: {shorten(line)} ({type(line).__name__})")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:157]}..."

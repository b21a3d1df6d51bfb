"""The base class of decoders of lines.

A decoder reads many lines at once. If this does not yield exactly one row per line, the same row as
the line by itself, it bisects the lines. So a malformed line is found with a few more calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dstreams.arrow.block_functions import empty_block
from dstreams.arrow.block_rdd import together
from dstreams.spark.blocks import shorten
from dstreams.spark.lines import with_replacements

if TYPE_CHECKING:
    import pyarrow as pa


class MisfitError(ValueError):
    """A line, or a value of it, does not fit the schema."""


class Decoded(NamedTuple):
    """The result of decoding lines.

    Args:
        block: the rows.
        rows: index of the line of each row; None if each line has a row.
        failures: reasons by the index of malformed lines. Blank lines are in neither.
    """

    block: pa.RecordBatch
    rows: list[int] | None
    failures: dict[int, str]


@dataclass(frozen=True)
class BlockDecoder(ABC):
    """Decodes lines (str or bytes) to a block; a line that is None is a row of nulls.

    Attributes:
        schema: the columns.
        skips_blank: whether blank lines are skipped; otherwise they must be records.
    """

    few: ClassVar[int] = 1
    """Number of lines that are decoded one by one instead of bisected."""

    schema: pa.Schema
    skips_blank: bool = True

    def decode(self, lines: Sequence[Any]) -> Decoded:
        """Decode lines; malformed lines do not raise."""
        whole = self.at_once(lines)
        return self._decode_by_line(lines) if whole is None else Decoded(whole, None, {})

    def decode_text(self, text: bytes) -> Decoded:
        r"""Decode lines with ``\n`` between them; invalid UTF-8 is replaced as in the JVM."""
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
        """Yield blocks and the indices of their lines; add malformed lines to *failures*."""
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
                except (
                    ValueError,
                    ArithmeticError,
                    RecursionError,
                ) as error:  # includes Arrow's errors
                    failures[place] = _reason(error)

    def at_once(self, lines: Sequence[Any]) -> pa.RecordBatch | None:
        """Return the block of lines, None if it is uncertain that each line has its row."""
        text = joined_lines(lines)
        return None if text is None else self.of_text(text)

    @abstractmethod
    def of_text(self, text: bytes) -> pa.RecordBatch | None:
        r"""Return the block of lines with ``\n`` between them, or None, as :meth:`at_once`."""

    @abstractmethod
    def alone(self, text: bytes | None) -> pa.RecordBatch:
        """Return the row of one line.

        Raises:
            ValueError: the line is malformed or does not fit; readers may raise other errors.
        """

    def stripped(self, text: bytes) -> bytes:
        """Return a line without surrounding blanks and line ends."""
        return text.rstrip(b"\r\n")


def joined_lines(lines: Sequence[Any]) -> bytes | None:
    """Join lines to a text of as many lines, None if they cannot be joined."""
    try:
        data = b"\n".join(lines) if isinstance(lines[0], bytes) else "\n".join(lines).encode()
    except (TypeError, ValueError):  # mixed types, or lone surrogates
        return None
    return data if data.count(b"\n") == len(lines) - 1 else None


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
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

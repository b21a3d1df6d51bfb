"""Split bytes into lines in bounded memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dstreams.sources.line_buffer import LineBuffer, LineFaults


def taken(lines: LineBuffer) -> bytes:
    return b"".join(lines.take().blocks)


def test_whole_lines_are_taken_and_the_unfinished_one_waits() -> None:
    """A batch takes what ends in a newline; the rest is completed later."""
    lines = LineBuffer(100)
    lines.add(b"one\ntw")
    assert lines.complete_bytes == 4
    assert taken(lines) == b"one\n"
    lines.add(b"o\n")
    assert taken(lines) == b"two\n"
    assert taken(lines) == b""


@given(
    st.lists(st.sampled_from([b"", b"a\n", b"bb\nc\n", b"\n\n\n", b"dd\n" * 7])), st.integers(0, 9)
)
def test_a_batch_takes_no_more_lines_than_it_may(pieces: list[bytes], most: int) -> None:
    """The oldest lines, in order; the others wait, and count as bytes until they are taken."""
    lines, data = LineBuffer(100), b"".join(pieces)
    for piece in pieces:
        lines.add(piece)
    first = b"".join(lines.take(most).blocks)
    assert first == b"".join(data.splitlines(keepends=True)[:most])
    assert lines.complete_bytes == len(data) - len(first)
    assert first + taken(lines) == data
    assert lines.complete_bytes == 0


def test_the_end_of_the_stream_ends_the_last_line() -> None:
    """An unfinished line is a line when nothing follows it; no line is made up."""
    lines = LineBuffer(100)
    lines.add(b"one\ntwo")
    lines.end_stream()
    assert taken(lines) == b"one\ntwo\n"
    lines.end_stream()
    assert taken(lines) == b""


def test_an_unfinished_line_can_be_dropped() -> None:
    """After a broken connection its rest will not come."""
    lines = LineBuffer(100)
    lines.add(b"one\ntwo")
    assert lines.drop_unfinished() == 3
    lines.add(b"three\n")
    assert taken(lines) == b"one\nthree\n"


def test_a_line_of_the_limit_is_taken_and_one_byte_more_is_skipped() -> None:
    """The limit counts the bytes before the newline."""
    lines = LineBuffer(3)
    lines.add(b"abc\nabcd\nab\n")
    blocks, faults = lines.take()
    assert (blocks, faults.too_long) == ([b"abc\nab\n"], 1)
    assert lines.take().faults.too_long == 0


def test_a_line_without_end_is_skipped_as_it_comes() -> None:
    """Bytes beyond the limit are dropped, and the rest is not a line."""
    lines = LineBuffer(10)
    for _ in range(1000):
        lines.add(b"x" * 8)
    lines.add(b"tail\nnext\n")
    blocks, faults = lines.take()
    assert (b"".join(blocks), faults.too_long) == (b"next\n", 1)
    lines.add(b"x" * 1000)
    assert lines.drop_unfinished() == 0


def test_lines_that_are_no_utf8_are_counted_and_taken() -> None:
    """A line counts once, however it is cut; a letter that is cut by the network is whole."""
    lines = LineBuffer(100)
    for piece in b"gr\xc3", b"\xbcn\n\xff\xfe\n", b"\xe2\nplain\n\xe2":
        lines.add(piece)
    lines.end_stream()
    blocks, faults = lines.take()
    assert b"".join(blocks) == b"gr\xc3\xbcn\n\xff\xfe\n\xe2\nplain\n\xe2\n"
    assert faults == LineFaults(not_utf8=3)
    assert lines.faults == LineFaults(not_utf8=3)
    assert lines.take().faults == LineFaults()


def test_a_new_connection_does_not_continue_a_skipped_line() -> None:
    """Skipping ends with the stream it began in."""
    lines = LineBuffer(3)
    lines.add(b"abcdef")
    lines.end_stream()
    lines.add(b"new\n")
    assert taken(lines) == b"new\n"


@given(
    text=st.lists(st.sampled_from([b"", b"a", b"bc", b"def", b"ghij", b"\r"])),
    last=st.sampled_from([b"", b"k", b"lmnop"]),
    cuts=st.lists(st.integers(0, 60)),
    limit=st.integers(1, 5),
)
def test_pieces_do_not_matter(text: list[bytes], last: bytes, cuts: list[int], limit: int) -> None:
    """Any cutting of a stream gives the lines within the limit, and counts the others."""
    stream = b"".join(line + b"\n" for line in text) + last
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    lines = LineBuffer(limit)
    for start, end in pairwise(edges):
        lines.add(stream[start:end])
    lines.end_stream()
    blocks, faults = lines.take()
    whole = [*text, last] if last else text
    kept = [line for line in whole if len(line) <= limit]
    assert b"".join(blocks).split(b"\n")[:-1] == kept
    assert faults.too_long == len(whole) - len(kept)
    assert lines.complete_bytes == 0

"""Frames: reading returns the written content, or raises an error that names the file."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable, Iterable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import CorruptCheckpointError
from checkpoint.storage.framing import (
    MAX_BLOCK_BYTES,
    MAX_BLOCK_RECORDS,
    FileKind,
    FrameTotals,
    read_frames,
    write_frames,
)

Blocks = list[tuple[bytes, int]]

HEADER = {"stream_id": "s", "partition": 3}
BLOCKS: Blocks = [(b"first block", 2), (b"", 0), (b"third", 1)]

GOLDEN = (
    "894453430d0a1a0a01005354415407000000288fbedb7b2261223a317db4f50d1b424c434b030000"
    "0002000000c24124352b9eb774616263464f4f5401000000000000000200000000000000c49a8537"
    "0d0a445343454e44"
)

block_lists = st.lists(st.tuples(st.binary(max_size=300), st.integers(0, MAX_BLOCK_RECORDS)))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
headers = st.dictionaries(st.text(), json_values, max_size=4)


def written(blocks: Blocks, header: object = None, kind: FileKind = FileKind.STATE) -> bytes:
    fields = HEADER if header is None else header
    assert isinstance(fields, dict)
    return b"".join(write_frames(kind, fields, blocks))


def read(data: bytes | Iterable[bytes], kind: FileKind = FileKind.STATE) -> tuple[object, Blocks]:
    chunks = [data] if isinstance(data, bytes) else data
    frames = read_frames(chunks, kind, "/c/file")
    return frames.header, list(frames.blocks)


def pulled(data: bytes) -> tuple[Blocks, CorruptCheckpointError | None]:
    """Return all blocks before the error, and the error."""
    blocks: Blocks = []
    try:
        for block in read_frames([data], FileKind.STATE, "/c/file").blocks:
            blocks.append(block)
    except CorruptCheckpointError as error:
        return blocks, error
    return blocks, None


@given(headers, block_lists, st.integers(1, 400))
def test_what_is_read_is_what_was_written(
    header: dict[str, object], blocks: Blocks, chunk_bytes: int
) -> None:
    """Any header and blocks are read back, however the bytes are chunked."""
    data = written(blocks, header)
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    assert read(chunks) == (header, blocks)


@given(block_lists)
def test_totals_agree_between_writer_and_reader(blocks: Blocks) -> None:
    """Writer and reader have the same totals, and the size is that of the file."""
    totals = FrameTotals()
    data = b"".join(write_frames(FileKind.STATE, HEADER, blocks, totals))
    frames = read_frames([data], FileKind.STATE, "/c/file")
    list(frames.blocks)
    found = frames.totals
    assert totals.size_bytes == found.size_bytes == len(data)
    assert (totals.blocks, totals.records) == (len(blocks), sum(count for _, count in blocks))
    assert (found.blocks, found.records) == (totals.blocks, totals.records)
    assert found.digest == totals.digest


def test_digests_differ_with_header_payload_and_order() -> None:
    """Different files have different digests."""
    files = [
        ({"a": 1}, BLOCKS),
        ({"a": 2}, BLOCKS),
        ({"a": 1}, BLOCKS[::-1]),
        ({"a": 1}, BLOCKS[:2]),
        ({"a": 1}, [(b"first clock", 2), *BLOCKS[1:]]),
    ]
    digests = set()
    for header, blocks in files:
        totals = FrameTotals()
        for _ in write_frames(FileKind.STATE, header, blocks, totals):
            pass
        digests.add(totals.digest)
    assert len(digests) == len(files)


def test_every_truncation_is_detected() -> None:
    """A truncated file is rejected, after complete blocks only."""
    data = written(BLOCKS)
    for length in range(len(data)):
        blocks, error = pulled(data[:length])
        assert error is not None, length
        assert error.file == "/c/file"
        assert f"ends after {length} bytes, inside " in error.found
        assert "restore the file from a copy" in error.remedy
        assert blocks == BLOCKS[: len(blocks)]


def test_every_bit_flip_is_detected() -> None:
    """Every changed bit is detected, and no changed block is returned."""
    data = written(BLOCKS)
    for position, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        blocks, error = pulled(bytes(damaged))
        assert error is not None, (position, bit)
        assert error.file == "/c/file"
        assert blocks == BLOCKS[: len(blocks)]


@given(block_lists, st.data())
def test_damage_is_detected_in_any_file(blocks: Blocks, data: st.DataObject) -> None:
    """Overwritten, missing and inserted bytes are detected anywhere."""
    good = written(blocks)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 40)))
    bad = good[:start] + data.draw(st.binary(max_size=40)) + good[end:]
    found, error = pulled(bad)
    assert (error is None) == (bad == good)
    assert found == blocks[: len(found)]


@given(st.binary(max_size=2000))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Other files raise one kind of error."""
    with pytest.raises(CorruptCheckpointError, match=r"/c/file (begins with|ends after)"):
        read(data)


def test_bytes_after_the_end_are_refused() -> None:
    """A file that continues after its end is rejected."""
    data = written(BLOCKS)
    for chunks in ([data + b"x"], [data, b"x"]):
        with pytest.raises(CorruptCheckpointError, match=f"continues after {len(data)} bytes"):
            read(chunks)


def block_bytes(data: bytes, payload: bytes) -> bytes:
    """Return the frame of a block: head and payload."""
    start = data.index(payload) - 20
    assert data[start : start + 4] == b"BLCK"
    return data[start : start + 20 + len(payload)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data, one, other, foreign: data.replace(one, b""),
        lambda data, one, other, foreign: data.replace(one, one + one),
        lambda data, one, other, foreign: data.replace(one + other, other + one),
        lambda data, one, other, foreign: data.replace(one, foreign),
    ],
    ids=["dropped", "doubled", "swapped", "of another file"],
)
def test_a_block_out_of_place_is_never_handed_out(
    damage: Callable[[bytes, bytes, bytes, bytes], bytes],
) -> None:
    """Each block is verified to be the next one of this file."""
    blocks: Blocks = [(b"zero" * 9, 1), (b"one" * 9, 1), (b"two" * 9, 1)]
    data = written(blocks)
    foreign = written(blocks, {"stream_id": "another"})
    one, other = (block_bytes(data, payload) for payload, _ in blocks[:2])
    bad = damage(data, one, other, block_bytes(foreign, blocks[0][0]))
    assert bad != data
    found, error = pulled(bad)
    assert error is not None
    assert found == blocks[: len(found)]


def reheaded(data: bytes, **changes: int | bytes) -> bytes:
    """Return *data* with other fields in the preamble and a correct crc."""
    fields = {
        "magic": data[:8],
        "format": data[8:10],
        "kind": data[10:14],
        "length": data[14:18],
    }
    for key, value in changes.items():
        width = len(fields[key])
        fields[key] = value if isinstance(value, bytes) else value.to_bytes(width, "little")
    preamble = b"".join(fields.values())
    return preamble + crc32(preamble).to_bytes(4, "little") + data[22:]


def test_a_newer_format_asks_for_a_newer_release() -> None:
    """A newer format is not reported as damage."""
    data = reheaded(written(BLOCKS), format=2)
    with pytest.raises(CorruptCheckpointError, match=r"format 2; expected format 1; .* release"):
        read(data)


def test_a_file_of_another_kind_is_refused() -> None:
    """A state file is not read as a commit record."""
    with pytest.raises(CorruptCheckpointError, match="kind b'STAT'; expected kind b'COMM'"):
        read(written(BLOCKS), FileKind.COMMIT)


@pytest.mark.parametrize("length", [(1 << 20) + 1, (1 << 32) - 1])
def test_a_huge_header_is_refused_before_it_is_read(length: int) -> None:
    """The length of the header is bounded even if its crc is correct."""
    with pytest.raises(CorruptCheckpointError, match=f"header of {length} bytes"):
        read(reheaded(written(BLOCKS), length=length))


def test_a_huge_block_is_refused_before_it_is_read() -> None:
    """The length of a block is bounded even if its crc is correct; no memory is allocated."""
    data = written([(b"payload", 1)])
    start = data.index(b"BLCK")
    header_crc = int.from_bytes(data[start - 4 : start], "little")
    fields = b"BLCK" + (MAX_BLOCK_BYTES + 1).to_bytes(4, "little") + data[start + 8 : start + 16]
    head = fields + crc32(fields, header_crc).to_bytes(4, "little")
    bad = data[:start] + head + data[start + 20 :]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match=f"block of {MAX_BLOCK_BYTES + 1} bytes"):
            read(bad)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_block_that_is_not_there_asks_for_no_memory() -> None:
    """A truncated block takes only the memory of its existing bytes."""
    data = written([(b"x" * (32 << 20), 1)])[:200]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match="inside block 0"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("blocks", "records"), [(1, 3), (2, 4), (0, 0)])
def test_a_footer_that_counts_otherwise_is_refused(blocks: int, records: int) -> None:
    """The counts of the footer are verified even if its crc is correct."""
    data = written([(b"one", 1), (b"two", 2)])
    start = data.rindex(b"FOOT")
    chain = int.from_bytes(block_bytes(data, b"two")[16:20], "little")
    footer = b"FOOT" + blocks.to_bytes(8, "little") + records.to_bytes(8, "little")
    forged = footer + crc32(footer, chain).to_bytes(4, "little") + data[start + 24 :]
    with pytest.raises(CorruptCheckpointError, match="holds 2 blocks and 3 records; expected"):
        read(data[:start] + forged)


def test_a_header_that_is_no_object_is_refused() -> None:
    """A header must be a JSON object even if its crc is correct."""
    encoded = json.dumps([1]).encode()
    data = reheaded(written([]), length=len(encoded))[:22]
    chain = crc32(encoded, crc32(data[:18]))
    with pytest.raises(
        CorruptCheckpointError,
        match=r"`array`; expected the JSON of a header",
    ):
        read(data + encoded + chain.to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("header", "block", "said"),
    [
        ({"x": "y" * (1 << 20)}, (b"", 0), "header of 1048584 bytes"),
        ({}, (bytes(MAX_BLOCK_BYTES + 1), 1), "block of 67108865 bytes"),
        ({}, (b"", MAX_BLOCK_RECORDS + 1), "block of 4294967296 records"),
        ({}, (b"", -1), "block of -1 records"),
    ],
)
def test_the_writer_refuses_what_the_reader_would(
    header: dict[str, object], block: tuple[bytes, int], said: str
) -> None:
    """Sizes above a limit are rejected when they are written."""
    with pytest.raises(ValueError, match=said):
        written([block], header)


def test_memoryviews_are_written_as_their_bytes() -> None:
    """A payload may be a view into a larger buffer."""
    view = memoryview(b"..payload..")[2:-2]
    data = b"".join(write_frames(FileKind.STATE, {}, [(view, 1)]))
    assert read(data) == ({}, [(b"payload", 1)])


def test_blocks_are_pulled_one_at_a_time() -> None:
    """Each block is written before the next one is created."""
    made: list[int] = []

    def blocks() -> Iterable[tuple[bytes, int]]:
        for number in range(3):
            made.append(number)
            yield b"%d" % number, 1

    pieces = write_frames(FileKind.STATE, {}, blocks())
    seen = []
    for piece in pieces:
        if len(piece) == 1:
            seen.append(list(made))
    assert seen == [[0], [0, 1], [0, 1, 2]]


def test_the_bytes_of_format_1_never_change() -> None:
    """Files on disk outlive releases, so the bytes of format 1 are fixed."""
    assert written([(b"abc", 2)], {"a": 1}).hex() == GOLDEN

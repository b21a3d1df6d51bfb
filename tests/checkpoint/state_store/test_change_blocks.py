"""Blocks: what goes in comes out, and nothing that was not put in."""

from __future__ import annotations

import random
import struct

import pytest
import zstandard

from checkpoint.state_store.backend import Changes
from checkpoint.state_store.change_blocks import (
    BLOCK_BYTES,
    MAX_KEY_BYTES,
    MAX_RECORD_BYTES,
    Compression,
    Pairs,
    decode_changes,
    encode_changes,
)

SOME = Changes(
    [(b"a", b"1"), (b"b", b""), (b"c" * 503, b"x" * 70_000)],
    [b"d", b"e"],
    [b"00000001a"],
    [b"00000000b"],
    7,
)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(
    "changes",
    [SOME, Changes([], [], [], [], 0), Changes([(b"k", b"v")] * 3, [], [], [], 1 << 40)],
    ids=["some", "none", "equal"],
)
def test_what_is_encoded_is_decoded(changes: Changes, compression: Compression) -> None:
    """Puts, removes, index entries and count come back."""
    [(block, operations)] = encode_changes(changes, compression)
    found = decode_changes(block, compression)
    assert list(found.puts) == list(changes.puts)
    assert list(found.removes) == changes.removes
    assert list(found.index_puts) == changes.index_puts
    assert list(found.index_removes) == changes.index_removes
    assert found.count == changes.count
    items = (changes.puts, changes.removes, changes.index_puts, changes.index_removes)
    assert operations == sum(map(len, items))


def test_large_changes_are_cut_into_blocks() -> None:
    """No block is much larger than it should be, and their order is that of the keys."""
    puts = [(b"%06d" % number, b"x" * 100) for number in range(50_000)]
    blocks = list(encode_changes(Changes(puts, [b"~"], [], [], 50_000), Compression.NONE))
    assert len(blocks) > 4
    assert all(len(block) < 1.2 * BLOCK_BYTES for block, _ in blocks)
    parts = [decode_changes(block, Compression.NONE) for block, _ in blocks]
    assert sorted(put for part in parts for put in part.puts) == puts
    assert sum(operations for _, operations in blocks) == 50_001
    assert {part.count for part in parts} == {50_000}


def test_pairs_are_a_sequence() -> None:
    """Columns read as pairs, by position and by range."""
    pairs = Pairs((b"a", b"b", b"c"), (b"1", b"2", b"3"))
    assert list(pairs) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert pairs[1] == (b"b", b"2")
    assert pairs[1:] == [(b"b", b"2"), (b"c", b"3")]
    assert pairs != [(b"a", b"1")]
    assert len(pairs) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes([(b"", b"v")], [], [], [], 1), "key of 0 bytes"),
        (Changes([(b"k" * (MAX_KEY_BYTES + 1), b"v")], [], [], [], 1), "key of 504 bytes"),
        (Changes([], [b"k" * 600], [], [], 1), "key of 600 bytes"),
        (Changes([], [], [b"x" * 512], [], 1), "index entry of 512 bytes"),
        (Changes([(b"k", b"v" * (MAX_RECORD_BYTES + 1))], [], [], [], 1), "record of"),
    ],
)
def test_what_no_store_can_hold_is_refused_before_it_is_written(
    changes: Changes, message: str
) -> None:
    """The error says what is too large, how large it may be, and what to do."""
    with pytest.raises(ValueError, match=message) as error:
        list(encode_changes(changes, Compression.NONE))
    assert "split them over several keys" in str(error.value)


def test_a_block_that_grows_without_end_is_not_decompressed() -> None:
    """A frame must state the length that the block states, and that must be bounded."""
    bomb = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    for stated in (100, 64 << 20, 100 << 20):
        with pytest.raises(ValueError, match="states a size of"):
            decode_changes(struct.pack("<I", stated) + bomb, Compression.ZSTD)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(ValueError, match="states a size of"):
        decode_changes(struct.pack("<I", 1000) + silent, Compression.ZSTD)


@pytest.mark.parametrize("compression", Compression)
def test_damaged_blocks_are_errors_and_nothing_else(compression: Compression) -> None:
    """Whatever bytes change, a block is decoded or a ValueError; also without a checksum above."""
    rng = random.Random(5)
    [(block, _)] = encode_changes(SOME, compression)
    small = Changes(SOME.puts[:2], SOME.removes, SOME.index_puts, SOME.index_removes, 4)
    [(little, _)] = encode_changes(small, compression)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(rng.choice([block, little, little, little]))
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 255, rng.randrange(256)])
        cut = damaged[: rng.choice([len(damaged), rng.randrange(len(damaged) + 1)])]
        try:
            decode_changes(bytes(cut), compression)
        except ValueError:
            refused += 1
    assert refused > 1000

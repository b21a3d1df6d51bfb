"""Segments: how the bytes of a signed file lie.

A signed file is a head and segments, around the bytes that are signed. In format 1 it is signed
with one key; in format 2, which a file has while a checkpoint gets another key, with several, and
it says whether it may also be read without any::

    head       8s magic | H 1 | 8s id of the key
               8s magic | H 2 | B 1 if it is open | B keys | 8s id of each key
    segment    I length, highest bit set in the last one | 32s mac for each key | payload
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from checkpoint.errors import CorruptCheckpointError
from checkpoint.storage.file_bytes import FileBytes, damaged

SIGNED_MAGIC = b"\x89DSG\r\n\x1a\n"
SEGMENT_BYTES = 1 << 20
MAC_BYTES, KEY_ID_BYTES = 32, 8
MOST_KEYS = 2

_ONE_KEY, _SEVERAL = 1, 2
_START = struct.Struct("<8sH")
_COUNTS = struct.Struct("<BB")
_LENGTH = struct.Struct("<I")
_LAST = 1 << 31

Error = Callable[[str, str, str], CorruptCheckpointError]


@dataclass(frozen=True)
class SignedHead:
    """For whom a file is signed.

    Args:
        key_ids: the ids of the keys that it is signed with.
        is_open: whether it may also be read without a key.
    """

    key_ids: tuple[bytes, ...]
    is_open: bool = False

    def to_bytes(self) -> bytes:
        """Return the head of a file."""
        ids = b"".join(self.key_ids)
        if len(self.key_ids) == 1 and not self.is_open:
            return _START.pack(SIGNED_MAGIC, _ONE_KEY) + ids
        counts = _COUNTS.pack(self.is_open, len(self.key_ids))
        return _START.pack(SIGNED_MAGIC, _SEVERAL) + counts + ids


PLAIN = SignedHead((), is_open=True)
"""Of a file that is not signed."""

_MOST_HEAD_BYTES = _START.size + _COUNTS.size + MOST_KEYS * KEY_ID_BYTES


@dataclass(frozen=True)
class Segment:
    """A part of a signed file; nobody has looked at its macs."""

    number: int
    is_last: bool
    macs: tuple[bytes, ...]
    payload: bytes


def read_head(chunks: Iterable[bytes]) -> tuple[SignedHead, Iterable[bytes]]:
    """Return what a file says of its signatures, and all of its bytes; it may be forged."""
    rest = iter(chunks)
    begin = b""
    while len(begin) < _MOST_HEAD_BYTES and (more := next(rest, b"")):
        begin += more
    return _head_in(begin), chain([begin], rest)


def _head_in(begin: bytes) -> SignedHead:
    if not begin.startswith(SIGNED_MAGIC) or len(begin) < _START.size + KEY_ID_BYTES:
        return PLAIN
    _, found_format = _START.unpack_from(begin)
    if found_format == _ONE_KEY:
        return SignedHead((begin[_START.size : _START.size + KEY_ID_BYTES],))
    if found_format != _SEVERAL:
        return SignedHead(())
    is_open, count = _COUNTS.unpack_from(begin, _START.size)
    ids = begin[_START.size + _COUNTS.size :][: count * KEY_ID_BYTES]
    if not 0 < count <= MOST_KEYS:
        return SignedHead(())
    key_ids = [ids[at : at + KEY_ID_BYTES] for at in range(0, len(ids), KEY_ID_BYTES)]
    return SignedHead(tuple(key_ids), bool(is_open))


def write_segment(segment: Segment) -> Iterator[bytes]:
    """Yield the bytes of a segment."""
    length = len(segment.payload) | (_LAST if segment.is_last else 0)
    yield _LENGTH.pack(length) + b"".join(segment.macs)
    yield segment.payload


def read_segments(
    head: SignedHead, chunks: Iterable[bytes], file: str, error: Error = damaged
) -> Iterator[Segment]:
    """Yield the segments of a file, to its end."""
    source = FileBytes(chunks, file, error)
    source.take(len(head.to_bytes()), "the head")
    number, is_last = 0, False
    while not is_last:
        (length,) = _LENGTH.unpack(source.take(_LENGTH.size, "a segment"))
        is_last = bool(length & _LAST)
        length &= ~_LAST
        if length > SEGMENT_BYTES:
            raise error(file, f"has a segment of {length} bytes", f"<= {SEGMENT_BYTES}")
        macs = [source.take(MAC_BYTES, "a segment") for _ in head.key_ids]
        yield Segment(number, is_last, tuple(macs), source.take(length, "a segment"))
        number += 1
    source.require_end()


def without_signatures(chunks: Iterable[bytes], file: str) -> Iterable[bytes]:
    """Return the bytes of a file without its signatures, if it may be read without a key.

    Those of any other file are as they are.
    """
    head, whole = read_head(chunks)
    if head is PLAIN or not head.is_open:
        return whole
    return (segment.payload for segment in read_segments(head, whole, file))

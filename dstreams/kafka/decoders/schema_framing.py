"""What serializers of a Schema Registry write before a value: a zero, and the id of its schema."""

from __future__ import annotations

import struct

HEADER_BYTES = 5
_HEADER = struct.Struct(">bI")


def schema_id(data: bytes) -> int:
    """Return the id of the schema of a value.

    >>> schema_id(b"\\x00\\x00\\x00\\x00\\x07and the value")
    7

    Raises:
        ValueError: there is no such header.
    """
    if len(data) < HEADER_BYTES:
        raise ValueError(
            f"{len(data)} bytes are too few for the {HEADER_BYTES} of a schema id; was it written "
            "by a serializer of a Schema Registry?"
        )
    magic, number = _HEADER.unpack_from(data)
    if magic != 0:
        raise ValueError(
            f"it begins with the byte {data[0]:#04x} and not with the zero before a schema id; was "
            "it written by a serializer of a Schema Registry?"
        )
    return int(number)

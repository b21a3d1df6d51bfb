"""Text in UTF-8."""

from __future__ import annotations

from collections.abc import Sequence

from dstreams.kafka.decoders.decoder import Decoder


class Utf8Decoder(Decoder[str]):
    """Text; bytes that are no UTF-8 cannot be decoded.

    >>> Utf8Decoder().decode_block([b"a", None], "letters")
    ['a', None]
    """

    def decode(self, data: bytes, topic: str) -> str:
        return data.decode("utf-8")

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[str | None]:
        if None in values:
            return super().decode_block(values, topic)
        return list(map(bytes.decode, values))  # type: ignore[arg-type]  # none of them is None

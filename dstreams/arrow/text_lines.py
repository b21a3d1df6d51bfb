"""Lines of text to blocks of one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dstreams.arrow.block_decoder import BlockDecoder, MisfitError


@dataclass(frozen=True)
class TextLines(BlockDecoder):
    """Texts as they are; an empty line is a record as well."""

    def at_once(self, lines: Sequence[Any]) -> pa.RecordBatch | None:
        (field,) = self.schema
        if not lines:
            return None
        try:
            texts = pa.array(lines, pa.binary() if isinstance(lines[0], bytes) else pa.string())
            texts = texts.cast(field.type)
        except (pa.ArrowException, TypeError, ValueError):
            return None
        is_whole = field.nullable or not texts.null_count
        return pa.record_batch([texts], schema=self.schema) if is_whole else None

    def of_text(self, text: bytes) -> pa.RecordBatch | None:
        (field,) = self.schema
        lines = pc.split_pattern(pa.array([text], pa.binary()), b"\n").flatten()
        try:
            return pa.record_batch([lines.cast(field.type)], schema=self.schema)
        except pa.ArrowException:
            return None

    def alone(self, text: bytes | None) -> pa.RecordBatch:
        (field,) = self.schema
        if text is None and not field.nullable:
            raise MisfitError(f"{field.name} is missing, and holds no null")
        value = None if text is None else text.decode()
        return pa.record_batch([pa.array([value], field.type)], schema=self.schema)

    def stripped(self, text: bytes) -> bytes:
        return text

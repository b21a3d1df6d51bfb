"""Rows of queries as records to be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.kafka.producers import ProducerRecord

_PARTS = ("key", "value", "topic", "headers", "partition")


@dataclass(frozen=True)
class RowsToRecords:
    """Makes records of rows, by the names of their fields.

    A row has the field value, and may have key, topic, headers and partition; other fields are
    passed over. A bare str or bytes is a value, a pair without names a key and a value.

    Semantics: the sink ``kafka`` of Spark 4.3 (KafkaWriteTask).

    Args:
        topic: for all rows, whatever their field says; None for that of each row.
        where: the output, for messages.
    """

    topic: str | None
    where: str

    def __call__(self, rows: Iterable[Any]) -> Iterator[ProducerRecord]:
        for row in rows:
            parts = self._parts(row)
            topic = self.topic or parts.get("topic")
            if not isinstance(topic, str) or not topic:
                raise InvalidStreamError(
                    f"{self.where}: a row has the topic {topic!r}; let its field topic be the name "
                    "of one, or give the option topic for all rows"
                )
            headers = parts.get("headers")
            yield ProducerRecord(
                topic,
                parts.get("partition"),
                parts.get("key"),
                parts["value"],
                None if headers is None else [tuple(header) for header in headers],
            )

    def _parts(self, row: Any) -> Mapping[str, Any]:
        if isinstance(row, (str, bytes)):
            return {"value": row}
        found: Mapping[str, Any] = {}
        if isinstance(row, Mapping):
            found = row
        elif isinstance(row, tuple):
            names = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
            if names is None and len(row) == 2:
                names = ("key", "value")
            found = dict(zip(names or (), row, strict=False))
        if "value" not in found:
            has = f"the fields {', '.join(map(str, found))}" if found else type(row).__name__
            raise InvalidStreamError(
                f"{self.where}: a row has no field value, but {has}; map(f) rows to dicts or named "
                "tuples with value, and key, topic, headers and partition where they are needed, "
                "or to pairs (key, value)"
            )
        return found

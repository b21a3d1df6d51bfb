"""From the records of a stream to those of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError

Part = Callable[[Any], Any]
"""Makes a part of a Kafka record of one of the stream."""


@dataclass(frozen=True)
class ToProducerRecords:
    """Makes tuples as :class:`~dstreams.kafka.producers.ProducerRecord` of records.

    Args:
        topic: its name, or a function that gives it.
        key: None leaves records without a key; with no *value* either, records are pairs.
        value: None takes the record itself.
        headers: None for none.
        partition: None leaves it to the partitioner.
        where: the output, for messages.
    """

    topic: str | Part
    key: Part | None
    value: Part | None
    headers: Part | None
    partition: Part | None
    where: str

    def __call__(self, records: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for record in records:
            if self.key is None and self.value is None:
                key, value = self._pair(record)
            else:
                key = None if self.key is None else self.key(record)
                value = record if self.value is None else self.value(record)
            yield (
                self.topic if isinstance(self.topic, str) else self.topic(record),
                None if self.partition is None else self.partition(record),
                key,
                value,
                None if self.headers is None else self.headers(record),
            )

    def _pair(self, record: Any) -> tuple[Any, Any]:
        if not isinstance(record, tuple) or len(record) != 2:
            raise InvalidStreamError(
                f"{self.where}: without key= and value= records are pairs (key, value), got "
                f"{type(record).__name__}; give value= a function, such as str.encode"
            )
        return record

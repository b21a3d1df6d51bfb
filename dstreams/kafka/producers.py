"""Producers in workers, which send the records of a task with or without a transaction.

A worker keeps its producers, as a new one needs two round trips for its transactional id. A kept
producer is useless if another writer has taken over its id; the borrower says whether that may be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from dstreams.errors import InvalidStreamError, StreamError
from dstreams.kafka import client
from dstreams.kafka.decoding import Headers
from dstreams.kafka.parameters import BROKERS

_KEPT = 16
"""Number of producers that a worker keeps; each has threads and connections."""

_FULL_S, _ABORT_S = 0.5, 5.0
_POLL_EACH = 10_000

_TRANSACTIONAL_ID = "transactional.id"
_FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_PRODUCER_ID_MAPPING")


class ProducerRecord(NamedTuple):
    """A record to write.

    Semantics: org.apache.kafka.clients.producer.ProducerRecord.

    Args:
        topic: its topic.
        partition: None for the partitioner's choice.
        key: bytes, str (sent as UTF-8), or None.
        value: likewise; None is a tombstone.
        headers: pairs of name and bytes, str or None.
    """

    topic: str
    partition: int | None
    key: bytes | str | None
    value: bytes | str | None
    headers: Headers | list[tuple[str, Any]] | None = None


class Undelivered(NamedTuple):
    """A record that was not delivered.

    Args:
        error: name of the error in Kafka.
        text: its message.
        topic: topic of the record.
        partition: partition of the record, None if it was not chosen yet.
        size: bytes of key and value.
    """

    error: str
    text: str
    topic: str
    partition: int | None
    size: int


class KeptProducer:
    """A producer of this process.

    Args:
        config: settings in the names of librdkafka.
        where: the output, for messages.
        answer_s: seconds to wait for each answer of the brokers.
    """

    def __init__(self, config: Mapping[str, Any], where: str, answer_s: float) -> None:
        self._where = where
        self._config = config
        self._answer_s = answer_s
        self._undelivered: Undelivered | None = None
        self._errors = client.ClientErrors()
        self.owner = -1
        """The attempt of a task that used it last."""
        own = {"log_level": 0, "error_cb": self._errors, "on_delivery": self._failed}
        try:
            self._producer = client.make("Producer", {**config, **own}, where)
        except StreamError as error:
            raise InvalidStreamError(str(error)) from None

    def take_over(self) -> None:
        """Fence the writers with the same transactional id and abort their transactions.

        Raises:
            StreamError: the brokers refuse or do not answer.
        """
        self._ask("init_transactions")

    def begin(self) -> None:
        """Begin a transaction."""
        self._ask("begin_transaction", bounded=False)

    def send(self, records: Iterable[Any]) -> int:
        """Pass records to the client, and return their number; they may fail later.

        Raises:
            InvalidStreamError: a record is invalid.
            StreamError: a record is rejected.
        """
        produce, poll = self._producer.produce, self._producer.poll
        count = 0
        for count, record in enumerate(records, 1):
            topic, partition, key, value, headers = record
            if not topic:  # the client reports it now or later, and each time differently
                raise InvalidStreamError(_bad_record(self._where, record, None))
            while True:
                try:
                    produce(
                        topic,
                        value,
                        key,
                        -1 if partition is None else partition,
                        headers=headers or None,
                    )
                    break
                except BufferError:
                    poll(_FULL_S)
                    self._require_delivered()
                except (TypeError, ValueError, OverflowError, UnicodeError) as error:
                    raise InvalidStreamError(_bad_record(self._where, record, error)) from None
                except client.confluent_kafka().KafkaException as error:
                    self._refuse(error, _undelivered(error.args[0], *record[:4]))
            if count % _POLL_EACH == 0:
                poll(0)
                self._require_delivered()
        return count

    def flush(self) -> None:
        """Wait until all records are delivered.

        Raises:
            StreamError: a record is not delivered.
        """
        self._producer.flush(self._answer_s + 1)
        self._require_delivered()
        left = len(self._producer)
        if left:
            raise StreamError(f"{self._where}: {left} records were not delivered: {self._away()}")

    def commit(self) -> None:
        """Commit the transaction.

        Raises:
            StreamError: it is not committed, or its outcome is unknown.
        """
        self._ask("commit_transaction")

    def abort(self) -> None:
        """Abort the transaction, if any: until it ends, readers cannot read past it."""
        try:
            self._producer.abort_transaction(_ABORT_S)
        except client.confluent_kafka().KafkaException:
            return  # the next producer of this id aborts it, or it times out

    def _ask(self, request: str, *, bounded: bool = True) -> None:
        call = getattr(self._producer, request)
        try:
            call(*([self._answer_s] if bounded else []))
        except client.confluent_kafka().KafkaException as error:
            with suppress(client.confluent_kafka().KafkaException):
                self._producer.poll(0)  # delivers errors
            self._require_delivered()
            self._refuse(error)
        self._errors.answered()

    def _failed(self, error: Any, message: Any) -> None:
        """Record an undelivered message; called by the client."""
        if error.name().startswith("_PURGE"):
            return  # the failure of the transaction is reported
        found = _undelivered(
            error, message.topic(), message.partition(), message.key(), message.value()
        )
        known = self._undelivered
        # A record that is too large fails together with all others of its request.
        if known is None or (found.error == known.error and found.size > known.size):
            self._undelivered = found

    def _require_delivered(self) -> None:
        found, self._undelivered = self._undelivered, None
        if found is not None:
            self._raise(found.error, found.text, found)

    def _refuse(self, error: Any, undelivered: Undelivered | None = None) -> None:
        code = error.args[0]
        self._raise(code.name(), code.str(), undelivered)

    def _raise(self, name: str, text: str, undelivered: Undelivered | None) -> None:
        where = self._where
        lasting = self._errors.lasting
        if name in _FENCED or (lasting is not None and lasting.name() in _FENCED):
            raise StreamError(
                f"{where}: another writer has taken over the transactional id "
                f"{self._config.get(_TRANSACTIONAL_ID)!r}: a newer driver, or another attempt of "
                "this task. It writes the records; those of this attempt are aborted"
            )
        if lasting is not None:
            raise StreamError(client.refused(where, self._brokers, lasting))
        if undelivered is not None:
            raise StreamError(f"{where}: {_not_delivered(undelivered, self._away)}")
        advice = _ADVICE.get(name)
        if advice is None:
            is_away = name in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN")
            raise StreamError(f"{where}: {self._away() if is_away else f'{text} ({name})'}")
        raise StreamError(f"{where}: {text} ({name}); {advice}")

    def _away(self) -> str:
        last = self._errors.last
        why = "" if last is None else f": {last.str()} ({last.name()})"
        return (
            f"no broker of {self._brokers} has answered within {self._answer_s:g} s{why}; "
            "check them, or raise delivery.timeout.ms"
        )

    @property
    def _brokers(self) -> str:
        return str(self._config[BROKERS])


_WRITE = "grant this client permission to write to it"

_ADVICE = {
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms to the transaction.max.timeout.ms "
    "of the brokers",
    "INVALID_TXN_STATE": "the transaction may have exceeded transaction.timeout.ms: raise it, or "
    "split the batch into more partitions",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "grant this client the transactional "
    "ids that begin with dstreams-",
}
"""Remedies by error name."""

_RECORD_ADVICE = {
    "MSG_SIZE_TOO_LARGE": "raise max.request.size of the parameters and max.message.bytes of the "
    "topic, or write smaller records",
    "TOPIC_AUTHORIZATION_FAILED": _WRITE,
    "INVALID_RECORD": "the topic may be compacted and require keys",
    **dict.fromkeys(
        ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"),
        "create the topic with that partition, or give an existing one",
    ),
}


def _not_delivered(found: Undelivered, away: Any) -> str:
    place = found.topic if found.partition is None else f"{found.topic}-{found.partition}"
    record = f"a record of {found.size} bytes for {place} was not delivered"
    if found.error == "_MSG_TIMED_OUT":
        return f"{record}: {away()}"
    advice = _RECORD_ADVICE.get(found.error)
    return f"{record}: {found.text} ({found.error})" + (f"; {advice}" if advice else "")


def _undelivered(
    error: Any, topic: str, partition: int | None, key: Any, value: Any
) -> Undelivered:
    known = None if partition is None or partition < 0 else partition
    size = sum(len(part) for part in (key, value) if part is not None)
    return Undelivered(error.name(), error.str(), topic, known, size)


def _bad_record(where: str, record: Any, error: Exception | None) -> str:
    topic, partition, key, value, headers = record
    for name, given in (("key", key), ("value", value)):
        if not isinstance(given, (bytes, str, type(None))):
            return (
                f"{where}: the {name} of a record for {topic} is of type {type(given).__name__}; "
                f"give bytes, str or None, by {name}= a function such as json.dumps"
            )
    if not isinstance(topic, str) or not topic:
        return f"{where}: the topic of a record is {topic!r}; give the name of a topic"
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
        return f"{where}: the partition of a record for {topic} is {partition!r}; give an int"
    return (
        f"{where}: a record for {topic} cannot be sent: {error}; headers are pairs of a name and "
        f"bytes, str or None, here {headers!r:.200}"
    )


_kept: OrderedDict[tuple[Any, ...], KeptProducer] = OrderedDict()


def lend_producer(
    config: Mapping[str, Any], transactional_id: str, where: str, answer_s: float, owner: int
) -> tuple[KeptProducer, bool]:
    """Return the producer of a transactional id, and whether it is new.

    *owner* is the attempt of a task that used the id last, as far as the driver knows: a kept
    producer of another attempt is fenced.

    Raises:
        StreamError: the brokers refuse or do not answer.
    """
    key = _key(config, transactional_id)
    found = _kept.pop(key, None)
    is_new = found is None or owner < 0 or found.owner != owner
    if found is None or is_new:
        own = {**config, _TRANSACTIONAL_ID: transactional_id}
        found = KeptProducer(own, where, answer_s)
        found.take_over()
    return found, is_new


def plain_producer(config: Mapping[str, Any], where: str, answer_s: float) -> KeptProducer:
    """Return this process's producer for some settings, without transactions."""
    found = _kept.pop(_key(config, None), None)
    return KeptProducer(config, where, answer_s) if found is None else found


def keep(config: Mapping[str, Any], transactional_id: str | None, producer: KeptProducer) -> None:
    """Keep a producer that has not failed for the next task."""
    _kept[_key(config, transactional_id)] = producer
    while len(_kept) > _KEPT:
        _kept.popitem(last=False)


def _key(config: Mapping[str, Any], transactional_id: str | None) -> tuple[Any, ...]:
    # Functions, such as oauth_cb, are different objects in each task.
    plain = [(name, value) for name, value in sorted(config.items()) if not callable(value)]
    return (transactional_id, *plain)

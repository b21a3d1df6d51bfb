"""Parameters of Kafka for an output: what its producers have, and what the sink decides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dstreams.errors import InvalidStreamError
from dstreams.kafka.parameters import COMMIT, GROUP, ISOLATION, RESET, KafkaParameters

_DELIVERY = "message.timeout.ms"
_TRANSACTION = "transaction.timeout.ms"
_DELIVERY_MS, _TRANSACTION_MS = 120_000, 300_000

_SAME = {"delivery.timeout.ms": _DELIVERY, "request.required.acks": "acks"}
"""Names of Java and of 0.8 that librdkafka knows beside its own."""

_DECIDED_HERE = {
    "transactional.id": "it is made of the stream, the name of the sink and the partition",
    "delivery.report.only.error": "a task waits for what was not delivered yet",
    "on_delivery": "a record that is not delivered fails its task",
    "dr_cb": "a record that is not delivered fails its task",
}

_NEEDED = {
    "acks": ({"all", "-1"}, "records would be lost with a broker"),
    "enable.idempotence": ({"true"}, "a lost connection would double records"),
}
"""What a parameter may be, and what would happen else."""

_PRODUCERS_ONLY = re.compile(
    r"(acks|batch|compression|linger|message\.(timeout|send)|partitioner|queue\.buffering|retr"
    r"|enable\.(idempotence|gapless)|sticky|transaction|topic\.metadata\.propagation)[.\w]*"
)


@dataclass(frozen=True, repr=False)
class ProducerParameters(KafkaParameters):
    """What a program has given for an output, checked; pickled without its secrets."""

    @classmethod
    def of(cls, given: Any, where: str) -> ProducerParameters:
        """Check what a program has given, and translate older names.

        Raises:
            InvalidStreamError: something is missing, or cannot be.
        """
        checked = KafkaParameters.of(given, where)
        found = {_SAME.get(key, key): value for key, value in checked.given.items()}
        for key, why in _DECIDED_HERE.items():
            if key in found:
                raise InvalidStreamError(f"{where}: {key} cannot be set: {why}; leave it out")
        for key, (allowed, why) in _NEEDED.items():
            if key in found and str(found[key]).strip().lower() not in allowed:
                raise InvalidStreamError(
                    f"{where}: {key} is {found[key]!r}, with which {why}; leave it out"
                )
        for key in (_DELIVERY, _TRANSACTION):
            if not re.fullmatch(r"\s*[1-9]\d*\s*", str(found.get(key, 1))):
                raise InvalidStreamError(
                    f"{where}: {key} is {found[key]!r}; give milliseconds, at least 1"
                )
        parameters = cls(found, where)
        if parameters.delivery_ms > parameters.transaction_ms:
            raise InvalidStreamError(
                f"{where}: {_DELIVERY} is {parameters.delivery_ms} ms and {_TRANSACTION} "
                f"{parameters.transaction_ms} ms: records may not take longer than their "
                "transaction; give it more time, or them less"
            )
        return parameters

    @property
    def delivery_ms(self) -> int:
        """How long brokers may take for a record, and for each answer; as with Java's producers."""
        return int(self.given.get(_DELIVERY, _DELIVERY_MS))

    @property
    def transaction_ms(self) -> int:
        """After how long brokers give up a transaction of which they hear nothing."""
        return int(self.given.get(_TRANSACTION, max(_TRANSACTION_MS, self.delivery_ms)))

    def for_producers(self) -> dict[str, Any]:
        """Return the settings of the producers in workers, but for what transactions need."""
        return {
            "partitioner": "murmur2_random",  # that of Java; librdkafka has another default
            "queue.buffering.max.kbytes": 65_536,  # of each producer, where librdkafka has 1 GiB
            "topic.metadata.propagation.max.ms": 10_000,  # before a topic counts as unknown
            **{key: value for key, value in self.for_admin().items() if key != _TRANSACTION},
            _DELIVERY: self.delivery_ms,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.report.only.error": True,
        }

    def for_transactions(self) -> dict[str, Any]:
        """Return the settings of producers with transactions, but for their ids."""
        return {**self.for_producers(), _TRANSACTION: self.transaction_ms}

    def for_commits(self) -> dict[str, Any]:
        """Return the settings of consumers that read what an output has committed."""
        clients = self.for_admin().items()
        return {
            **{key: value for key, value in clients if not _PRODUCERS_ONLY.fullmatch(key)},
            GROUP: "dstreams-commits",
            ISOLATION: "read_committed",
            RESET: "error",
            COMMIT: False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
        }

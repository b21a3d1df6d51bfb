"""Parameters of Kafka's clients; checkpoints do not contain their secrets.

Programs use the names of Java's clients (``bootstrap.servers``, ``auto.offset.reset``), most of
which librdkafka shares. Parameters that only Java has are rejected with a replacement. The process
that uses a parameter resolves ``${env:NAME}``, so a secret given this way is available after a
restart. An ``oauth_cb`` is pickled with the variables it uses, so it is dropped from checkpoints if
one of them has the name of a secret.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from pyspark import cloudpickle

from dstreams.common.callables import captured
from dstreams.common.redaction import REDACTED, USER_IN_URL, secret_settings
from dstreams.common.settings import similar
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.kafka.java_names import HOW_TOKENS, instead_of, translated

_URL = re.compile(r"\w+://\S*")
_ANNOTATIONS = "__annotations__"
REFERENCE = re.compile(r"\$\{env:([^}]+)\}")

_is_secret_name = secret_settings({})
_SECRETS = frozenset(["ssl.key.pem", "sasl.oauthbearer.config"])
_NO_SECRETS = frozenset(
    ["sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.credentials.client.id"]
)
"""Names that only look like those of secrets."""

BROKERS = "bootstrap.servers"
GROUP = "group.id"
RESET = "auto.offset.reset"
ISOLATION = "isolation.level"
_ISOLATION_OF_JAVA = {ISOLATION: "read_uncommitted"}  # librdkafka has the other default
COMMIT = "enable.auto.commit"

_RESETS = {
    "earliest": "earliest",
    "smallest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "largest": "latest",
    "end": "latest",
    "none": "none",
    "error": "none",
}

_DECIDED_HERE = {
    "enable.partition.eof": "it detects the end of a range",
    "enable.auto.offset.store": "offsets are kept in the checkpoint",
    "auto.commit.interval.ms": "offsets are committed with batches",
    "error_cb": "errors of clients are logged and raised",
    "on_commit": "commitAsync takes a callback",
}
"""Parameters that the reader sets itself, and why."""

_IGNORED = frozenset(
    [
        *("partition.assignment.strategy", "max.poll.records"),
        *("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"),
    ]
)
"""Parameters without effect on assigned partitions, and those that other modules read."""

_MECHANISM = "sasl.mechanism"
_TOKENS = "oauth_cb"
_TOKEN_SETTINGS = (_TOKENS, "sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt")

_NOT_KEPT = (
    "is secret, so the checkpoint does not have it; give it as '${env:NAME}', which a restart "
    "reads from its environment"
)
_FUNCTION_NOT_KEPT = (
    "uses a variable with the name of a secret, so the checkpoint does not have it; let it read "
    "the secret from os.environ['NAME'] when it is called"
)

_CONSUMERS_ONLY = re.compile(
    r"(fetch|auto\.offset|queued|isolation|session|heartbeat|group|max\.poll|max\.partition"
    r"|partition\.assignment|check\.crcs|enable\.auto|coordinator)[.\w]*"
)


@dataclass(frozen=True, repr=False)
class KafkaParameters:
    """The checked parameters of a program; pickled without secrets.

    Args:
        given: the values of the program, by translated name.
        where: the operation, for messages.
    """

    given: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, given: Any, where: str) -> KafkaParameters:
        """Check parameters and translate their names.

        Raises:
            InvalidStreamError: a parameter is missing or invalid.
        """
        if not isinstance(given, Mapping):
            raise InvalidStreamError(
                f"{where} takes the parameters of Kafka as a dict, got {type(given).__name__}"
            )
        found: dict[str, Any] = {}
        for key, name, value in translated(given):
            if not isinstance(key, str):
                raise InvalidStreamError(f"{where}: a parameter of Kafka is named {key!r}")
            if name in _DECIDED_HERE:
                raise InvalidStreamError(
                    f"{where}: {key} cannot be set: {_DECIDED_HERE[name]}; remove it"
                )
            instead = instead_of(name)
            if instead is not None:
                raise InvalidStreamError(f"{where}: {key} is for the clients of Java; {instead}")
            if value is None or name in _IGNORED:
                continue
            _require_kind(where, key, value)
            if found.setdefault(name, value) != value:
                raise InvalidStreamError(
                    f"{where}: {key} and {name} are the same parameter and have different values; "
                    "remove one of them"
                )
        _require_login(where, found)
        if not str(found.get(BROKERS, "")).strip():
            raise InvalidStreamError(
                f"{where} needs bootstrap.servers, for example 'localhost:9092'"
            )
        parameters = cls(found, where)
        _ = parameters.reset
        return parameters

    @property
    def reset(self) -> str:
        """The start of partitions without an offset: ``earliest``, ``latest`` or ``none``."""
        value = self.given.get(RESET, "latest")
        if value not in _RESETS:
            hint = similar(value, _RESETS)
            raise InvalidStreamError(
                f"{self.where}: {RESET} is {value!r}; {hint}use one of earliest, latest, none"
            )
        return _RESETS[value]

    @property
    def group(self) -> str | None:
        """The consumer group, or None."""
        return self.given.get(GROUP)

    @property
    def commits_batches(self) -> bool:
        """Return whether the group gets the offsets of committed batches."""
        return str(self.given.get(COMMIT, "false")).strip().lower() == "true"

    def for_admin(self) -> dict[str, Any]:
        """Return the settings of clients for metadata and offsets."""
        return {
            key: value
            for key, value in self._resolved().items()
            if not _CONSUMERS_ONLY.fullmatch(key)
        }

    def for_group(self) -> dict[str, Any]:
        """Return the settings of the driver's consumer, which gets and commits offsets."""
        config = {**_ISOLATION_OF_JAVA, **self._resolved()}
        config.pop(RESET, None)
        return {**config, GROUP: self.group or "dstreams", COMMIT: False}

    def for_tasks(self) -> dict[str, Any]:
        """Return the settings of consumers in workers; their group is that of Spark's executors."""
        fetching = {
            # The records of a range exist, so waiting at the broker gains nothing, and would delay
            # the next range, which waits for the answer to the last request.
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 20_000,
        }
        return {
            **_ISOLATION_OF_JAVA,
            **fetching,
            **self._resolved(),
            GROUP: f"spark-executor-{self.group or 'dstreams'}",
            RESET: "error",
            COMMIT: False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }

    def _resolved(self) -> dict[str, Any]:
        """Return the parameters with ``${env:NAME}`` resolved in this process."""
        return {key: self._value(key, value) for key, value in self.given.items()}

    def _value(self, key: str, value: Any) -> Any:
        if value == REDACTED:
            why = _FUNCTION_NOT_KEPT if key == _TOKENS else _NOT_KEPT
            raise RestartError(
                f"{self.where}: {key} {why}, or restart with StreamingContext.restore, which runs "
                "the program again"
            )
        return look_up(value, key, self.where) if isinstance(value, str) else value

    def redacted(self) -> dict[str, Any]:
        """Return the parameters without secrets, for people and for checkpoints."""
        return {
            key: REDACTED if _is_secret(key, value) else value for key, value in self.given.items()
        }

    @property
    def unkept(self) -> tuple[str, ...]:
        """Names of the secrets that checkpoints do not contain."""
        return tuple(key for key, value in self.redacted().items() if value == REDACTED)

    def __repr__(self) -> str:
        return f"KafkaParameters({self.redacted()!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.redacted(), "where": self.where}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def look_up(text: str, key: str, where: str) -> str:
    """Resolve each ``${env:NAME}`` in *text* from the environment of this process.

    Raises:
        InvalidStreamError: a variable is missing.
    """

    def found(reference: re.Match[str]) -> str:
        value = os.environ.get(reference[1])
        if value is None:
            raise InvalidStreamError(
                f"{where}: {key} is {reference[0]}, and this process has no environment variable "
                f"{reference[1]}; set it where the driver is started, and for workers by "
                f"spark.executorEnv.{reference[1]}"
            )
        return value

    return REFERENCE.sub(found, text)


def _require_kind(where: str, key: str, value: Any) -> None:
    if key == _TOKENS:
        if not callable(value):
            raise InvalidStreamError(
                f"{where}: oauth_cb must be a function that returns a token and the second when "
                f"it expires, got {type(value).__name__}"
            )
    elif isinstance(value, (list, tuple)):
        raise InvalidStreamError(
            f"{where}: {key} must be one str with commas between values, got {type(value).__name__}"
        )
    elif not isinstance(value, (str, int, float)):
        raise InvalidStreamError(
            f"{where}: {key} must be a str, a number or a bool, got {type(value).__name__}"
        )


def _require_login(where: str, found: Mapping[str, Any]) -> None:
    """Reject incomplete logins, with which clients fail for ever or without a reason."""
    if not str(found.get("security.protocol", "")).upper().startswith("SASL"):
        return
    mechanism = found.get(_MECHANISM)
    if mechanism is None:
        raise InvalidStreamError(
            f"{where}: security.protocol is {found['security.protocol']} but no login is "
            "given; give sasl.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
        )
    if mechanism == "OAUTHBEARER" and not any(name in found for name in _TOKEN_SETTINGS):
        raise InvalidStreamError(
            f"{where}: sasl.mechanism is OAUTHBEARER but no source of tokens is given; "
            + HOW_TOKENS
        )


def _is_secret(key: str, value: Any) -> bool:
    """Return whether a parameter is secret by its name, or a function by its variables' names.

    Values do not count: brokers, groups and files may contain such words.
    """
    if callable(value):
        return secret_of(value) is not None
    if isinstance(value, str) and REFERENCE.fullmatch(value) is not None:
        return False
    named = key in _SECRETS or (_is_secret_name(key, "") and key not in _NO_SECRETS)
    return named or USER_IN_URL.search(str(value)) is not None


def secret_of(func: Callable[..., Any]) -> str | None:
    """Return the name of a secret that pickling a function would write, or None.

    A secret is a text in a variable, parameter, attribute or key with the name of a secret.
    Literals in the code of the function have no name and are not found.
    """
    search = _SecretSearch()
    with suppress(Exception):  # a function that cannot be pickled is rejected with the graph
        search.dump(func)  # type: ignore[no-untyped-call]
    return search.found


class _SecretSearch(cloudpickle.Pickler):
    """Inspects all pickled objects; ``found`` is the name of the first secret."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())  # type: ignore[no-untyped-call]
        self.found: str | None = None
        self._annotations: list[object] = []  # their texts are types, not secrets

    def persistent_id(self, value: object) -> None:
        for name, item in self._named(value):
            if _is_secret_text(name, item):
                self.found = self.found or name

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)  # type: ignore[no-untyped-call]
        if (
            isinstance(value, FunctionType) and reduced is not NotImplemented
        ):  # it is pickled by value
            self.persistent_id(dict(captured(value)))
        return reduced

    def _named(self, value: object) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict) and not any(value is one for one in self._annotations):
            self._annotations.append(value.get(_ANNOTATIONS))
            yield from ((_text(key), item) for key, item in value.items())
        elif isinstance(value, functools.partial):
            with suppress(TypeError, ValueError):  # builtins have no signature
                yield from zip(inspect.signature(value.func).parameters, value.args, strict=False)


def _is_secret_text(name: str, value: object) -> bool:
    if value is os.environ:
        return True
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_is_secret_text(name, item) for item in value)
    if not isinstance(value, (str, bytes)) or not value:
        return False
    text = _text(value)
    named = _is_secret_name(name, "") and not _URL.fullmatch(text)
    return named or USER_IN_URL.search(text) is not None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def client_settings(brokers: str | None, config: Path | None) -> dict[str, str]:
    """Return the settings in a file of lines ``name=value``, with *brokers* if given.

    Raises:
        InvalidStreamError: the file cannot be read; the message quotes none of its lines.
    """
    given: dict[str, str] = {}
    if config is not None:
        try:
            lines = config.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidStreamError(f"{config} cannot be read: {type(error).__name__}") from None
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line or line[0] in "#!":
                continue
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise InvalidStreamError(
                    f"line {number} of {config} is not a setting; write name=value, one per line"
                )
            given[name.strip()] = value.strip()
    return {**given, BROKERS: brokers} if brokers else given


_DELIVERY = "message.timeout.ms"
_TRANSACTION = "transaction.timeout.ms"
_DELIVERY_MS, _TRANSACTION_MS = 120_000, 300_000

_SAME = {"delivery.timeout.ms": _DELIVERY, "request.required.acks": "acks"}
"""Aliases that librdkafka accepts."""

_DECIDED_BY_SINK = {
    "transactional.id": "it identifies the stream, the sink and the partition",
    "delivery.report.only.error": "a task waits for undelivered records",
    "on_delivery": "a record that is not delivered fails its task",
    "dr_cb": "a record that is not delivered fails its task",
}

_REQUIRED = {
    "acks": ({"all", "-1"}, "records would be lost with a broker"),
    "enable.idempotence": ({"true"}, "a lost connection would duplicate records"),
}
"""Allowed values, and the consequence of others."""

_PRODUCERS_ONLY = re.compile(
    r"(acks|batch|compression|linger|message\.(timeout|send)|partitioner|queue\.buffering|retr"
    r"|enable\.(idempotence|gapless)|sticky|transaction|topic\.metadata\.propagation)[.\w]*"
)


@dataclass(frozen=True, repr=False)
class ProducerParameters(KafkaParameters):
    """The checked parameters of an output; pickled without secrets."""

    @classmethod
    def of(cls, given: Any, where: str) -> ProducerParameters:
        """Check parameters and translate their names.

        Raises:
            InvalidStreamError: a parameter is missing or invalid.
        """
        checked = KafkaParameters.of(given, where)
        found = {_SAME.get(key, key): value for key, value in checked.given.items()}
        for key, why in _DECIDED_BY_SINK.items():
            if key in found:
                raise InvalidStreamError(f"{where}: {key} cannot be set: {why}; remove it")
        for key, (allowed, why) in _REQUIRED.items():
            if key in found and str(found[key]).strip().lower() not in allowed:
                raise InvalidStreamError(
                    f"{where}: {key} is {found[key]!r}, with which {why}; remove it"
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
                "transaction; raise the latter or lower the former"
            )
        return parameters

    @property
    def delivery_ms(self) -> int:
        """Milliseconds to wait for the delivery of a record, and for each answer."""
        return int(self.given.get(_DELIVERY, _DELIVERY_MS))

    @property
    def transaction_ms(self) -> int:
        """Milliseconds after which brokers abort an inactive transaction."""
        return int(self.given.get(_TRANSACTION, max(_TRANSACTION_MS, self.delivery_ms)))

    def for_producers(self) -> dict[str, Any]:
        """Return the settings of producers in workers, without transactions."""
        return {
            "partitioner": "murmur2_random",  # Java's default
            "queue.buffering.max.kbytes": 65_536,  # the default is 1 GiB per producer
            "topic.metadata.propagation.max.ms": 10_000,  # then a topic is unknown
            **{key: value for key, value in self.for_admin().items() if key != _TRANSACTION},
            _DELIVERY: self.delivery_ms,
            "acks": "all",
            "enable.idempotence": True,
            "delivery.report.only.error": True,
        }

    def for_transactions(self) -> dict[str, Any]:
        """Return the settings of producers with transactions, without their ids."""
        return {**self.for_producers(), _TRANSACTION: self.transaction_ms}

    def for_commits(self) -> dict[str, Any]:
        """Return the settings of consumers that read an output's commits."""
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

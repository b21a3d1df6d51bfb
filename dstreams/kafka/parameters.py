"""Parameters of Kafka: by the names of its Java clients, and none of the secrets in a checkpoint.

Programs name what Java's consumers know (``bootstrap.servers``, ``auto.offset.reset``); librdkafka,
which reads and writes here, has most of these names too. What only Java has is refused by name,
with what to use. A value may be ``${env:NAME}``, as in Kafka's configuration providers: the process
that reads looks it up, so a secret that is given so is found again after a restart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstreams.common.configuration import similar
from dstreams.common.redaction import REDACTED, USER_IN_URL, secret_settings
from dstreams.errors import InvalidStreamError, RestartError
from dstreams.kafka.java_names import HOW_TOKENS, instead_of, translated
from dstreams.kafka.token_functions import secret_of

REFERENCE = re.compile(r"\$\{env:([^}]+)\}")

_BY_NAME = secret_settings({})
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
    "enable.partition.eof": "the end of a range is found by it",
    "enable.auto.offset.store": "offsets are kept in the checkpoint",
    "auto.commit.interval.ms": "offsets are committed as batches are",
    "error_cb": "what clients report is logged and raised",
    "on_commit": "commitAsync takes a callback",
}
"""What the reader has to set itself, and why."""

_IGNORED = frozenset(
    [
        *("partition.assignment.strategy", "max.poll.records"),
        *("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"),
    ]
)
"""What has no meaning for who assigns its partitions, and what is read elsewhere."""

_MECHANISM = "sasl.mechanism"
_TOKENS = "oauth_cb"
_TOKEN_SETTINGS = (_TOKENS, "sasl.oauthbearer.method", "enable.sasl.oauthbearer.unsecure.jwt")

_NOT_KEPT = (
    "is secret, so the checkpoint does not have it; give it as '${env:NAME}', which a restart "
    "looks up in its own process"
)
_FUNCTION_NOT_KEPT = (
    "uses a variable that is secret by its name, so the checkpoint does not have it; let it read "
    "the secret when it is called, by os.environ['NAME']"
)

_CONSUMERS_ONLY = re.compile(
    r"(fetch|auto\.offset|queued|isolation|session|heartbeat|group|max\.poll|max\.partition"
    r"|partition\.assignment|check\.crcs|enable\.auto|coordinator)[.\w]*"
)


@dataclass(frozen=True, repr=False)
class KafkaParameters:
    """What a program has given, checked; pickled without its secrets.

    Args:
        given: by the names of this module; values as the program gave them.
        where: the operation that they were given to, for messages.
    """

    given: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, given: Any, where: str) -> KafkaParameters:
        """Check what a program has given, and translate older names.

        Raises:
            InvalidStreamError: something is missing, or cannot be.
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
                    f"{where}: {key} cannot be set: {_DECIDED_HERE[name]}; leave it out"
                )
            instead = instead_of(name)
            if instead is not None:
                raise InvalidStreamError(f"{where}: {key} is for the clients of Java; {instead}")
            if value is None or name in _IGNORED:
                continue
            _require_kind(where, key, value)
            if found.setdefault(name, value) != value:
                raise InvalidStreamError(
                    f"{where}: {key} and {name} are one parameter, and are given two values; "
                    "leave one of them out"
                )
        _require_login(where, found)
        if not str(found.get(BROKERS, "")).strip():
            raise InvalidStreamError(
                f"{where} does not say where the brokers are; give bootstrap.servers, for example "
                "'localhost:9092'"
            )
        parameters = cls(found, where)
        _ = parameters.reset
        return parameters

    @property
    def reset(self) -> str:
        """Where a partition begins that nothing is known of: ``earliest``, ``latest``, ``none``."""
        said = self.given.get(RESET, "latest")
        if said not in _RESETS:
            hint = similar(said, _RESETS)
            raise InvalidStreamError(
                f"{self.where}: {RESET} is {said!r}; {hint}use one of earliest, latest, none"
            )
        return _RESETS[said]

    @property
    def group(self) -> str | None:
        """The consumer group, None for none."""
        return self.given.get(GROUP)

    @property
    def reads_committed(self) -> bool:
        """Whether records of transactions that were not committed are left out."""
        return self.given.get(ISOLATION) == "read_committed"

    @property
    def commits_batches(self) -> bool:
        """Whether offsets go to the group as batches are committed."""
        return str(self.given.get(COMMIT, "false")).strip().lower() == "true"

    def for_admin(self) -> dict[str, Any]:
        """Return the settings of a client that asks for topics and offsets."""
        return {
            key: value
            for key, value in self._resolved().items()
            if not _CONSUMERS_ONLY.fullmatch(key)
        }

    def for_group(self) -> dict[str, Any]:
        """Return the settings of the driver's consumer, which asks for and commits offsets."""
        config = {**_ISOLATION_OF_JAVA, **self._resolved()}
        config.pop(RESET, None)
        return {**config, GROUP: self.group or "dstreams", COMMIT: False}

    def for_tasks(self) -> dict[str, Any]:
        """Return the settings of the consumers in workers.

        They belong to a group of their own name, as Spark's do, and begin nowhere by themselves.
        """
        fetching = {
            # A range that is to be read is there: nothing is gained by waiting at the broker. With
            # more, a consumer that goes on elsewhere waits for the answer to its last request.
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
        """The parameters with what ``${env:NAME}`` stands for here."""
        return {key: self._value(key, value) for key, value in self.given.items()}

    def _value(self, key: str, value: Any) -> Any:
        if value == REDACTED:
            why = _FUNCTION_NOT_KEPT if key == _TOKENS else _NOT_KEPT
            raise RestartError(
                f"{self.where}: {key} {why}, or restart with StreamingContext.restore, which asks "
                "the program again"
            )
        return look_up(value, key, self.where) if isinstance(value, str) else value

    def redacted(self) -> dict[str, Any]:
        """Return the parameters with no secret among them, for people and for checkpoints."""
        return {
            key: REDACTED if _is_secret(key, value) else value for key, value in self.given.items()
        }

    @property
    def unkept(self) -> tuple[str, ...]:
        """Names of the secrets that a checkpoint will not have."""
        return tuple(key for key, value in self.redacted().items() if value == REDACTED)

    def __repr__(self) -> str:
        return f"KafkaParameters({self.redacted()!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.redacted(), "where": self.where}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def look_up(text: str, key: str, where: str) -> str:
    """Return *text* with what each ``${env:NAME}`` in it stands for in this process.

    Raises:
        InvalidStreamError: there is no such variable; *key* and *where* say of what.
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
                f"{where}: oauth_cb is a function that returns a token and the second when it "
                f"expires, got {type(value).__name__}"
            )
    elif isinstance(value, (list, tuple)):
        raise InvalidStreamError(
            f"{where}: {key} is one text, with commas between several; got {type(value).__name__}"
        )
    elif not isinstance(value, (str, int, float)):
        raise InvalidStreamError(
            f"{where}: {key} is a text, a number or a bool, got {type(value).__name__}"
        )


def _require_login(where: str, found: Mapping[str, Any]) -> None:
    """Refuse what clients would wait with for ever, or say no more of than that it fails."""
    if not str(found.get("security.protocol", "")).upper().startswith("SASL"):
        return
    mechanism = found.get(_MECHANISM)
    if mechanism is None:
        raise InvalidStreamError(
            f"{where}: security.protocol is {found['security.protocol']} and nothing says how to "
            "log in; give sasl.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
        )
    if mechanism == "OAUTHBEARER" and not any(name in found for name in _TOKEN_SETTINGS):
        raise InvalidStreamError(
            f"{where}: sasl.mechanism is OAUTHBEARER and nothing says where tokens come from; "
            + HOW_TOKENS
        )


def _is_secret(key: str, value: Any) -> bool:
    """Whether a parameter is secret, by its name; of a function by the names of what it uses.

    Values tell little: brokers, groups and files may well be named after a secret.
    """
    if callable(value):
        return secret_of(value) is not None
    if _is_reference(value):
        return False
    named = key in _SECRETS or (_BY_NAME(key, "") and key not in _NO_SECRETS)
    return named or USER_IN_URL.search(str(value)) is not None


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None

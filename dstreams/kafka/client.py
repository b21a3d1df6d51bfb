"""Clients of librdkafka, and the meaning of their errors.

A process makes its own clients: the threads of librdkafka do not survive a fork, and Spark's Python
workers are forked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from dstreams.common.clock import Clock
from dstreams.common.settings import similar
from dstreams.errors import EnvironmentNotReadyError, SourceError

logger = logging.getLogger(__name__)

_REFUSALS = ("_AUTHENTICATION", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE")  # fmt: skip
_REFUSED_CERTIFICATE = re.compile("certificate verify failed|SSL routines::.* alert")
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"  # noqa: S105 - text of librdkafka
_NEVER_YET = ("_SSL", "_RESOLVE")
"""Wrong settings before the first answer of a broker, network trouble after it."""
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION",
    "_NOENT")  # fmt: skip
_NEW_LEADER = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REPLICA_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH")  # fmt: skip
_MAY_HEAL = (*_NEW_LEADER, "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE",
    "_WAIT_COORD",
    "_DESTROY_BROKER",  # of a connection that was closed while a request waited for it
    "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE", "NETWORK_EXCEPTION",
    "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
    "KAFKA_STORAGE_ERROR", "NOT_CONTROLLER")  # fmt: skip
_UNKNOWN_SETTING = re.compile(r'No such configuration property: "(.*)"')
_COMMON_SETTINGS = ("acks", "auto.offset.reset", "batch.size", "bootstrap.servers",
    "client.id", "compression.type", "delivery.timeout.ms", "enable.auto.commit",
    "enable.idempotence", "fetch.max.bytes", "fetch.min.bytes", "group.id", "isolation.level",
    "linger.ms", "max.partition.fetch.bytes", "max.request.size", "metadata.max.age.ms",
    "request.timeout.ms", "retries", "sasl.mechanism", "sasl.password", "sasl.username",
    "security.protocol", "session.timeout.ms", "socket.timeout.ms", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
    "transaction.timeout.ms")  # fmt: skip
_WARN_EACH_MS = 60_000


def confluent_kafka() -> ModuleType:
    """Import the client library.

    Raises:
        EnvironmentNotReadyError: it is not installed.
    """
    try:
        import confluent_kafka.admin  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise EnvironmentNotReadyError(
            f"Kafka needs the package confluent-kafka, which cannot be imported ({error}); install "
            "it for the driver and the workers: pip install 'dstreams[kafka]'"
        ) from error
    return confluent_kafka


class ClientErrors:
    """The errors that a client reports by callback; thread-safe."""

    def __init__(self) -> None:
        self._last: Any = None
        self._lasting: Any = None
        self._all_down = False
        self._has_answered = False

    def __call__(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._all_down = True
            self._last = self._last or error  # the error before says why
            return
        self._last = error
        if self._lasts(error):
            self._lasting = error

    def _lasts(self, error: Any) -> bool:
        if error.name() in _REFUSALS:
            return _NO_TOKEN not in error.str()  # the token endpoint may be down
        if error.name() in _NEVER_YET and not self._has_answered:
            return True
        return error.fatal() or _REFUSED_CERTIFICATE.search(error.str()) is not None

    @property
    def lasting(self) -> Any:
        """An error that waiting does not solve, such as a rejected password, or None."""
        return self._lasting

    @property
    def refusal(self) -> Any:
        """A lasting error while no other broker can answer, or None."""
        return self._lasting if self._all_down else None

    @property
    def has_no_listener(self) -> bool:
        """Return whether every broker refuses connections and none has ever answered."""
        refused = self._last is not None and "Connection refused" in self._last.str()
        return refused and self._all_down and not self._has_answered

    @property
    def last(self) -> Any:
        """The newest error, or None."""
        return self._last

    @property
    def has_answered(self) -> bool:
        """Return whether a broker has ever answered."""
        return self._has_answered

    def answered(self) -> None:
        """Forget errors after an answer of the brokers."""
        self.forget()
        self._has_answered = True

    def forget(self) -> None:
        """Forget errors that were reported."""
        self._last = self._lasting = None
        self._all_down = False


class ConnectionState:
    """Logs the loss and the return of the brokers of one input; not thread-safe."""

    def __init__(self, where: str, clock: Clock) -> None:
        self._where = where
        self._clock = clock
        self._since_ms: int | None = None
        self._logged_ms = 0
        self._batches = 0

    def lost(self, why: Exception) -> None:
        """Record a batch without records because no broker answers; warn once a minute."""
        now_ms = self._clock.now_ms()
        self._batches += 1
        if self._since_ms is None:
            self._since_ms = self._logged_ms = now_ms
            logger.warning("%s; batches run without its records until a broker answers", why)
        elif not 0 <= now_ms - self._logged_ms < _WARN_EACH_MS:
            self._logged_ms = now_ms
            seconds = max(0, now_ms - self._since_ms) // 1000
            logger.warning(
                "%s, for %d s now; %d batches ran without its records", why, seconds, self._batches
            )

    def restored(self) -> None:
        """Record an answer of the brokers."""
        if self._since_ms is not None:
            logger.warning(
                "%s: its brokers answer again, after %d s and %d batches without its records",
                self._where,
                max(0, self._clock.now_ms() - self._since_ms) // 1000,
                self._batches,
            )
            self._since_ms, self._batches = None, 0


def may_heal(error: BaseException) -> bool:
    """Return whether an error ends when the brokers are back."""
    code = _code(error)
    return code is not None and code.name() in _MAY_HEAL


def is_of_new_leader(error: BaseException) -> bool:
    """Return whether a broker does not lead a partition, or not yet."""
    code = _code(error)
    return code is not None and code.name() in _NEW_LEADER


def is_unknown_topic(error: BaseException) -> bool:
    """Return whether a topic or partition does not exist."""
    code = _code(error)
    return code is not None and is_unknown(code)


def is_unknown(error: Any) -> bool:
    """Return whether the error that a client reports means so."""
    return error.name() in _UNKNOWN


def reason(error: BaseException) -> str:
    """Return the message of a client's exception."""
    code = _code(error)
    return str(error) if code is None else f"{code.str()} ({code.name()})"


def refused(where: str, brokers: Any, error: Any) -> str:
    """Return the message for a client that the brokers reject."""
    return (
        f"{where}: the brokers {brokers} refuse this client: {reason_of(error)} of its parameters"
    )


def reason_of(error: Any) -> str:
    """Return why brokers reject a client, and which settings to check."""
    text, settings = error.str(), "security.protocol, sasl.* and ssl.*"
    if "certificate verify failed" in text:
        settings = "ssl.ca.location"
    return f"{text} ({error.name()}); check {settings}"


def _code(error: BaseException) -> Any:
    """Return the KafkaError of a client's exception, or None."""
    code = error.args[0] if error.args else None
    return code if hasattr(code, "name") and hasattr(code, "str") else None


def make(kind: str, config: Mapping[str, Any], what: str) -> Any:
    """Make a ``Consumer``, ``Producer`` or ``AdminClient``; *what* names the input or output.

    Raises:
        SourceError: a setting is unknown or invalid, or ``oauth_cb`` failed.
    """
    library = confluent_kafka()
    maker: Callable[..., Any] = (
        library.admin.AdminClient if kind == "AdminClient" else getattr(library, kind)
    )
    settings = dict(config)
    tokens = None
    if "oauth_cb" in settings:
        tokens = settings["oauth_cb"] = _Tokens(settings["oauth_cb"], what)
    try:
        return maker(settings)
    except (library.KafkaException, SystemError) as error:  # the latter if a callback raised
        failure = None if tokens is None else tokens.failure
        if failure is not None:
            raise SourceError(f"{what}: oauth_cb returned no token: {failure!r}") from failure
        unknown = _UNKNOWN_SETTING.search(reason(error))
        if unknown:
            hint = similar(unknown[1], _COMMON_SETTINGS)
            raise SourceError(
                f"{what}: Kafka has no setting {unknown[1]!r}; {hint}remove it, or correct its name"
            ) from None
        raise SourceError(f"{what}: invalid settings of Kafka: {reason(error)}") from None


class _Tokens:
    """Calls a program's ``oauth_cb``; if it fails, the last token is used while it is valid."""

    def __init__(self, ask: Callable[[str], Any], what: str) -> None:
        self._ask = ask
        self._what = what
        self._last: Any = None
        self.failure: Exception | None = None

    def __call__(self, config: str) -> Any:
        try:
            self._last = self._ask(config)
        except Exception as error:
            self.failure = error
            if self._last is None:
                raise
            logger.warning("%s: oauth_cb failed; using the last token", self._what, exc_info=True)
        return self._last

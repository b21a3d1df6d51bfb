"""Clients of librdkafka, and what their errors mean.

A process makes its clients when it first needs one: the threads of librdkafka do not live on in a
process that is forked, as Spark's Python workers are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from dstreams.errors import EnvironmentNotReadyError, SourceError

logger = logging.getLogger(__name__)

_NEVER_HEALS = ("_AUTHENTICATION", "_SSL", "_RESOLVE", "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")  # fmt: skip
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION",
    "_NOENT")  # fmt: skip
_MAY_HEAL = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_WAIT_COORD",
    "REQUEST_TIMED_OUT", "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION",
    "BROKER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION",
    "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
    "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
    "NOT_CONTROLLER")  # fmt: skip


def confluent_kafka() -> ModuleType:
    """Import the client library.

    Raises:
        EnvironmentNotReadyError: it is not installed.
    """
    try:
        import confluent_kafka.admin  # noqa: PLC0415 - only who reads Kafka needs it
    except ImportError as error:
        raise EnvironmentNotReadyError(
            "Kafka is read and written by the package confluent-kafka, which cannot be imported "
            f"here ({error}); install it where the driver and the workers run: "
            "pip install 'dstreams[kafka]'"
        ) from error
    return confluent_kafka


class ClientErrors:
    """The errors that a client reports beside its calls; safe between threads."""

    def __init__(self) -> None:
        self._last: Any = None
        self._lasting: Any = None

    def __call__(self, error: Any) -> None:
        self._last = error
        if error.name() in _NEVER_HEALS or error.fatal():
            self._lasting = error

    @property
    def lasting(self) -> Any:
        """An error that no waiting will heal, such as a refused password; None for none."""
        return self._lasting

    @property
    def last(self) -> Any:
        """The newest error, None for none."""
        return self._last

    def clear(self) -> None:
        """Forget them: the brokers have answered."""
        self._last = self._lasting = None


def may_heal(error: BaseException) -> bool:
    """Whether an error of a client is one of those that end when the brokers are back."""
    return _code(error).name() in _MAY_HEAL if _code(error) is not None else False


def is_unknown_topic(error: BaseException) -> bool:
    """Whether an error says that there is no such topic or partition."""
    code = _code(error)
    return code is not None and code.name() in _UNKNOWN


def reason(error: BaseException) -> str:
    """Say what a client has reported, in its words."""
    code = _code(error)
    return str(error) if code is None else f"{code.str()} ({code.name()})"


def _code(error: BaseException) -> Any:
    """The KafkaError of an exception, None of one that is not of a client."""
    code = error.args[0] if error.args else None
    return code if hasattr(code, "name") and hasattr(code, "str") else None


def make(kind: str, config: Mapping[str, Any], what: str) -> Any:
    """Make a client of confluent-kafka.

    Args:
        kind: ``Consumer``, ``Producer`` or ``AdminClient``.
        config: in the names of librdkafka.
        what: the input or output that it is for, for messages.

    Raises:
        SourceError: the settings cannot be.
    """
    library = confluent_kafka()
    maker: Callable[..., Any] = (
        library.admin.AdminClient if kind == "AdminClient" else getattr(library, kind)
    )
    try:
        return maker(dict(config))
    except library.KafkaException as error:
        raise SourceError(f"{what}: the settings of Kafka cannot be: {reason(error)}") from None

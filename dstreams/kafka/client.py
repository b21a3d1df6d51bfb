"""Clients of librdkafka, and what their errors mean.

A process makes its clients when it first needs one: the threads of librdkafka do not live on in a
process that is forked, as Spark's Python workers are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from dstreams.errors import EnvironmentNotReadyError, SourceError

logger = logging.getLogger(__name__)

_REFUSALS = ("_AUTHENTICATION", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE")  # fmt: skip
_REFUSED_CERTIFICATE = re.compile("certificate verify failed|SSL routines::.* alert")
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"  # noqa: S105 - what librdkafka says then
_NEVER_YET = ("_SSL", "_RESOLVE")
"""What is wrong with settings where nothing has answered yet, and with the network afterwards."""
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION",
    "_NOENT")  # fmt: skip
_NEW_LEADER = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REPLICA_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH")  # fmt: skip
_MAY_HEAL = (*_NEW_LEADER, "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE",
    "_WAIT_COORD",
    "_DESTROY_BROKER",  # of a connection that was given up while a request waited for it
    "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE", "NETWORK_EXCEPTION",
    "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
    "KAFKA_STORAGE_ERROR", "NOT_CONTROLLER")  # fmt: skip


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
        self._all_down = False
        self._has_answered = False

    def __call__(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._all_down = True
            self._last = self._last or error  # what went before says why
            return
        self._last = error
        if self._lasts(error):
            self._lasting = error

    def _lasts(self, error: Any) -> bool:
        if error.name() in _REFUSALS:
            return _NO_TOKEN not in error.str()  # who gives tokens may be away
        if error.name() in _NEVER_YET and not self._has_answered:
            return True
        return error.fatal() or _REFUSED_CERTIFICATE.search(error.str()) is not None

    @property
    def lasting(self) -> Any:
        """An error that no waiting will heal, such as a refused password; None for none."""
        return self._lasting

    @property
    def refusal(self) -> Any:
        """A lasting error while no other broker is there to answer; None for none."""
        return self._lasting if self._all_down else None

    @property
    def last(self) -> Any:
        """The newest error, None for none."""
        return self._last

    @property
    def has_answered(self) -> bool:
        """Whether brokers have answered at any time."""
        return self._has_answered

    def answered(self) -> None:
        """Forget them: the brokers have answered."""
        self.forget()
        self._has_answered = True

    def forget(self) -> None:
        """Forget them: they have been told."""
        self._last = self._lasting = None
        self._all_down = False


def may_heal(error: BaseException) -> bool:
    """Whether an error of a client is one of those that end when the brokers are back."""
    return _code(error).name() in _MAY_HEAL if _code(error) is not None else False


def is_of_new_leader(error: BaseException) -> bool:
    """Whether a broker says that it does not lead a partition, as it may be told to shortly."""
    return _code(error).name() in _NEW_LEADER if _code(error) is not None else False


def is_unknown_topic(error: BaseException) -> bool:
    """Whether an error says that there is no such topic or partition."""
    code = _code(error)
    return code is not None and is_unknown(code)


def is_unknown(error: Any) -> bool:
    """Whether an error that a client reports says so."""
    return error.name() in _UNKNOWN


def reason(error: BaseException) -> str:
    """Say what a client has reported, in its words."""
    code = _code(error)
    return str(error) if code is None else f"{code.str()} ({code.name()})"


def refused(where: str, brokers: Any, error: Any) -> str:
    """Say that brokers refuse a client, with what it has reported, and where to look."""
    return (
        f"{where}: the brokers {brokers} refuse this client: {error.str()} ({error.name()}); look "
        "at security.protocol, sasl.* and ssl.* of its parameters"
    )


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
    settings = dict(config)
    tokens = None
    if "oauth_cb" in settings:
        tokens = settings["oauth_cb"] = _Tokens(settings["oauth_cb"], what)
    try:
        return maker(settings)
    except (library.KafkaException, SystemError) as error:  # the latter for what a callback raised
        failure = None if tokens is None else tokens.failure
        if failure is not None:
            raise SourceError(f"{what}: oauth_cb has given no token: {failure!r}") from failure
        raise SourceError(f"{what}: the settings of Kafka cannot be: {reason(error)}") from None


class _Tokens:
    """Asks a program for tokens; while it fails, the last token serves as long as it is valid."""

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
            logger.warning("%s: oauth_cb failed; the last token is used", self._what, exc_info=True)
        return self._last

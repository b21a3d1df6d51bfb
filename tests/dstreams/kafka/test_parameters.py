"""Parameters of Kafka: names of Java, what is refused, and that no secret leaves."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from dstreams import InvalidStreamError
from dstreams.errors import RestartError
from dstreams.kafka.java_names import _JAVA_ONLY, _RENAMED
from dstreams.kafka.parameters import KafkaParameters

BROKERS = {"bootstrap.servers": "localhost:9092"}


def parameters(**given: Any) -> KafkaParameters:
    """Parameters of some brokers."""
    return KafkaParameters.of({**BROKERS, **given}, "createDirectStream")


def refused(given: Any) -> str:
    with pytest.raises(InvalidStreamError) as raised:
        KafkaParameters.of(given, "createDirectStream")
    return str(raised.value)


# Names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "here"),
    [
        ({"metadata.broker.list": "a:1"}, {"bootstrap.servers": "a:1"}),
        ({**BROKERS, "fetch.max.wait.ms": 7}, {**BROKERS, "fetch.wait.max.ms": 7}),
        ({**BROKERS, "receive.buffer.bytes": 7}, {**BROKERS, "socket.receive.buffer.bytes": 7}),
        ({**BROKERS, "max.poll.records": 7, "client.id": None}, BROKERS),
        (
            {**BROKERS, "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {**BROKERS, "ssl.ca.location": "/ca.pem"},
        ),
        (
            {**BROKERS, "ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem"},
            {**BROKERS, "ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem"},
        ),
        (
            {**BROKERS, "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12"},
            {**BROKERS, "ssl.keystore.location": "/me.p12"},
        ),
        (
            {**BROKERS, "ssl.truststore.certificates": "-----BEGIN"},
            {**BROKERS, "ssl.ca.pem": "-----BEGIN"},
        ),
        (
            {**BROKERS, "ssl.endpoint.identification.algorithm": ""},
            {**BROKERS, "ssl.endpoint.identification.algorithm": "none"},
        ),
    ],
)
def test_names_of_java(given: dict[str, Any], here: dict[str, Any]) -> None:
    """Names of Java's clients are translated for librdkafka."""
    assert KafkaParameters.of(given, "createDirectStream").given == here


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("ssl.truststore.location", "/ca.jks", "give ssl.ca.location .*ssl.truststore.type=PEM"),
        ("ssl.truststore.type", "JKS", "librdkafka reads certificates as PEM: .*keytool -export"),
        ("ssl.keystore.type", "JKS", "PKCS#12 .*-importkeystore.*ssl.certificate.location"),
        ("sasl.jaas.config", "X required;", "give sasl.mechanism, sasl.username and sasl.password"),
        (
            "sasl.login.callback.handler.class",
            "a.B",
            "sasl.oauthbearer.method=oidc .*oauth_cb",
        ),
        ("sasl.login.refresh.window.factor", "0.8", "give sasl.oauthbearer.method=oidc"),
        ("interceptor.classes", "a.B", "map the records of the stream instead"),
        ("partitioner.class", "a.B", "partitioner, such as murmur2_random"),
    ],
)
def test_what_only_java_knows(name: str, value: str, remedy: str) -> None:
    """The error has the name and the replacement, but not the value."""
    said = refused({**BROKERS, name: value})
    assert re.match(f"createDirectStream: {name} is for the clients of Java; .*{remedy}", said)
    assert value not in said.split("; ", 1)[0]


def test_the_tables_agree_with_the_client() -> None:
    """librdkafka knows no setting that is refused, and all that others are translated into."""
    library = pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")

    def knows(name: str) -> bool:
        texts = []
        for maker in (library.Consumer, library.Producer):
            try:
                maker({"group.id": "g", "log_level": 0, name: "1"})
            except library.KafkaException as error:
                texts.append(error.args[0].str())
            else:
                return True
        absent = ("No such configuration property", "not supported", "Java")
        return not all(any(word in text for word in absent) for text in texts)

    assert [name for name in _JAVA_ONLY if knows(name)] == []
    assert [name for name in _RENAMED.values() if not knows(name)] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "createDirectStream takes the parameters of Kafka as a dict, got list"),
        ({}, "createDirectStream needs bootstrap.servers, for example"),
        ({**BROKERS, 7: 1}, "a parameter of Kafka is named 7"),
        ({"bootstrap.servers": ["a:1", "b:1"]}, "must be one str with commas between values"),
        ({**BROKERS, "client.id": b"x"}, "client.id must be a str, a number or a bool, got bytes"),
        ({**BROKERS, "auto.offset.reset": "earlist"}, "'earlist'; .*earliest"),
        ({**BROKERS, "enable.partition.eof": True}, "it detects the end of a range; remove it"),
        ({**BROKERS, "error_cb": print}, "errors of clients are logged and raised; remove it"),
        ({**BROKERS, "oauth_cb": "token"}, "oauth_cb must be a function that returns .*, got str"),
        (
            {**BROKERS, "metadata.broker.list": "other:1"},
            "metadata.broker.list and bootstrap.servers are the same parameter",
        ),
        (
            {**BROKERS, "security.protocol": "SASL_SSL", "sasl.username": "me"},
            "security.protocol is SASL_SSL but no login is given; give sasl.mechanism",
        ),
        (
            {**BROKERS, "security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"},
            "no source of tokens is given; give sasl.oauthbearer.method=oidc",
        ),
    ],
)
def test_what_cannot_be(given: Any, message: str) -> None:
    """The message says the parameter, the rule and what to do."""
    assert re.search(message, refused(given))


# Secrets ------------------------------------------------------------------------------------

SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.assertion.private.key.passphrase",
)


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_leaves(name: str) -> None:
    """Neither a repr nor a pickle has it; a restart requires it by name."""
    given = parameters(**{name: "hunter2"})
    assert "hunter2" in given.for_admin().values()
    assert "hunter2" not in repr(given)
    assert b"hunter2" not in pickle.dumps(given)
    (unkept,) = given.unkept
    with pytest.raises(RestartError, match=f"{unkept} is secret, so the checkpoint does not have"):
        pickle.loads(pickle.dumps(given)).for_tasks()


def test_a_reference_is_looked_up_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint has the name of the variable; each process has its value."""
    given = parameters(**{"sasl.password": "${env:KAFKA_PASSWORD}"})
    assert given.unkept == ()
    with pytest.raises(InvalidStreamError, match="no environment variable KAFKA_PASSWORD; set it"):
        given.for_tasks()
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    restarted = pickle.loads(pickle.dumps(given))
    assert restarted.for_tasks()["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(restarted)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap.servers", "token-service:9092"),
        ("group.id", "password-resets"),
        ("sasl.username", "token"),
        ("ssl.ca.location", "/etc/secrets/ca.pem"),
        ("ssl.key.location", "/etc/secrets/key.pem"),
        ("sasl.oauthbearer.token.endpoint.url", "https://host/oauth2/token"),
    ],
)
def test_what_is_no_secret(name: str, value: str) -> None:
    """Values that only look like secrets by name are kept for a restart."""
    assert parameters(**{name: value}).unkept == ()


def test_a_password_in_a_url_is_one() -> None:
    """Wherever it stands."""
    url = "https://me:hunter2@host/token"
    given = parameters(**{"sasl.oauthbearer.token.endpoint.url": url})
    assert given.unkept == ("sasl.oauthbearer.token.endpoint.url",)

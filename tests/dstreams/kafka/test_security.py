"""Streams of brokers with authentication, without leaving secrets behind."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from pyspark import SparkContext

from dstreams import StreamingContext
from dstreams.cli.demo import END_WORD, StreamedCount, TextTopic, count_words
from dstreams.errors import EnvironmentNotReadyError, RestartError, SourceError
from dstreams.kafka import ConsumerStrategies, KafkaDStream, KafkaUtils, LocationStrategies
from dstreams.kafka.parameters import client_settings
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_security import (
    PASSWORD,
    USER,
    Certificates,
    add_scram_user,
    secure_broker,
)

MakeContext = Callable[..., StreamingContext]

WRONG = "battery staple"
LOGIN = {"sasl.username": USER, "sasl.password": PASSWORD}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[KafkaBroker]:
    """A broker with authentication."""
    with secure_broker(tmp_path_factory.mktemp("kafka"), certificates) as started:
        add_scram_user(started)
        yield started


@pytest.fixture(scope="module")
def topic(broker: KafkaBroker) -> str:
    """A topic with two records."""
    name = broker.create_topic()
    broker.produce(name, ["a", "b"])
    return name


def parameters(broker: KafkaBroker, listener: str, **more: Any) -> dict[str, Any]:
    """Parameters of a client of a listener; names have ``_`` for ``.``."""
    named = {key if key == "oauth_cb" else key.replace("_", "."): v for key, v in more.items()}
    return {
        "bootstrap.servers": broker.address(listener),
        "security.protocol": listener,
        "auto.offset.reset": "earliest",
        **named,
    }


def stream_of(ssc: StreamingContext, topic: str, given: Mapping[str, Any]) -> KafkaDStream[Any]:
    strategy = ConsumerStrategies.Subscribe([topic], given)
    return KafkaUtils.createDirectStream(ssc, LocationStrategies.PreferConsistent, strategy)


def values_of(ssc: StreamingContext, topic: str, given: Mapping[str, Any]) -> list[bytes]:
    """Read a topic in one batch."""
    found: list[bytes] = []
    records = stream_of(ssc, topic, given).map(lambda record: record.value)
    records.foreachRDD(lambda rdd: found.extend(rdd.collect()))
    ssc.step()
    return found


def token(lifetime_s: float = 600) -> tuple[str, float]:
    """Return a token without a signature, as this broker takes them, and when it expires."""
    now = time.time()
    claims = {"sub": USER, "iat": now - 1, "exp": now + lifetime_s}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    text = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    return text + ".", now + lifetime_s


# Who is let in ------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_passwords(ssc: StreamingContext, broker: KafkaBroker, topic: str, mechanism: str) -> None:
    """Driver and workers log in."""
    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism=mechanism)
    assert values_of(ssc, topic, {**given, **LOGIN}) == [b"a", b"b"]


@pytest.mark.deep
def test_tokens_of_a_function(ssc: StreamingContext, broker: KafkaBroker, topic: str) -> None:
    """Driver and workers call the function of the program."""
    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")
    given["oauth_cb"] = lambda _: token()
    assert values_of(ssc, topic, given) == [b"a", b"b"]


def test_tokens_of_the_client(ssc: StreamingContext, broker: KafkaBroker, topic: str) -> None:
    """librdkafka makes unsecured ones itself."""
    given = parameters(
        broker,
        "SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        enable_sasl_oauthbearer_unsecure_jwt=True,
        sasl_oauthbearer_config=f"principal={USER}",
    )
    assert values_of(ssc, topic, given) == [b"a", b"b"]


def test_a_password_over_tls(
    ssc: StreamingContext, broker: KafkaBroker, certificates: Certificates, topic: str
) -> None:
    """The broker is known by a certificate of the authority that is given, by Java's names too."""
    given = parameters(
        broker,
        "SASL_SSL",
        sasl_mechanism="PLAIN",
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(certificates.authority),
    )
    assert values_of(ssc, topic, {**given, **LOGIN}) == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
def test_certificates_of_clients(
    ssc: StreamingContext, broker: KafkaBroker, certificates: Certificates, topic: str, kind: str
) -> None:
    """They are taken from stores of PEM and of PKCS#12, by Java's names."""
    store = {"PEM": certificates.client, "PKCS12": certificates.client_p12}[kind]
    given = parameters(
        broker,
        "SSL",
        ssl_ca_location=str(certificates.authority),
        ssl_keystore_type=kind,
        ssl_keystore_location=str(store),
    )
    given |= {"ssl.keystore.password": PASSWORD} if kind == "PKCS12" else {}
    assert values_of(ssc, topic, given) == [b"a", b"b"]


@pytest.mark.deep
def test_the_demo_logs_in(
    sc: SparkContext, broker: KafkaBroker, certificates: Certificates, tmp_path: Path
) -> None:
    """With the settings of a file it creates its topic, sends, reads, and deletes the topic."""
    given = parameters(
        broker,
        "SASL_SSL",
        sasl_mechanism="PLAIN",
        ssl_ca_location=str(certificates.authority),
        **LOGIN,
    )
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    text = b"to be or not\n" * 100 + f"{END_WORD}\n".encode() * TextTopic.end_words
    with TextTopic(text, client_settings(None, config)) as topic:
        count = StreamedCount(sc, topic, str(tmp_path / "0"), lambda line: None)
        assert count.run(300) == count_words(text)


# Who is not ---------------------------------------------------------------------------------


def refusal(ssc: StreamingContext, topic: str, given: Mapping[str, Any]) -> str:
    stream_of(ssc, topic, given).pprint()
    with pytest.raises(SourceError) as raised:
        ssc.step()
    said = str(raised.value)
    assert topic in said
    assert WRONG not in said
    assert PASSWORD not in said
    return said


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password(
    ssc: StreamingContext, broker: KafkaBroker, topic: str, mechanism: str
) -> None:
    """The error says who refuses, and why, without the password."""
    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username=USER)
    said = refusal(ssc, topic, {**given, "sasl.password": WRONG})
    assert f"the brokers {broker.address('SASL_PLAINTEXT')} refuse this client: " in said
    assert "Authentication failed" in said
    assert said.endswith("check security.protocol, sasl.* and ssl.* of its parameters")


def test_a_wrong_password_of_the_demo(broker: KafkaBroker) -> None:
    """The error says the same before Spark is started."""
    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username=USER)
    topic = TextTopic(b"", {**given, "sasl.password": WRONG})
    with pytest.raises(EnvironmentNotReadyError, match=r"refuse this client: .*Auth.*failed") as no:
        topic.__enter__()
    assert WRONG not in str(no.value)


def test_a_mechanism_that_is_not_offered(
    ssc: StreamingContext, broker: KafkaBroker, certificates: Certificates, topic: str
) -> None:
    """The error says which are."""
    given = parameters(
        broker,
        "SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        ssl_ca_location=str(certificates.authority),
    )
    said = refusal(ssc, topic, {**given, **LOGIN})
    assert "broker's supported mechanisms: PLAIN" in said


def test_a_token_that_is_refused(ssc: StreamingContext, broker: KafkaBroker, topic: str) -> None:
    """The error has the broker's answer."""
    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")
    given["oauth_cb"] = lambda _: ("no token", time.time() + 600)
    said = refusal(ssc, topic, given)
    assert f"the brokers {broker.address('SASL_PLAINTEXT')} refuse this client: " in said
    assert "OAUTHBEARER" in said or "invalid_token" in said  # the broker says one, then the other


@pytest.mark.deep
def test_a_function_without_tokens(ssc: StreamingContext, broker: KafkaBroker, topic: str) -> None:
    """The error has what the function raised."""

    def fail(_: str) -> tuple[str, float]:
        raise ConnectionError("the identity provider is away")

    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", oauth_cb=fail)
    said = refusal(ssc, topic, given)
    assert "oauth_cb returned no token: ConnectionError('the identity provider is away')" in said


def test_a_broker_that_is_not_trusted(
    ssc: StreamingContext, broker: KafkaBroker, certificates: Certificates, topic: str
) -> None:
    """The error names the setting with the authority."""
    given = parameters(
        broker,
        "SASL_SSL",
        sasl_mechanism="PLAIN",
        ssl_ca_location=str(certificates.other_authority),
    )
    said = refusal(ssc, topic, {**given, **LOGIN})
    assert "certificate verify failed" in said
    assert "ssl.ca.location" in said


def test_a_client_without_a_certificate(
    ssc: StreamingContext, broker: KafkaBroker, certificates: Certificates, topic: str
) -> None:
    """The error has the broker's alert."""
    given = parameters(broker, "SSL", ssl_ca_location=str(certificates.authority))
    assert "alert bad certificate" in refusal(ssc, topic, given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ssl.ca.location": "/nowhere/ca.pem"},
            r"invalid settings of Kafka: .*ssl\.ca\.location failed",
        ),
        (
            {"ssl.keystore.password": WRONG},
            r"invalid settings of Kafka: .*Failed to parse ssl\.keystore\.location PKCS#12 file",
        ),
        ({"ssl.keystroke.location": "/x"}, r"Kafka has no setting 'ssl\.keystroke\.location'"),
    ],
)
def test_files_that_cannot_be_read(
    ssc: StreamingContext,
    broker: KafkaBroker,
    certificates: Certificates,
    topic: str,
    changes: dict[str, str],
    message: str,
) -> None:
    """The error names the setting; a password is not repeated."""
    given = parameters(
        broker,
        "SSL",
        ssl_ca_location=str(certificates.authority),
        ssl_keystore_location=str(certificates.client_p12),
    )
    said = refusal(ssc, topic, {**given, "ssl.keystore.password": PASSWORD, **changes})
    assert re.search(message, said)


# Nothing is left behind ---------------------------------------------------------------------


def contents(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the bytes of all files, and those of what is compressed in them."""
    magic = zstandard.FRAME_HEADER
    for path in directory.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield path, data
            at = data.find(magic)
            while at >= 0:
                yield path, zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
                at = data.find(magic, at + 1)


def counted(values: list[int], state: int | None) -> int:
    return sum(values) + (state or 0)


def with_password(broker: KafkaBroker) -> dict[str, Any]:
    return parameters(broker, "SASL_PLAINTEXT", sasl_mechanism="PLAIN", **LOGIN)


def with_tokens(broker: KafkaBroker) -> dict[str, Any]:
    client_secret = PASSWORD  # captured, and so pickled with the function
    given = parameters(broker, "SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER")
    given["oauth_cb"] = lambda _: (client_secret, token())[1]
    return given


def files_with(directory: Path, text: str) -> list[Path]:
    """Return the files that have a text."""
    return [path for path, data in contents(directory) if text.encode() in data]


def run_with_state(
    make_ssc: MakeContext, directory: Path, topic: str, given: Mapping[str, Any]
) -> KafkaDStream[Any]:
    """Run a stream of a topic until its state is durable."""
    ssc = make_ssc()
    ssc.checkpoint(str(directory))
    stream = stream_of(ssc, topic, given)
    stream.map(lambda record: (record.value, 1)).updateStateByKey(counted).pprint()
    ssc.step(11)  # state becomes durable with the tenth
    ssc.stop(stopSparkContext=False)
    return stream


@pytest.mark.deep
@pytest.mark.parametrize(
    ("secret", "refusal"),
    [
        (with_password, r"sasl.password is secret.*\$\{env:NAME\}.*StreamingContext.restore"),
        (with_tokens, r"oauth_cb uses a variable with the name of a secret.*os.environ\['NAME'\]"),
    ],
)
def test_no_secret_is_left_behind(
    sc: SparkContext,
    make_ssc: MakeContext,
    broker: KafkaBroker,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    secret: Callable[[KafkaBroker], dict[str, Any]],
    refusal: str,
) -> None:
    """No file of the checkpoint and no log has the secret; a restart requires it."""
    caplog.set_level(logging.DEBUG)
    stream = run_with_state(make_ssc, tmp_path, topic, secret(broker))
    assert PASSWORD not in repr(stream)
    assert files_with(tmp_path, topic)
    assert files_with(tmp_path, PASSWORD) == []
    assert PASSWORD not in caplog.text
    assert PASSWORD not in "".join(capfd.readouterr())  # also of the JVM and the workers
    assert "the checkpoint does not have" in caplog.text
    restarted = StreamingContext.getOrCreate(str(tmp_path), lambda: pytest.fail("was found"))
    with pytest.raises(RestartError, match=refusal):
        restarted.start()
    restarted.stop(stopSparkContext=False)


@pytest.mark.deep
@pytest.mark.parametrize("secret", [with_password, with_tokens])
def test_what_is_not_left_out_would_be_found(
    sc: SparkContext,
    make_ssc: MakeContext,
    broker: KafkaBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    secret: Callable[[KafkaBroker], dict[str, Any]],
) -> None:
    """The search above finds it where nothing counts as secret."""
    monkeypatch.setattr("dstreams.kafka.parameters._is_secret", lambda key, value: False)
    run_with_state(make_ssc, tmp_path, topic, secret(broker))
    assert files_with(tmp_path, PASSWORD)


def with_reference(broker: KafkaBroker) -> dict[str, Any]:
    return {**with_password(broker), "sasl.password": "${env:DSTREAMS_TESTS_PASSWORD}"}


def with_tokens_without_secrets(broker: KafkaBroker) -> dict[str, Any]:
    return {**with_tokens(broker), "oauth_cb": lambda _: token()}


@pytest.mark.deep
@pytest.mark.parametrize("secret", [with_reference, with_tokens_without_secrets])
def test_a_restart_needs_no_program(
    sc: SparkContext,
    make_ssc: MakeContext,
    broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    secret: Callable[[KafkaBroker], dict[str, Any]],
) -> None:
    """References are resolved and functions are in the checkpoint: the stream resumes."""
    monkeypatch.setenv("DSTREAMS_TESTS_PASSWORD", PASSWORD)
    topic = broker.create_topic()
    broker.produce(topic, ["a"])
    written = tmp_path / "written"

    def write(rdd: Any) -> None:
        with written.open("ab") as file:
            file.write(b"".join(rdd.map(lambda record: record.value).collect()))

    ssc = make_ssc()
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    stream_of(ssc, topic, secret(broker)).foreachRDD(write)
    ssc.step()
    ssc.stop(stopSparkContext=False)
    assert "the checkpoint does not have" not in caplog.text
    broker.produce(topic, ["b"])
    restarted = StreamingContext.getOrCreate(str(tmp_path / "checkpoint"), make_ssc)
    restarted.step()
    restarted.stop(stopSparkContext=False)
    assert written.read_bytes() == b"ab"

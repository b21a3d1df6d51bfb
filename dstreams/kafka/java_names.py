"""Parameters of Java's clients and of Kafka 0.8: translations and replacements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_RENAMED = {
    # Kafka 0.8
    "metadata.broker.list": "bootstrap.servers",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    # Java
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "max.request.size": "message.max.bytes",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Names of other clients, and those of librdkafka."""

_CERTIFICATES = (
    "librdkafka reads certificates as PEM: give ssl.ca.location (keytool -exportcert -rfc writes "
    "such a file), or ssl.truststore.type=PEM if the file is PEM already"
)
_KEY_STORE = (
    "give a PKCS#12 store (keytool -importkeystore -deststoretype PKCS12 makes one), or "
    "ssl.certificate.location and ssl.key.location, PEM files"
)
_LOGIN = "give sasl.mechanism, sasl.username and sasl.password"
HOW_TOKENS = (
    "give sasl.oauthbearer.method=oidc with sasl.oauthbearer.token.endpoint.url, "
    "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, or oauth_cb, a function that "
    "returns a token and the second when it expires"
)

_JAVA_ONLY = {
    "ssl.truststore.location": _CERTIFICATES,
    "ssl.truststore.password": _CERTIFICATES,
    "ssl.truststore.type": _CERTIFICATES,
    "ssl.keystore.type": _KEY_STORE,
    "ssl.enabled.protocols": "remove it, or let the brokers refuse older versions of TLS",
    "sasl.jaas.config": _LOGIN,
    "sasl.client.callback.handler.class": _LOGIN,
    "sasl.oauthbearer.jwt.retriever.class": HOW_TOKENS,
    "interceptor.classes": "map the records of the stream instead",
    "default.api.timeout.ms": "give socket.timeout.ms",
    "socket.connection.setup.timeout.max.ms": "give socket.connection.setup.timeout.ms",
    "buffer.memory": "give queue.buffering.max.kbytes",
    "max.block.ms": "remove it: a task waits until its records are delivered",
    "partitioner.class": "give partitioner, such as murmur2_random, Java's default",
    "partitioner.ignore.keys": "give partitioner=random",
}
"""Settings that only Java's clients have, and their replacements."""

_JAVA_ONLY_PREFIXES = {
    "sasl.login.": HOW_TOKENS,
    "config.providers": "give ${env:NAME} for the value of an environment variable",
}

_PEM_FILES = {
    "ssl.truststore": ("ssl.ca.location",),
    "ssl.keystore": ("ssl.certificate.location", "ssl.key.location"),
}
"""Java's stores, and the settings for PEM files."""


def translated(given: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each parameter: given name, translated name, value."""
    rest = dict(given)
    for store, files in _PEM_FILES.items():
        of_pem = str(rest.get(f"{store}.type")).upper() == "PEM"
        if of_pem and f"{store}.location" in rest:
            del rest[f"{store}.type"]
            location = rest.pop(f"{store}.location")
            yield from ((f"{store}.location", name, location) for name in files)
    if str(rest.get("ssl.keystore.type")).upper() == "PKCS12":
        del rest["ssl.keystore.type"]  # librdkafka's default
    for key, value in rest.items():
        if key == "ssl.endpoint.identification.algorithm" and value == "":
            yield key, key, "none"  # as Java has it
        else:
            yield key, _RENAMED.get(key, key), value


def instead_of(name: str) -> str | None:
    """Return the replacement of a setting that only Java has, else None."""
    found = (text for start, text in _JAVA_ONLY_PREFIXES.items() if name.startswith(start))
    return _JAVA_ONLY.get(name) or next(found, None)

"""Parameters by the names of Java's clients and of 0.8: translated, or what to give instead."""

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
"""Names of other clients, and the name here of the same."""

_CERTIFICATES = (
    "librdkafka reads certificates as PEM: give ssl.ca.location, a file of them (keytool "
    "-exportcert -rfc writes one), or ssl.truststore.type=PEM where the file is one already"
)
_KEY_STORE = (
    "give a store of PKCS#12 (keytool -importkeystore -deststoretype PKCS12 makes one), or "
    "ssl.certificate.location and ssl.key.location, files of PEM"
)
_LOGIN = "give sasl.mechanism, sasl.username and sasl.password"
HOW_TOKENS = (
    "give sasl.oauthbearer.method=oidc with sasl.oauthbearer.token.endpoint.url, "
    "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, or oauth_cb, a function that "
    "returns a token and the second when it expires"
)
_KERBEROS = "give sasl.kerberos.kinit.cmd and sasl.kerberos.min.time.before.relogin"
_OPENSSL = "librdkafka uses OpenSSL; ssl.providers names its providers"
_METRICS = "leave it out: listeners and statistics of the stream tell the same"

_JAVA_ONLY = {
    "ssl.truststore.location": _CERTIFICATES,
    "ssl.truststore.password": _CERTIFICATES,
    "ssl.truststore.type": _CERTIFICATES,
    "ssl.keystore.type": _KEY_STORE,
    "ssl.protocol": "leave it out: OpenSSL takes the newest version of TLS that both sides have",
    "ssl.enabled.protocols": "leave it out, or let the brokers refuse older versions of TLS",
    "ssl.provider": _OPENSSL,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.engine.factory.class": _OPENSSL,
    "security.providers": _OPENSSL,
    "sasl.jaas.config": _LOGIN,
    "sasl.client.callback.handler.class": _LOGIN,
    "sasl.oauthbearer.jwt.retriever.class": HOW_TOKENS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "interceptor.classes": "map the records of the stream instead",
    "metric.reporters": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "metrics.recording.level": _METRICS,
    "default.api.timeout.ms": "give socket.timeout.ms",
    "socket.connection.setup.timeout.max.ms": "give socket.connection.setup.timeout.ms",
    "exclude.internal.topics": "leave it out: topics are read by name or by pattern",
    "buffer.memory": "give queue.buffering.max.kbytes",
    "max.block.ms": "leave it out: a task waits until its records are delivered",
    "partitioner.class": "give partitioner, such as murmur2_random, which is that of Java",
    "partitioner.ignore.keys": "give partitioner=random",
    "compression.gzip.level": "give compression.level",
    "compression.lz4.level": "give compression.level",
    "compression.zstd.level": "give compression.level",
}
"""Settings that only clients of Java know, and what to give instead."""

_JAVA_ONLY_PREFIXES = {
    "sasl.login.": HOW_TOKENS,
    "sasl.oauthbearer.jwks.": "leave it out: it is a setting of brokers",
    "sasl.oauthbearer.expected.": "leave it out: it is a setting of brokers",
    "config.providers": "give ${env:NAME} for the value of an environment variable",
}

_PEM_FILES = {
    "ssl.truststore": ("ssl.ca.location",),
    "ssl.keystore": ("ssl.certificate.location", "ssl.key.location"),
}
"""Java's stores, and the settings that name them where they are files of PEM."""


def translated(given: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the parameters: name as given, name here, value."""
    rest = dict(given)
    for store, files in _PEM_FILES.items():
        of_pem = str(rest.get(f"{store}.type")).upper() == "PEM"
        if of_pem and f"{store}.location" in rest:
            del rest[f"{store}.type"]
            location = rest.pop(f"{store}.location")
            yield from ((f"{store}.location", name, location) for name in files)
    if str(rest.get("ssl.keystore.type")).upper() == "PKCS12":
        del rest["ssl.keystore.type"]  # the only other one that librdkafka reads
    for key, value in rest.items():
        if key == "ssl.endpoint.identification.algorithm" and value == "":
            yield key, key, "none"  # as Java has it
        else:
            yield key, _RENAMED.get(key, key), value


def instead_of(name: str) -> str | None:
    """Say what to give for what only Java knows; None for everything else."""
    found = (text for start, text in _JAVA_ONLY_PREFIXES.items() if name.startswith(start))
    return _JAVA_ONLY.get(name) or next(found, None)

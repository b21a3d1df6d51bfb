"""A real Kafka broker that asks who its clients are, with certificates made for it alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.kafka_broker import KafkaBroker

USER, PASSWORD = "alice", "correct horse"
_TIMEOUT_S = 180

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_BEARER = "org.apache.kafka.common.security.oauthbearer"


class Certificates:
    """An authority, the broker's certificate and that of a client, as PEM and PKCS#12.

    Args:
        directory: for the files.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip(
                "certificates are made by openssl; install it (Debian: apt install openssl)"
            )
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.authority = self._authority("authority")
        self.other_authority = self._authority("other")
        self.broker = self._signed("broker", "subjectAltName=IP:127.0.0.1")
        self.client = self._signed("client", "extendedKeyUsage=clientAuth")
        self.client_p12 = directory / "client.p12"
        self._openssl(
            *("pkcs12", "-export", "-in", str(self.client), "-out", str(self.client_p12)),
            *("-passout", f"pass:{PASSWORD}"),
        )

    def _authority(self, name: str) -> Path:
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-noenc", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key"),
            *("-out", f"{name}.pem"),
        )
        return self._directory / f"{name}.pem"

    def _signed(self, name: str, extension: str) -> Path:
        """Return a file with the key and the certificate, as Java's PEM stores are."""
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-noenc", "-days", "2", "-subj", f"/CN={name}", "-addext", extension),
            *("-CA", "authority.pem", "-CAkey", "authority.key", "-keyout", f"{name}.key"),
            *("-out", f"{name}.crt"),
        )
        both = self._directory / f"{name}.pem"
        parts = [self._directory / f"{name}.key", self._directory / f"{name}.crt"]
        both.write_bytes(b"".join(part.read_bytes() for part in parts))
        return both

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments],
            cwd=self._directory,
            check=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )


def secure_broker(directory: Path, certificates: Certificates) -> KafkaBroker:
    """Return a broker, not started, that asks for passwords, tokens and certificates.

    Its listener ``SASL_PLAINTEXT`` takes PLAIN, SCRAM and OAUTHBEARER with unsecured tokens,
    ``SASL_SSL`` takes PLAIN, ``SSL`` asks for the certificate of a client. Nothing is asked of who
    comes by its ``bootstrap``, which is for the test alone.
    """
    plain = f'{_PLAIN} required user_{USER}="{PASSWORD}";'
    unsecured = f"{_BEARER}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    bearer = f"{_BEARER}.OAuthBearerLoginModule required;"
    of_sasl = "listener.name.sasl_plaintext"
    return KafkaBroker(
        directory,
        settings={
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            f"{of_sasl}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{of_sasl}.plain.sasl.jaas.config": plain,
            f"{of_sasl}.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
            f"{of_sasl}.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            f"{of_sasl}.oauthbearer.sasl.jaas.config": bearer,
            f"{of_sasl}.oauthbearer.sasl.server.callback.handler.class": unsecured,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
        },
        listeners=("SASL_PLAINTEXT", "SASL_SSL", "SSL"),
    )


def add_scram_user(broker: KafkaBroker) -> None:
    """Let the broker know the password of its user for SCRAM."""
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credentials = ScramCredentialInfo(mechanism, 4096)
        change = UserScramCredentialUpsertion(USER, credentials, PASSWORD.encode())
        for future in broker.admin.alter_user_scram_credentials([change]).values():
            future.result(_TIMEOUT_S)

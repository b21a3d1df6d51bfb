"""Schemas of a Schema Registry, each fetched once by a process.

Settings are what the driver knows and sends to the workers. Schemas are fetched where they are
first needed, and kept for the process; what is secret is looked up there.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, SourceError
from dstreams.kafka.parameters import REFERENCE, look_up

RegistrySettings: TypeAlias = "Mapping[str, str | float]"
_Settings: TypeAlias = "tuple[tuple[str, str | float], ...]"

_INSTALL = "install it here and for the workers: pip install 'dstreams[avro]'"
_UNKNOWN_SCHEMA = 40403
"""What a registry answers for an id that it does not have; another 404 is of the wrong place."""

_NAMES_OF_JAVA = {
    "schema.registry.url": "url",
    "schema.registry.basic.auth.user.info": "basic.auth.user.info",
    "schema.registry.ssl.truststore.location": "ssl.ca.location, a PEM file",
    "schema.registry.ssl.keystore.location": "ssl.certificate.location and ssl.key.location, PEM",
}
_SECRET = (
    "basic.auth.user.info",
    "bearer.auth.client.secret",
    "bearer.auth.token",
    "ssl.key.password",
)
_USER_IN_URL = re.compile(r"://[^/\s]*@")


class RegisteredSchema(NamedTuple):
    """A schema as text, with the texts of the schemas that it refers to, those first."""

    kind: str
    text: str
    references: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class SchemaRegistry:
    """Where schemas are, by the settings of ``confluent_kafka.schema_registry``, sorted by name."""

    settings: _Settings

    @classmethod
    def of_settings(cls, settings: RegistrySettings, what: str) -> SchemaRegistry:
        """Check settings, and return the registry; *what* names who needs it.

        Raises:
            InvalidStreamError: a setting is wrong, or secret and written out.
        """
        _check(settings, what)
        return cls(tuple(sorted(settings.items())))

    def schema(self, number: int) -> RegisteredSchema:
        """Return a schema by its id; fetches it once in a process.

        Raises:
            LookupError: the registry has no such schema.
            SourceError: the registry cannot be asked.
        """
        return _schema(self.settings, number)

    def __repr__(self) -> str:
        return _USER_IN_URL.sub("://", str(dict(self.settings)["url"]))


def _check(settings: RegistrySettings, what: str) -> None:
    if not isinstance(settings, Mapping):
        raise InvalidStreamError(
            f"{what} needs the settings of a Schema Registry, such as "
            f"{{'url': 'http://localhost:8081'}}, got {type(settings).__name__}"
        )
    for name, value in settings.items():
        if name in _NAMES_OF_JAVA:
            raise InvalidStreamError(
                f"setting {name!r} of {what} is one of Java; use {_NAMES_OF_JAVA[name]}"
            )
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise InvalidStreamError(
                f"setting {name!r} of {what} must be a str or a number, got {type(value).__name__}"
            )
        is_secret = name in _SECRET or _USER_IN_URL.search(str(value))
        if is_secret and not REFERENCE.search(str(value)):
            raise InvalidStreamError(
                f"setting {name!r} of {what} is secret, and would be written to the checkpoint "
                "with the graph; give '${env:NAME}', and NAME in the environment of the workers"
            )
    if not isinstance(settings.get("url"), str):
        raise InvalidStreamError(f"{what} needs the setting 'url' of its Schema Registry")


@functools.lru_cache(maxsize=4096)
def _schema(settings: _Settings, number: int) -> RegisteredSchema:
    client = _client(settings)
    try:
        with client:
            schema = client.get_schema(number)
            references = tuple(_referred(client, schema, set()))
            return RegisteredSchema(schema.schema_type, schema.schema_str, references)
    except Exception as error:
        if getattr(error, "error_code", None) == _UNKNOWN_SCHEMA:
            failure: Exception = LookupError(f"the Schema Registry has no schema {number}")
        else:
            failure = SourceError(_trouble(settings, number, error))
    raise failure


def _trouble(settings: _Settings, number: int, error: Exception) -> str:
    return (
        f"Schema Registry {SchemaRegistry(settings)!r} could not be asked for schema {number} "
        f"({type(error).__name__}: {_without_secrets(str(error), settings)}); records that need "
        "it wait until it can"
    )


def _without_secrets(text: str, settings: _Settings) -> str:
    """Return what a client says, without the values that came from the environment."""
    for _, value in settings:
        for name in REFERENCE.findall(str(value)):
            secret = os.environ.get(name)
            text = text.replace(secret, "*****") if secret else text
    return text


def _referred(client: Any, schema: Any, seen: set[tuple[str, int]]) -> Iterator[str]:
    """Yield the texts of the schemas that one refers to, each after those that it needs."""
    for reference in schema.references or ():
        name = reference.subject, reference.version
        if name not in seen:
            seen.add(name)
            referred = client.get_version(*name).schema
            yield from _referred(client, referred, seen)
            yield referred.schema_str


def _client(settings: _Settings) -> Any:
    """Return a client, to be closed: it is asked once for each schema, and then no more."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentNotReadyError(
            f"a Schema Registry needs confluent-kafka[schemaregistry] ({error}); {_INSTALL}"
        ) from None
    resolved = {
        name: look_up(value, name, "Schema Registry") if isinstance(value, str) else value
        for name, value in settings
    }
    try:
        return SchemaRegistryClient.new_client(resolved)
    except (TypeError, ValueError) as error:
        reason = _without_secrets(str(error), settings)
    raise InvalidStreamError(f"settings of the Schema Registry are wrong: {reason}")

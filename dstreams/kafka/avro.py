"""Avro, decoded by fastavro: with the schemas of a Schema Registry, or with one schema.

fastavro recurses into nested values without a limit, and creates as many array items as a count
says, even if they take no bytes. :class:`AvroBounds` checks hostile values before they are decoded.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, SourceError
from dstreams.kafka.decoders import HEADER_BYTES, Decoder, schema_id
from dstreams.kafka.parameters import REFERENCE, look_up
from dstreams.spark.nesting import MOST_NESTED, require_shallow

RegistrySettings: TypeAlias = "Mapping[str, str | float]"
_Settings: TypeAlias = "tuple[tuple[str, str | float], ...]"
_Schema: TypeAlias = "str | Mapping[str, Any] | Sequence[Any]"

_UNKNOWN_SCHEMA = 40403  # any other 404 comes from a wrong URL
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

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_INTEGERS = ("int", "long", "enum")
_TEXTS = ("bytes", "string")
_RECORD_TYPES = ("record", "error")
_WITH_VALUES = (*_RECORD_TYPES, "array", "map")
_SAFE_DEPTH = 20
_SAFE_EMPTY = 4
"""Values without bytes that a schema may have; with more of them, each record is checked."""
_MOST_EMPTY = 65_536
_NULL = (0, 1, True)


class AvroDecoder(Decoder[Any]):
    """Avro: records become dicts, logical types those of Python (datetime, Decimal, UUID).

    The bytes are those of Confluent's serializers: the id of a schema, then the value. Each worker
    process fetches a schema once. If the registry cannot be reached, the task fails and is retried.

    Values that are nested deeper than 200, and values with too many items that take no bytes, are
    rejected. Only schemas that allow such values are checked: recursive ones, and arrays of null.

    >>> clicks = AvroDecoder({"url": "http://localhost:8081"})
    >>> clicks = AvroDecoder({
    ...     "url": "https://registry.example.org", "basic.auth.user.info": "${env:REGISTRY_USER}"})
    >>> plain = AvroDecoder(schema={"type": "array", "items": "long"})
    >>> plain.decode(bytes([4, 2, 14, 0]), "numbers")
    [1, 7]

    Args:
        registry: settings of ``confluent_kafka.schema_registry.SchemaRegistryClient``. Give secrets
            as ``${env:NAME}``; each worker reads them from its environment.
        schema: instead of a registry, the schema of values without a header, as JSON or parsed.
        reader_schema: schema, as JSON or parsed, to which values are resolved by Avro's rules:
            other fields are dropped, missing ones get their default. None: values are returned as
            written.

    Raises:
        InvalidStreamError: a setting or a schema is wrong, or both or neither of *registry* and
            *schema* are given.
        EnvironmentNotReadyError: fastavro is not installed.
    """

    def __init__(
        self,
        registry: RegistrySettings | None = None,
        *,
        schema: _Schema | None = None,
        reader_schema: _Schema | None = None,
    ) -> None:
        if (registry is None) == (schema is None):
            raise InvalidStreamError(
                "AvroDecoder takes either the settings of a Schema Registry or schema=, got "
                f"{'neither' if registry is None else 'both'}"
            )
        if registry is not None:
            _check(registry, "AvroDecoder")
        self._registry = None if registry is None else SchemaRegistry(_sorted(registry))
        self._writer_text = _checked_text(schema, "schema")
        self._reader_text = _checked_text(reader_schema, "reader_schema")
        self._clear()

    def decode(self, data: bytes, topic: str) -> Any:
        return self.decode_block([data], topic)[0]

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[Any]:
        read = _fastavro().schemaless_reader
        reader_schema = None if self._reader_text is None else _parsed(self._reader_text).schema
        writers, new = self._writers, io.BytesIO
        writer = None if self._writer_text is None else _parsed(self._writer_text)
        decoded: list[Any] = []
        for data in values:
            if data is None:
                decoded.append(None)
                continue
            stream = new(data)
            parsed = writer
            if parsed is None:
                header = stream.read(HEADER_BYTES)
                parsed = writers.get(header) or self._writer_of(data)
            if parsed.bounds is not None:
                parsed.bounds.require(data, stream.tell())
            decoded.append(read(stream, parsed.schema, reader_schema))
            if stream.read(1):
                left = len(data) - stream.tell() + 1
                raise ValueError(f"{left} bytes are left over after the value of its schema")
        return decoded

    def _writer_of(self, data: bytes) -> _Parsed:
        registry = cast(SchemaRegistry, self._registry)  # set, as no schema was given
        number = schema_id(data)
        if number in self._unknown:
            raise LookupError(self._unknown[number])
        try:
            found = registry.schema(number)
            if found.kind != "AVRO":
                raise LookupError(
                    f"schema {number} of the Schema Registry is {found.kind}, not AVRO"
                )
        except LookupError as error:
            # Once per task: a topic of another registry must not cause a request for each record.
            self._unknown[number] = str(error)
            raise
        parsed = self._writers[data[:HEADER_BYTES]] = _parsed(found.text, found.references)
        return parsed

    def _clear(self) -> None:
        self._writers: dict[bytes, _Parsed] = {}
        self._unknown: dict[int, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_registry", "_writer_text", "_reader_text")
        return {name: vars(self)[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clear()

    def __repr__(self) -> str:
        return f"AvroDecoder({'' if self._registry is None else self._registry!r})"


def _sorted(settings: RegistrySettings) -> _Settings:
    return tuple(sorted(settings.items()))


def _checked_text(schema: _Schema | None, what: str) -> str | None:
    if schema is None:
        return None
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        _parsed(text)
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        raise InvalidStreamError(
            f"{what} of AvroDecoder is not an Avro schema ({type(error).__name__}: {error}); give "
            "it as JSON or as a dict"
        ) from None
    return text


class _Parsed(NamedTuple):
    """A schema as fastavro parsed it, and a check of its values, None if they are bounded."""

    schema: Any
    bounds: AvroBounds | None


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, references: tuple[str, ...] = ()) -> _Parsed:
    """Parse a schema, once in a process."""
    parse, named = _fastavro().parse_schema, {}  # type: ignore[var-annotated]
    for reference in references:
        parse(_loaded(reference), named_schemas=named)
    schema = parse(_loaded(text), named_schemas=named)
    bounds = AvroBounds(schema, named)
    return _Parsed(schema, bounds if bounds.is_needed() else None)


def _loaded(text: str) -> Any:
    """Return a schema from JSON; the name of a type may lack its quotes."""
    require_shallow(text)
    try:
        return json.loads(text)
    except ValueError:
        if text.isidentifier():
            return text
        raise


@functools.lru_cache(maxsize=1)
def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415  # an extra
    except ImportError:
        raise EnvironmentNotReadyError(
            "AvroDecoder needs fastavro, which is not installed in this process; install it here "
            "and for the workers: pip install 'dstreams[avro]'"
        ) from None
    return fastavro


class RegisteredSchema(NamedTuple):
    """A schema as text, with the texts of the schemas it refers to, dependencies first."""

    kind: str
    text: str
    references: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class SchemaRegistry:
    """A Schema Registry, with sorted settings of ``confluent_kafka.schema_registry``.

    The driver checks the settings; workers resolve secrets, and keep schemas for the process.
    """

    settings: _Settings

    def schema(self, number: int) -> RegisteredSchema:
        """Return a schema by its id, fetched once in a process.

        Raises:
            LookupError: the registry has no such schema.
            SourceError: the registry does not answer.
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
            reason = f"{type(error).__name__}: {_without_secrets(str(error), settings)}"
            failure = SourceError(
                f"failed to get schema {number} from the Schema Registry "
                f"{SchemaRegistry(settings)!r} ({reason}); its records wait until it answers"
            )
    raise failure  # outside of the except clause: the original error may quote secrets


def _without_secrets(text: str, settings: _Settings) -> str:
    """Mask the values that come from the environment."""
    for _, value in settings:
        for name in REFERENCE.findall(str(value)):
            secret = os.environ.get(name)
            text = text.replace(secret, "*****") if secret else text
    return text


def _referred(client: Any, schema: Any, seen: set[tuple[str, int]]) -> Iterator[str]:
    """Yield the texts of the schemas that a schema refers to, dependencies first."""
    for reference in schema.references or ():
        name = reference.subject, reference.version
        if name not in seen:
            seen.add(name)
            referred = client.get_version(*name).schema
            yield from _referred(client, referred, seen)
            yield referred.schema_str


def _client(settings: _Settings) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentNotReadyError(
            f"a Schema Registry needs confluent-kafka[schemaregistry] ({error}); install it here "
            "and for the workers: pip install 'dstreams[avro]'"
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


class _UnboundedError(Exception):
    """A schema that allows any depth, or any number of values without bytes."""


@dataclass(frozen=True)
class AvroBounds:
    """A check of undecoded values of one schema.

    Attributes:
        schema: the schema, as fastavro parsed it.
        named: its named types, by full name.
    """

    schema: Any
    named: Mapping[str, Any]

    def is_needed(self) -> bool:
        """Return whether values may be too deep, or much larger than their bytes."""
        try:
            depth, empty, _ = _Measured(self.named).of(self.schema)
        except (_UnboundedError, RecursionError):
            return True
        return depth > _SAFE_DEPTH or empty > _SAFE_EMPTY

    def require(self, data: bytes, start: int) -> None:
        """Check the value at a position.

        Raises:
            ValueError: it is nested too deep, has too many values without bytes, or is truncated.
        """
        _Walk(self.named, data, start).skip(self.schema, 0)


class _Measured:
    """Measures schemas: depth, number of values without bytes, and whether they are all such."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, tuple[int, int, bool] | None] = {}

    def of(self, schema: Any) -> tuple[int, int, bool]:
        """Return the measures of a schema.

        Raises:
            _UnboundedError: the schema has no limit.
        """
        if isinstance(schema, str) and schema in self._named:
            return self._of_name(schema)
        if isinstance(schema, list):
            parts = [self.of(each) for each in schema]
            depth = max((part[0] for part in parts), default=0)
            # Null within a union takes a byte, that of its index.
            return depth, max((part[1] for part in parts if part != _NULL), default=0), False
        kind = _kind_of(schema)
        if isinstance(kind, (dict, list)) or (schema is not kind and kind in self._named):
            return self.of(kind)
        if kind in _RECORD_TYPES:
            parts = [self.of(field["type"]) for field in schema["fields"]]
            is_empty = all(part[2] for part in parts)
            empty = sum(part[1] for part in parts) + is_empty
            return 1 + max((part[0] for part in parts), default=0), empty, is_empty
        if kind in ("array", "map"):
            depth, empty, is_empty = self.of(schema["items" if kind == "array" else "values"])
            if is_empty and kind == "array":
                raise _UnboundedError
            return 1 + depth, empty, False
        is_empty = kind == "null" or (kind == "fixed" and not schema["size"])
        return 0, int(is_empty), is_empty

    def _of_name(self, name: str) -> tuple[int, int, bool]:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self.of(self._named[name])
        known = self._known[name]
        if known is None:  # a recursive type
            raise _UnboundedError
        return known


class _Walk:
    """Skips the bytes of one value."""

    def __init__(self, named: Mapping[str, Any], data: bytes, start: int) -> None:
        self._named = named
        self._data = data
        self._at = start
        self._free = _MOST_EMPTY + 4 * len(data)

    def skip(self, schema: Any, depth: int) -> None:
        schema, kind = self._resolved(schema)
        if kind in _WITH_VALUES and depth == MOST_NESTED:
            raise ValueError(f"nested deeper than {MOST_NESTED} at byte {self._at + 1}")
        if kind in _RECORD_TYPES:
            if not schema["fields"]:
                self._count_one()
            for field in schema["fields"]:
                self.skip(field["type"], depth + 1)
        elif kind in ("array", "map"):
            self._skip_blocks(schema, kind, depth)
        elif kind in _INTEGERS:
            self._number()
        elif kind in _TEXTS:
            self._pass(self._number())
        else:
            size = schema["size"] if kind == "fixed" else _SIZES[kind]
            if not size:
                self._count_one()
            self._pass(size)

    def _resolved(self, schema: Any) -> tuple[Any, str]:
        """Resolve unions and names; return the schema of the next value, and its kind."""
        while True:
            if isinstance(schema, list):
                place = self._number()
                if not 0 <= place < len(schema):
                    raise ValueError(f"type {place} of a union of {len(schema)}")
                schema = schema[place]
            elif isinstance(schema, str) and schema in self._named:
                schema = self._named[schema]
            else:
                kind = _kind_of(schema)
                if isinstance(kind, str) and kind not in self._named:
                    return schema, kind
                schema = kind

    def _skip_blocks(self, schema: Any, kind: str, depth: int) -> None:
        items = schema["items" if kind == "array" else "values"]
        while count := self._number():
            if count < 0:
                count = -count
                self._number()  # bytes of the block
            for _ in range(count):
                if kind == "map":
                    self._pass(self._number())
                self.skip(items, depth + 1)

    def _number(self) -> int:
        value = shift = 0
        data, at = self._data, self._at
        while shift < 70:
            if at >= len(data):
                raise ValueError("it ends within its value")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at
                value &= 0xFFFF_FFFF_FFFF_FFFF
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise ValueError(f"a number of more than 10 bytes at byte {self._at + 1}")

    def _pass(self, size: int) -> None:
        if size < 0 or size > len(self._data) - self._at:
            raise ValueError("it ends within its value")
        self._at += size

    def _count_one(self) -> None:
        self._free -= 1
        if self._free < 0:
            raise ValueError(f"more than {_MOST_EMPTY:,} values that take no bytes")


def _kind_of(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema

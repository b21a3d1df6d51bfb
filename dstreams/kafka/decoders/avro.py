"""Avro, by fastavro: with schemas of a Schema Registry, or with one schema for all."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError
from dstreams.kafka.decoders.avro_bounds import AvroBounds
from dstreams.kafka.decoders.decoder import Decoder
from dstreams.kafka.decoders.schema_framing import HEADER_BYTES, schema_id
from dstreams.kafka.decoders.schema_registry import (
    RegisteredSchema,
    RegistrySettings,
    SchemaRegistry,
)
from dstreams.spark.nesting import require_shallow


class AvroDecoder(Decoder[Any]):
    """Avro: a record is a dict, logical types are those of Python (datetime, Decimal, UUID).

    The bytes are what the serializers of Confluent write: the id of a schema, then the value. Each
    schema is fetched once by each worker process. A registry that cannot be reached is not the
    fault of a record: then the task fails and is tried again.

    Values that are nested deeper than 200, and values of many items that take no bytes, cannot be
    decoded. They are looked for only where the schema allows them: it refers to itself, or has
    arrays of null.

    >>> clicks = AvroDecoder({"url": "http://localhost:8081"})
    >>> clicks = AvroDecoder({
    ...     "url": "https://registry.example.org", "basic.auth.user.info": "${env:REGISTRY_USER}"})
    >>> plain = AvroDecoder(schema={"type": "array", "items": "long"})
    >>> plain.decode(bytes([4, 2, 14, 0]), "numbers")
    [1, 7]

    Args:
        registry: settings of ``confluent_kafka.schema_registry.SchemaRegistryClient``. What is
            secret is given as ``${env:NAME}`` and read from the environment of each worker.
        schema: instead of a registry: the schema, as JSON or parsed, of values without any header.
        reader_schema: schema, as JSON or parsed, to which each value is resolved by the rules of
            Avro: fields that it does not have are left out, new ones get their default. None:
            values are as they were written.

    Raises:
        InvalidStreamError: a setting or a schema is wrong, or both or neither of *registry* and
            *schema* are given.
        EnvironmentNotReadyError: fastavro is not installed.
    """

    def __init__(
        self,
        registry: RegistrySettings | None = None,
        *,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        reader_schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
    ) -> None:
        if (registry is None) == (schema is None):
            raise InvalidStreamError(
                "AvroDecoder takes either the settings of a Schema Registry or schema=, got "
                f"{'neither' if registry is None else 'both'}"
            )
        self._registry = (
            None if registry is None else SchemaRegistry.of_settings(registry, "AvroDecoder")
        )
        self._writer_text = _checked_text(schema, "schema")
        self._reader_text = _checked_text(reader_schema, "reader_schema")
        self._forget()

    def decode(self, data: bytes, topic: str) -> Any:
        values = self._decoded([data])
        return values[0]

    def decode_block(self, values: Sequence[bytes | None], topic: str) -> list[Any]:
        return self._decoded(values)

    def _decoded(self, values: Sequence[bytes | None]) -> list[Any]:
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
                raise ValueError(f"{left} bytes are left over behind the value of its schema")
        return decoded

    def _writer_of(self, data: bytes) -> _Parsed:
        registry = cast(SchemaRegistry, self._registry)  # there is one where no schema was given
        number = schema_id(data)
        if number in self._unknown:
            raise LookupError(self._unknown[number])
        try:
            schema = _parsed_schema(registry.schema(number), number)
        except LookupError as error:
            # Asked for once in a task: a topic of another registry must not be a request a record.
            self._unknown[number] = str(error)
            raise
        self._writers[data[:HEADER_BYTES]] = schema
        return schema

    def _forget(self) -> None:
        self._writers: dict[bytes, _Parsed] = {}
        self._unknown: dict[int, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_registry", "_writer_text", "_reader_text")
        return {name: vars(self)[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"AvroDecoder({'' if self._registry is None else self._registry!r})"


def _checked_text(schema: str | Mapping[str, Any] | Sequence[Any] | None, what: str) -> str | None:
    if schema is None:
        return None
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        _parsed(text)
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        raise InvalidStreamError(
            f"{what} of AvroDecoder is no Avro schema ({type(error).__name__}: {error}); give it "
            "as JSON or as the dict of that"
        ) from None
    return text


class _Parsed(NamedTuple):
    """A schema as fastavro wants it, and what checks its values, None if they are bounded."""

    schema: Any
    bounds: AvroBounds | None


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, references: tuple[str, ...] = ()) -> _Parsed:
    """Return a schema, parsed once in a process."""
    parse, named = _fastavro().parse_schema, {}  # type: ignore[var-annotated]
    for reference in references:
        parse(_loaded(reference), named_schemas=named)
    schema = parse(_loaded(text), named_schemas=named)
    bounds = AvroBounds(schema, named)
    return _Parsed(schema, bounds if bounds.is_needed() else None)


def _loaded(text: str) -> Any:
    """Return a schema as JSON says it; a single name may stand without quotes."""
    require_shallow(text)
    try:
        return json.loads(text)
    except ValueError:
        if text.isidentifier():
            return text
        raise


def _parsed_schema(schema: RegisteredSchema, number: int) -> _Parsed:
    if schema.kind != "AVRO":
        raise LookupError(f"schema {number} of the Schema Registry is {schema.kind}, not AVRO")
    return _parsed(schema.text, schema.references)


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

"""Avro: what Confluent's serializers write is read, each schema is fetched once."""

from __future__ import annotations

import io
import json
import pickle
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstreams.errors import InvalidStreamError, SourceError
from dstreams.kafka.avro import AvroDecoder
from dstreams.kafka.decoding import BadRecords, Decoding, RecordBlock
from tests.support.schema_registry import LocalRegistry, running

CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "user", "type": "string"}, {"name": "pages", "type": "int"}],
}


def written(schema: Any, value: Any, number: int | None = None) -> bytes:
    """A value as Avro, behind the id of its schema."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    header = b"" if number is None else b"\0" + number.to_bytes(4, "big")
    return header + stream.getvalue()


def block(*values: bytes | None) -> RecordBlock:
    size = range(len(values))
    nothing = [-1 for _ in size]
    return RecordBlock(
        "clicks", 3, [10 + at for at in size], nothing, nothing, [() for _ in size],
        [None for _ in size], values,
    )  # fmt: skip


def test_reads_what_the_serializer_of_confluent_writes(registry: LocalRegistry) -> None:
    """A record, with logical types, comes back as it was given to AvroSerializer."""
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "sum",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
    order = {
        "id": "a-1",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=timezone.utc),
        "sum": Decimal("12.50"),
        "note": None,
    }
    with SchemaRegistryClient({"url": registry.url}) as client:
        data = AvroSerializer(client, json.dumps(schema))(
            order, SerializationContext("orders", MessageField.VALUE)
        )
    assert AvroDecoder(registry.settings).decode(data, "orders") == order


def test_a_schema_is_fetched_once_by_a_process(registry: LocalRegistry) -> None:
    """Decoders of later tasks, which come pickled, find it where the first has put it."""
    first = registry.register("clicks-value", CLICK)
    second = registry.register("visits-value", "long")
    decoder = AvroDecoder(registry.settings)
    values = [
        written(CLICK, {"user": "ann", "pages": 1}, first),
        None,
        written("long", 7, second),
        written(CLICK, {"user": "bob", "pages": 2}, first),
    ]
    expected = [{"user": "ann", "pages": 1}, None, 7, {"user": "bob", "pages": 2}]
    for _ in range(3):
        decoder = pickle.loads(pickle.dumps(decoder))
        assert decoder.decode_block(values, "clicks") == expected
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"]


def test_nothing_is_asked_before_a_record_needs_it(registry: LocalRegistry) -> None:
    """Making, pickling and printing a decoder makes no client."""
    decoder = AvroDecoder(registry.settings)
    pickle.loads(pickle.dumps(decoder))
    assert repr(decoder) == f"AvroDecoder({registry.url})"
    assert registry.asked == []


def test_schemas_that_refer_to_others(registry: LocalRegistry) -> None:
    """The schemas that one refers to are fetched with it, also those that these need."""
    country = {"type": "enum", "name": "Country", "symbols": ["DE", "FR"]}
    city = {
        "type": "record",
        "name": "City",
        "fields": [{"name": "name", "type": "string"}, {"name": "country", "type": "Country"}],
    }
    visit = {
        "type": "record",
        "name": "Visit",
        "fields": [{"name": "begin", "type": "City"}, {"name": "end", "type": "City"}],
    }
    registry.register("country", country)
    to_country = {"name": "Country", "subject": "country", "version": 1}
    registry.register("city", city, references=[to_country])
    to_city = {"name": "City", "subject": "city", "version": 1}
    number = registry.register("visit", visit, references=[to_city, to_country])
    whole = [country, city, visit]
    value = {
        "begin": {"name": "Bonn", "country": "DE"},
        "end": {"name": "Metz", "country": "FR"},
    }
    named: dict[str, Any] = {}
    parsed = [fastavro.parse_schema(schema, named_schemas=named) for schema in whole][-1]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed, value)
    data = b"\0" + number.to_bytes(4, "big") + stream.getvalue()
    assert AvroDecoder(registry.settings).decode(data, "visits") == value


def test_a_reader_schema(registry: LocalRegistry) -> None:
    """Values of older and newer schemas have the fields of the one that the program gives."""
    newer = {**CLICK, "fields": [*CLICK["fields"], {"name": "ip", "type": "string"}]}
    wanted = {
        **CLICK,
        "fields": [
            {"name": "user", "type": "string"},
            {"name": "ip", "type": "string", "default": "-"},
        ],
    }
    first, second = registry.register("c", CLICK), registry.register("c", newer)
    values = [
        written(CLICK, {"user": "ann", "pages": 1}, first),
        written(newer, {"user": "bob", "pages": 2, "ip": "::1"}, second),
    ]
    decoder = AvroDecoder(registry.settings, reader_schema=wanted)
    expected = [{"user": "ann", "ip": "-"}, {"user": "bob", "ip": "::1"}]
    assert decoder.decode_block(values, "clicks") == expected


def test_one_schema_for_all() -> None:
    """Without a registry the bytes are the value, and nothing stands before it."""
    decoder = pickle.loads(pickle.dumps(AvroDecoder(schema=json.dumps(CLICK))))
    value = {"user": "ann", "pages": 1}
    assert decoder.decode(written(CLICK, value), "clicks") == value
    assert AvroDecoder(schema="string").decode(b"\x04ab", "clicks") == "ab"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0", "2 bytes are too few for the 5 of a schema id; was it written by a serializer"),
        (b'{"user": 1}', "it begins with the byte 0x7b and not with the zero before a schema id"),
        (b"\0\0\0\0\x63abc", "LookupError: the Schema Registry has no schema 99"),
        (b"\0\0\0\0\x01\x06an", "EOFError"),
        (b"\0\0\0\0\x01\x02a\x02more", "4 bytes are left over after the value of its schema"),
        (b"\0\0\0\0\x02\x02a", "LookupError: schema 2 of the Schema Registry is JSON, not AVRO"),
    ],
)
def test_bytes_that_are_no_value(registry: LocalRegistry, data: bytes, reason: str) -> None:
    """Each is set aside with its reason, and what stands before and behind it is read."""
    number = registry.register("clicks-value", CLICK)
    registry.register("other-value", "{}", "JSON")
    good = written(CLICK, {"user": "ann", "pages": 1}, number)
    decoding = Decoding(None, AvroDecoder(registry.settings), "DROPMALFORMED")
    decoded = decoding(block(good, data, good))
    assert [record.offset for record in decoded.records] == [10, 12]
    assert [(letter.offset, letter.value) for letter in decoded.rejected] == [(11, data)]
    assert reason in decoded.rejected[0].reason


def test_an_unknown_schema_is_asked_for_once_in_a_task(registry: LocalRegistry) -> None:
    """A topic whose schemas are elsewhere is not a request for each record."""
    decoding = Decoding(None, AvroDecoder(registry.settings), "DROPMALFORMED")
    for _ in range(2):
        decoded = decoding(block(*[b"\0\0\0\0\x09a"] * 50))
        assert len(decoded.rejected) == 50
    assert registry.asked == ["/schemas/ids/9"]


@pytest.mark.parametrize("bad_records", ["FAILFAST", "DROPMALFORMED"])
def test_a_registry_in_trouble_is_not_the_fault_of_a_record(
    registry: LocalRegistry, bad_records: BadRecords
) -> None:
    """The task fails in every mode, and succeeds once the registry answers."""
    number = registry.register("clicks-value", CLICK)
    decoding = Decoding(None, AvroDecoder(registry.settings), bad_records)
    records = block(written(CLICK, {"user": "ann", "pages": 1}, number))
    registry.is_failing = True
    with pytest.raises(SourceError) as error:
        decoding(records)
    assert str(error.value) == (
        f"failed to get schema 1 from the Schema Registry {registry.url} (SchemaRegistryError: the "
        "registry has lost its store (HTTP status code 500, SR code 50001)); its records wait "
        "until it answers"
    )
    registry.is_failing = False
    assert len(decoding(records).records) == 1


def test_no_registry_at_all() -> None:
    """Without an answer the task fails with the address."""
    with running(LocalRegistry()) as gone:
        pass
    decoder = AvroDecoder(gone.settings)
    with pytest.raises(SourceError, match=rf"failed to get schema 1 from .* {gone.url} "):
        decoder.decode(b"\0\0\0\0\x01", "clicks")


def test_a_user_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and password come from the environment of the worker, and are nowhere else."""
    with running(LocalRegistry(user="ann:open sesame")) as registry:
        number = registry.register("clicks-value", CLICK)
        data = written(CLICK, {"user": "bob", "pages": 2}, number)
        user = {"basic.auth.user.info": "ann:${env:REGISTRY_PASSWORD}"}
        decoder = AvroDecoder({**registry.settings, **user})
        monkeypatch.delenv("REGISTRY_PASSWORD", raising=False)
        with pytest.raises(InvalidStreamError) as missing:
            decoder.decode(data, "clicks")
        assert str(missing.value) == (
            "Schema Registry: basic.auth.user.info is ${env:REGISTRY_PASSWORD}, and this process "
            "has no environment variable REGISTRY_PASSWORD; set it where the driver is started, "
            "and for workers by spark.executorEnv.REGISTRY_PASSWORD"
        )
        monkeypatch.setenv("REGISTRY_PASSWORD", "open sesame")
        assert decoder.decode(data, "clicks") == {"user": "bob", "pages": 2}
        assert b"sesame" not in pickle.dumps(decoder)
        assert "sesame" not in repr(decoder)


def test_a_wrong_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the response of the registry, but not the request."""
    with running(LocalRegistry(user="ann:open sesame")) as registry:
        monkeypatch.setenv("REGISTRY_USER", "ann:guess")
        user = {"basic.auth.user.info": "${env:REGISTRY_USER}"}
        with pytest.raises(SourceError, match="HTTP status code 401") as refused:
            AvroDecoder({**registry.settings, **user}).decode(b"\0\0\0\0\x01", "clicks")
        assert "guess" not in str(refused.value)


def test_settings_that_the_client_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values from the environment are not shown."""
    monkeypatch.setenv("REGISTRY_USER", "no-colon")
    wrong = AvroDecoder({"url": "http://h", "basic.auth.user.info": "${env:REGISTRY_USER}"})
    with pytest.raises(InvalidStreamError, match="must be in the form of") as error:
        wrong.decode(b"\0\0\0\0\x01", "clicks")
    assert "no-colon" not in str(error.value)


@pytest.mark.parametrize(
    ("given_settings", "reason"),
    [
        ({}, "AvroDecoder needs the setting 'url' of its Schema Registry"),
        ("http://h", "AvroDecoder needs the settings of a Schema Registry, such as {'url': "),
        ({"url": 7}, "AvroDecoder needs the setting 'url' of its Schema Registry"),
        ({"url": None}, "setting 'url' of AvroDecoder must be a str or a number, got NoneType"),
        (
            {"schema.registry.url": "http://h"},
            "setting 'schema.registry.url' of AvroDecoder is one of Java; use url",
        ),
        (
            {"url": "http://h", "basic.auth.user.info": "ann:x"},
            "setting 'basic.auth.user.info' of AvroDecoder is secret, and would be written to the "
            "checkpoint with the graph; give '${env:NAME}', and NAME in the environment of the "
            "workers",
        ),
        ({"url": "http://ann:x@h"}, "setting 'url' of AvroDecoder is secret"),
    ],
)
def test_settings_that_are_refused(given_settings: Any, reason: str) -> None:
    """Settings that cannot work or would be stored are rejected."""
    with pytest.raises(InvalidStreamError) as error:
        AvroDecoder(given_settings)
    assert str(error.value).startswith(reason)


def test_a_user_within_the_url_is_not_printed() -> None:
    """The URL is printed without secrets."""
    decoder = AvroDecoder({"url": "http://ann:${env:P}@registry:8081/api"})
    assert repr(decoder) == "AvroDecoder(http://registry:8081/api)"


def test_arguments_that_are_refused() -> None:
    """A registry or a schema; and a schema is one."""
    with pytest.raises(InvalidStreamError, match="or schema=, got neither"):
        AvroDecoder()
    with pytest.raises(InvalidStreamError, match="or schema=, got both"):
        AvroDecoder({"url": "http://h"}, schema="long")
    with pytest.raises(
        InvalidStreamError, match="reader_schema of AvroDecoder is not an Avro schema"
    ):
        AvroDecoder({"url": "http://h"}, reader_schema={"type": "recrod"})


def test_a_registered_schema_may_be_a_bare_name(registry: LocalRegistry) -> None:
    """Some writers register ``long`` for ``"long"``."""
    registry.register("n", "long")
    assert registry.schemas[1]["schema"] == "long"
    assert AvroDecoder(registry.settings).decode(b"\0\0\0\0\x01\x0e", "n") == 7


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**31), 2**31 - 1), st.text())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.one_of(st.none(), SCALARS.map(lambda value: {"of": value}))))
def test_blocks_as_one_by_one(values: list[Any]) -> None:
    """A block has what each of its values is by itself."""
    schema = {
        "type": "record",
        "name": "Any",
        "fields": [{"name": "of", "type": ["null", "boolean", "int", "string"]}],
    }
    data = [None if value is None else written(schema, value) for value in values]
    decoder = AvroDecoder(schema=schema)
    assert decoder.decode_block(data, "t") == values
    assert [None if each is None else decoder.decode(each, "t") for each in data] == values

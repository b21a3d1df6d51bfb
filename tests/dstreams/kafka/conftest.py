"""A Schema Registry on loopback for tests of decoders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dstreams.kafka import avro
from tests.support.schema_registry import LocalRegistry, running


@pytest.fixture
def registry() -> Iterator[LocalRegistry]:
    """A registry without schemas; what this process has fetched of it is forgotten."""
    with running(LocalRegistry()) as answering:
        yield answering
    avro._schema.cache_clear()

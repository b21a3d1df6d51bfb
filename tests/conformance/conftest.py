"""What the conformance tests share: one process that runs pyspark.streaming."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.oracle import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """The real pyspark.streaming, started when the first test asks for it."""
    process = Oracle(tmp_path_factory.mktemp("oracle"))
    yield process
    process.close()

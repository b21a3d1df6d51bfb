"""Test the stream batch by batch: input and output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dstreams import tuned_context
from dstreams.testing import run_batches
from pyspark import SparkContext

from word_count.stream import counted


@pytest.fixture(scope="session")
def sc() -> Iterator[SparkContext]:
    """One Spark for all tests."""
    conf = {"spark.ui.enabled": "false"}
    spark = tuned_context("tests of word-count", "local[2,4]", conf)
    yield spark
    spark.stop()


def test_counts_go_on(sc: SparkContext) -> None:
    """Each batch has the counts of all words so far, even an empty batch."""
    batches = [["to be or", "not to be"], [], ["or so"]]
    first, second, third = run_batches(sc, batches, counted)
    assert sorted(first) == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
    assert sorted(second) == sorted(first)
    assert sorted(third) == [("be", 2), ("not", 1), ("or", 2), ("so", 1), ("to", 2)]

"""What ``_SUCCESS`` says."""

from __future__ import annotations

import pytest

from dstreams.sinks.manifest import Manifest
from dstreams.sinks.output_batch import OutputBatch

BATCH = OutputBatch("stream-1", 4, 5000)


def test_it_reads_what_it_wrote() -> None:
    """Whose batch it is, and which files count."""
    manifest = Manifest.of(BATCH, ("part-0", "part-1"))
    assert Manifest.of_text(manifest.to_text()) == manifest
    assert manifest.files == ("part-0", "part-1")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", '{"stream_id": "a"', '{"files": 1}'])
def test_what_others_wrote_is_no_manifest(text: str) -> None:
    """Spark's own is empty, and other committers have JSON of their own."""
    assert Manifest.of_text(text) is None


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (OutputBatch("stream-1", 4, 5000), True),
        (OutputBatch("stream-2", 4, 5000), False),
        (OutputBatch("stream-1", 5, 5000), False),
    ],
)
def test_a_batch_is_the_same_in_the_same_stream(other: OutputBatch, same: bool) -> None:
    """A stream that begins anew has batches of its own."""
    assert Manifest.of(BATCH).is_of(other) is same

"""Manifests, and the check for skipped batches."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from dstreams.errors import OutputConflictError
from dstreams.sinks import committed_directory
from dstreams.sinks.committed_directory import Manifest, Series
from dstreams.sinks.output_batch import OutputBatch

BATCH = OutputBatch("stream-1", 4, 5000, "aa")


def test_it_reads_what_it_wrote() -> None:
    """Whose batch it is, and which files count."""
    said = Manifest.of(BATCH, ("part-0", "part-1"))
    assert Manifest.of_text(said.to_text()) == said
    assert (said.files, said.beginning) == (("part-0", "part-1"), "aa")
    told = replace(Manifest.of(replace(BATCH, batch_id=5)), before=(said,))
    assert Manifest.of_text(told.to_text()) == told


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", '{"stream_id": "a"', '{"files": 1}'])
def test_what_others_wrote_is_no_manifest(text: str) -> None:
    """Spark's own is empty, and other committers have JSON of their own."""
    assert Manifest.of_text(text) is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (OutputBatch("stream-1", 4, 5000, "aa"), None),
        (OutputBatch("stream-2", 4, 5000, "aa"), "is the output of batch 4 of stream-1, not of ba"),
        (OutputBatch("stream-1", 5, 5000, "aa"), "has batch 4 of stream-1 with token aa; this is "),
        (OutputBatch("stream-1", 4, 5000, "bb"), "this is batch 4 with token bb. Another history"),
        (OutputBatch("stream-1", 4, 5000), "this is batch 4 with token unknown. Another history"),
    ],
)
def test_a_batch_is_the_same_by_its_beginning(other: OutputBatch, message: str | None) -> None:
    """Number and time do not identify a batch: a copy of the checkpoint uses the same ones."""
    wanted = nullcontext() if message is None else pytest.raises(OutputConflictError, match=message)
    with wanted:
        Manifest.of(BATCH).require_of(other, "/out-5000")


def fail() -> list[str]:
    raise AssertionError("nothing is listed")


def test_batches_that_were_left_out() -> None:
    """A batch of another history is an error; batches before and after the gap are not."""
    series, read = Series("/d", "out-9000.txt", 9000), dict[str, Manifest | None]()
    names = ["out-2000.txt", "out-9000.txt", "out-5000.csv", "other-5000.txt"]
    for name in names:
        time_ms = int(name.partition("-")[2].partition(".")[0])
        read[name] = Manifest("stream-1", time_ms // 1000 - 1, time_ms, (), "aa")
    batch = OutputBatch("stream-1", 8, 9000, "bb", range(2, 8))
    committed_directory._compared.clear()
    in_flight = replace(batch, batch_id=1, time_ms=2000)
    Series("/d", "out-2000.txt", 2000).require_left_out(in_flight, fail, read.__getitem__)
    series.require_left_out(batch, lambda: names, read.__getitem__)
    series.require_left_out(batch, fail, read.__getitem__)  # it is known now
    committed_directory._compared.clear()
    read["out-6000.txt"] = None
    read["out-5000.txt"] = Manifest("stream-other", 4, 5000)
    series.require_left_out(batch, lambda: read, read.__getitem__)
    committed_directory._compared.clear()
    read["out-4000.txt"] = Manifest("stream-1", 3, 4000, (), "aa")
    read["out-7000.txt"] = Manifest("stream-1", 6, 7000, (), "aa")  # goes with the older one
    # One that was in flight runs first, and has not seen what comes after it.
    Series("/d", "out-2000.txt", 2000).require_left_out(in_flight, lambda: read, read.__getitem__)
    with pytest.raises(
        OutputConflictError, match=r"/d/out-4000\.txt has batch 3 of stream-1 with "
    ):
        series.require_left_out(batch, lambda: read, read.__getitem__)


def test_batches_left_out_before_one_that_was_in_flight() -> None:
    """A driver that died before it ran the first batch after a gap leaves the look to the next."""
    names = ["out-4000.txt", "out-9000.txt"]
    read = {name: Manifest("stream-1", int(name[4]) - 1, 0, (), "aa") for name in names}
    committed_directory._compared.clear()
    batch = OutputBatch("stream-1", 8, 9000, "aa", range(9, 20), 20, gap=range(2, 8))
    with pytest.raises(
        OutputConflictError, match=r"/d/out-4000\.txt has batch 3 of stream-1 with "
    ):
        Series("/d", "out-9000.txt", 9000).require_left_out(batch, lambda: names, read.get)
    later = replace(batch, batch_id=20, time_ms=21_000, gap=range(9, 20))
    Series("/d", "out-21000.txt", 21_000).require_left_out(later, lambda: names, read.get)


def test_hidden_names_of_one_output_of_one_stream() -> None:
    """Those of another suffix, and of another stream, are not its own."""
    hidden, token = Series("/d", "out-1000.json", 1000).hidden("stream-1"), "0" * 32
    assert hidden.fullmatch(f".out-2000.json.stream-1.{token}")
    for other in ("out-2000.csv.stream-1", "out-2000.json.stream-2", "out.x-2000.json.stream-1"):
        assert not hidden.fullmatch(f".{other}.{token}")

"""Checkpoints of an earlier revision open with today's code, and streams and queries resume.

The archives in tests/golden were written at tag ``before-27``, before the modules moved, by running
tests/support/golden_programs.py there with PySpark 4. Their graphs are pickled under module names
that no longer exist, so a stream resumes by ``restore`` with its setup function, not by
``getOrCreate``. When the format on disk changes on purpose, write them again.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import read_plan
from checkpoint.cli.main import main
from dstreams import StreamingContext
from tests.support import golden_programs as golden

ARCHIVES = Path(__file__).parent / "golden"
SUMS = dict(golden.expected_sums(golden.STREAM_BATCHES))
WORDS = golden.expected_words(golden.QUERY_BATCHES)

CASES: list[tuple[str, list[str], dict[Any, Any]]] = [
    ("stream", ["--operator", "sums"], SUMS),
    # mapWithState keeps the time of the last update with each value.
    ("stream", ["--operator", "counts"], {key: [SUMS[key], 4000] for key in SUMS}),
    ("aggregation", [], {word: [number] for word, number in WORDS.items()}),
    ("groups", [], {word: [number] for word, number in WORDS.items()}),
    ("store", [], golden.STORED),
]


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """All archives, unpacked so that only their owner can write them."""
    for archive in ARCHIVES.glob("*.zip"):
        with zipfile.ZipFile(archive) as source:
            source.extractall(tmp_path / archive.stem)
    for path in tmp_path.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path


def run_tool(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert status == 0, output.err
    return output.out


@pytest.mark.parametrize("name", ["stream", "aggregation", "groups"])
def test_verify(opened: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """verify finds no problem; show and list print the checkpoint."""
    location = str(opened / name)
    assert json.loads(run_tool(capsys, "verify", location, "--json"))["problems"] == []
    run_tool(capsys, "show", location)
    run_tool(capsys, "list", location)


@pytest.mark.parametrize(("name", "options", "state"), CASES)
def test_read(
    opened: Path,
    name: str,
    options: list[str],
    state: dict[Any, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """read prints the keys and states that the programs left."""
    lines = run_tool(capsys, "read", str(opened / name), "--json", *options).splitlines()
    rows = [json.loads(line) for line in lines]
    expected = [{"key": _as_json(key), "value": value} for key, value in state.items()]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def _as_json(key: Any) -> Any:
    return list(key) if isinstance(key, tuple) else key


def test_stream_resumes(sc: SparkContext, opened: Path) -> None:
    """restore continues both kinds of state, and the window."""
    golden.seen.clear()
    ssc = StreamingContext.restore(str(opened / "stream"), lambda: golden.define_stream(sc, opened))
    try:
        ssc.step()
    finally:
        ssc.stop(stopSparkContext=False)
    batches = golden.STREAM_BATCHES + 1
    assert golden.seen["sums"] == golden.seen["counts"] == golden.expected_sums(batches)
    assert golden.seen["window"] == [("a", 3 + 4 + 5), ("b", 3)]


def test_queries_resume(sc: SparkContext, opened: Path) -> None:
    """Both queries continue from their state and offsets."""
    golden.seen.clear()
    lines = golden.LINES[: golden.QUERY_BATCHES + 1]
    golden.run_queries(sc, opened, lines, golden.QUERY_BATCHES)
    words = golden.expected_words(len(lines))
    changed = sorted((word, words[word]) for word in golden.words_of(lines[-1]))
    assert golden.seen == {"aggregation": changed, "groups": changed}
    query = read_plan(golden.open_files(str(opened / "groups")))
    assert query.last is not None
    assert query.last.batch_id == len(lines) - 1

"""The README: its programs are run, and what it lists is what there is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark.streaming
import pytest

import dstreams
from dstreams.settings import Settings
from dstreams.structured.conf import QueryConf
from tests.support.programs import LIMIT_S, running
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[1]
PAPERS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
README = (ROOT / "README.md").read_text(encoding="utf-8")

PROGRAM = re.compile(r"^```python\n(.*?)^```\n\s*^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = "--- next program ---"


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def first_cells(table: str) -> list[str]:
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return [row.split("|")[1].strip() for row in rows[2:]]


def public_methods(cls: type[Any]) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.spark
def test_programs_print_what_the_readme_says(tmp_path: Path) -> None:
    """The programs, run one after another as a reader would, print the text under them."""
    programs = PROGRAM.findall(README)
    assert len(programs) == README.count("```python\n") == 3
    script = tmp_path / "readme.py"
    script.write_text(f"\nprint({MARK!r})\n".join(code for code, _ in programs), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{MARK}\n") == [output for _, output in programs]


@pytest.mark.spark
def test_programs_with_kafka_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program with Kafka counts what comes to its topic, and a signal ends it with status 0."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    from dstreams.demo.mock_cluster import MockCluster  # noqa: PLC0415
    from tests.support.kafka_cluster import KafkaCluster  # noqa: PLC0415 - skips without parts

    (code,) = re.findall(r"^```text\n(.*?)^```$", section("Kafka"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    with MockCluster() as cluster:
        clicks = [f'{{"user": "{user}"}}' for user in ("ann", "bob", "ann")]
        KafkaCluster(cluster.brokers).produce("clicks", clicks)
        with running("-c", code.replace("localhost:9092", cluster.brokers)) as program:
            wait_for(lambda: program.has_printed("('ann', 2)", "('bob', 1)"), LIMIT_S)
            assert program.end(signal.SIGTERM) == 0, "\n".join(program.lines)


def test_first_program_is_short() -> None:
    """The first program fits on a screen."""
    code, _ = PROGRAM.findall(README)[0]
    assert len([line for line in code.splitlines() if line]) <= 20


def test_commands() -> None:
    """There are two commands: one runs the demo, the other is what CI runs."""
    commands = re.findall(r"^```console\n(.*)\n```$", README, re.MULTILINE)
    (checked,) = (
        line
        for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
        if "pytest" in line
    )
    assert commands[1:] == [checked]
    assert commands[0].startswith("python3.11 -m venv .venv && .venv/bin/pip install ")
    assert commands[0].endswith(" && .venv/bin/dstreams demo")


@pytest.mark.parametrize("name", ["StreamingContext", "DStream"])
def test_what_is_missing_is_said(name: str) -> None:
    """Each public method of pyspark.streaming that is not here is named as not there yet."""
    missing = public_methods(getattr(pyspark.streaming, name)) - public_methods(
        getattr(dstreams, name)
    )
    promises = section("What this release promises")
    assert [method for method in sorted(missing) if f"`{method}`" not in promises] == []


def test_settings() -> None:
    """The table of settings has each key there is, and no other, with its default."""
    rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)`)?", section("Settings"), re.MULTILINE)
    shown = {key: default or None for key, default in rows}
    defaults = {key: default or None for key, default in Settings.defaults().items()}
    assert shown == {**defaults, "spark.streaming.backpressure.initialRate": "maxRate"}


def test_settings_of_queries() -> None:
    """Each setting of a query is named, those of stored state by what their keys begin with."""
    text = section("Structured queries").partition("A query has the settings")[2]
    keys = [key for key in QueryConf.defaults() if not key.startswith("spark.dstreams.state.")]
    assert "spark.dstreams.state.*" in text
    names = [key.removeprefix("spark.sql.streaming.") for key in keys]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_files_that_are_named() -> None:
    """The files that the README names are there."""
    named = set(re.findall(r"\b(?:examples|tests)/[\w/]+\.py", README)) | {"LICENSE"}
    assert len(named) > 2
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_papers_name_what_is_there(paper: Path) -> None:
    """Files, directories and other papers that a paper for developers names are there."""
    text = paper.read_text(encoding="utf-8")
    files = re.findall(r"`((?:checkpoint|dstreams|tests|benchmarks|examples|docs)/[\w/.]*)`", text)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    missing = [name for name in sorted(set(files)) if not (ROOT / name).exists()]
    missing += [name for name in sorted(set(links)) if not (paper.parent / name).exists()]
    assert missing == []


def test_differences_name_three_things() -> None:
    """Each row of the differences says what it is about, how it is there, and how it is here."""
    table = section("What differs from `pyspark.streaming`, and why")
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) > 15
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert [row for row in cells if len(row) != 3 or not all(row)] == []

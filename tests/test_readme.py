"""The README: its programs are run, and what it lists is what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark.streaming
import pytest

import dstreams

ROOT = Path(__file__).parents[1]
DIFFERENCES = ROOT / "docs" / "pages" / "reference" / "differences.md"
PAPERS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")

PROGRAM = re.compile(r"^```python\n(.*?)^```\n\s*^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = "--- next program ---"


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def public_methods(cls: type[Any]) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.deep
@pytest.mark.spark
def test_programs_print_what_the_readme_says(tmp_path: Path) -> None:
    """The program, run as a reader would, prints the text under it."""
    programs = PROGRAM.findall(README)
    assert len(programs) == README.count("```python\n") == 1
    script = tmp_path / "readme.py"
    script.write_text(f"\nprint({MARK!r})\n".join(code for code, _ in programs), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{MARK}\n") == [output for _, output in programs]


def test_first_program_is_short() -> None:
    """The first program fits on a screen."""
    code, _ = PROGRAM.findall(README)[0]
    assert len([line for line in code.splitlines() if line]) <= 20


def test_commands() -> None:
    """One command runs the demo, the other is what CI runs before the deep tests."""
    commands = re.findall(r"^```console\n(.*)\n```$", README, re.MULTILINE)
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    checked, deep = [line for line in lines if "pytest" in line]
    assert commands[1:] == [checked]
    command, _, selection = deep.partition(' -m "')
    assert selection.startswith('deep and not slow"')
    assert checked.endswith(f"&& {command}")
    assert commands[0].startswith("python3.11 -m venv .venv && .venv/bin/pip install ")
    assert commands[0].endswith(" && .venv/bin/dstreams demo")


@pytest.mark.parametrize("name", ["StreamingContext", "DStream"])
def test_what_is_missing_is_said(name: str) -> None:
    """Each public method of pyspark.streaming that is not here is named as not there yet."""
    missing = public_methods(getattr(pyspark.streaming, name)) - public_methods(
        getattr(dstreams, name)
    )
    said = DIFFERENCES.read_text(encoding="utf-8")
    assert [method for method in sorted(missing) if f"`{method}`" not in said] == []


def test_is_short() -> None:
    """The README is what is read first, and no more: the documentation has the rest."""
    assert len(README.splitlines()) <= 150


def test_figures() -> None:
    """What is said to be faster stands in the notes of the benchmarks, figure by figure."""
    notes = (ROOT / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
    known = set(re.findall(r"[\d.,]*\d", notes))
    rows = [line for line in section("Performance").splitlines() if "|" in line]
    figures = {figure for row in rows for figure in re.findall(r"[\d.,]*\d", row.split("|", 3)[3])}
    assert len(figures) > 15
    assert sorted(figures - known) == []


def test_badges() -> None:
    """The badges say what setup.cfg says."""
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)", setup)
    said = {
        name: re.findall(r"<title>(.*)</title>", path.read_text(encoding="utf-8"))
        for name in ("python", "pyspark", "licence")
        if (path := ROOT / "docs" / "pages" / "images" / f"badge-{name}.svg").exists()
    }
    assert said["python"] == [f"Python: {versions[0]} to {versions[-1]}"]
    assert said["pyspark"][0].startswith("PySpark: 3.5 to 4.")
    assert "pyspark>=3.5,<5" in setup
    assert said["licence"] == ["licence: Apache 2.0"]


def test_files_that_are_named() -> None:
    """The files that the README names are there."""
    named = set(re.findall(r"\b(?:examples|tests)/[\w/]+\.py", README)) | {"LICENSE"}
    assert len(named) > 1
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
    table = DIFFERENCES.read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) > 15
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert [row for row in cells if len(row) != 3 or not all(row)] == []

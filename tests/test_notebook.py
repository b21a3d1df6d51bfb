"""The notebooks of the examples run from the top, and are stored as they ran."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import ROOT

EXAMPLES = ROOT / "examples"
LEAST_PICTURES = {"notebook.ipynb": 10, "operators.ipynb": 0}
LIMIT_S = 900

_OF_BATCHES = ("batch  time", "<batch ")

MISSING = [name for name in ("nbclient", "nbformat", "ipykernel") if find_spec(name) is None]


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs_of(path: Path) -> Iterator[dict[str, Any]]:
    return (output for cell in cells_of(path) for output in cell["outputs"])


def has_pictures(path: Path) -> list[bool]:
    """Return whether each output that is no printed text has a picture."""
    results = (out for out in outputs_of(path) if out["output_type"] != "stream")
    return ["text/html" in output.get("data", {}) for output in results]


def told(path: Path) -> list[str]:
    """What cells put out as text, without numbers, which are times as well.

    What shows batches is left out: its widths, and what is cut off, go by their times.
    """
    texts = []
    for cell in cells_of(path):
        printed = "".join("".join(each.get("text", ())) for each in cell["outputs"])
        shown = ["".join(each.get("data", {}).get("text/plain", ())) for each in cell["outputs"]]
        plain = [text for text in (printed, *shown) if not text.startswith(_OF_BATCHES)]
        said = re.sub(
            r"[0-9a-f]*\d[\w.,:-]*( (ms|s|min)\b)?", "#", " ".join(" ".join(plain).split())
        )
        texts.append(re.sub(r"\(# # [^)]+\)", "(# #)", said))  # a time, with the zone of here
    return texts


def test_every_notebook_is_tested() -> None:
    """No notebook is added without a test."""
    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == set(LEAST_PICTURES)


@pytest.mark.parametrize("name", LEAST_PICTURES)
def test_the_stored_notebook_is_one_that_ran(name: str) -> None:
    """All cells in order, without an error, and without a word of the machine it ran on."""
    notebook = EXAMPLES / name
    cells = cells_of(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = list(outputs_of(notebook))
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    assert all(output.get("name") != "stderr" for output in outputs)
    text = json.dumps(outputs)
    homes = [f"/{name}" for name in ("home", "tmp", "root", "usr", "var")]
    for path in (*homes, "file:", str(ROOT), str(Path.home())):
        assert path not in text


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.skipif(
    bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install nbclient ipykernel"
)
@pytest.mark.parametrize("name", LEAST_PICTURES)
def test_the_notebook_runs(name: str, tmp_path: Path) -> None:
    """From the top to the end, as a user runs it; what it says is what is stored."""
    notebook, done = EXAMPLES / name, tmp_path / name
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    environment.pop("PYSPARK_PYTHON", None)
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.notebook", str(notebook), "--to", str(done)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert told(done) == told(notebook)
    pictures = has_pictures(done)
    assert sum(pictures) >= LEAST_PICTURES[name]
    assert has_pictures(notebook) == pictures

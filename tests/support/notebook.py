"""Runs a notebook from the top, in a kernel of its own, and keeps what its cells put out.

``python -m tests.support.notebook examples/notebook.ipynb`` stores that in the file itself.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

LIMIT_S = 600


def run(notebook: Any) -> None:
    """Run all cells; their outputs are in the notebook then.

    What goes to stderr is left out: Spark's log, which names the machine.
    """
    with TemporaryDirectory() as directory:
        place = {"metadata": {"path": directory}}
        NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources=place).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}


def main() -> None:
    """Run a notebook and write it, to another file where one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--to", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(arguments.notebook, as_version=4)  # type: ignore[no-untyped-call]
    run(notebook)
    nbformat.write(notebook, arguments.to or arguments.notebook)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

"""Programs run by another Python process: another driver, another hash seed, another version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pyspark

from tests.support.jvms import ENVIRONMENT

ROOT = Path(__file__).parents[3]
PACKAGES = Path(pyspark.__file__).parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def run_python(source: str, python: str = sys.executable, **environment: str) -> str:
    """Run a program in a process of its own and return what it printed.

    Only the variables given here say how it hashes and which Python its workers are.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))
    }
    path = os.pathsep.join((str(ROOT), str(PACKAGES)))
    done = subprocess.run(
        [python, "-W", "ignore", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={
            **inherited,
            **ENVIRONMENT,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def find_python(version: str) -> str | None:
    """Return a working interpreter of *version* from PATH or pyenv, else None."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate is not None and _is(candidate, version):
            return candidate
    return None


def _is(candidate: str, version: str) -> bool:
    answer = subprocess.run(
        [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return answer.stdout.strip() == version

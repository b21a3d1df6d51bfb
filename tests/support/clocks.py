"""Processes whose wall clock differs from that of this machine, by libfaketime."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, SPARK_HOME

_NAMES = ("LD_PRELOAD=", "FAKETIME")

_SLEEP = """\
import select
import time

# libfaketime 0.9 refuses the clock_nanosleep of Python.
time.sleep = lambda seconds: select.select((), (), (), seconds) and None
"""


@contextmanager
def shifted_clock(minutes: int, directory: Path) -> Iterator[tuple[str, ...]]:
    """Yield the beginning of a command whose clock is that many minutes ahead of this one.

    A module for its Pythons is written to *directory*. Skips the test without ``faketime``.
    """
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_SLEEP)
    program = ["faketime", "-m", "--exclude-monotonic", "-f", f"{minutes:+}m"]
    # It deletes its shared memory when its command ends.
    program += ["sh", "-c", "env; echo; cat"]
    try:
        process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        pytest.skip("apt install faketime")
    with process:
        assert process.stdout is not None
        lines = takewhile(str.strip, process.stdout)
        settings = [line.strip() for line in lines if line.startswith(_NAMES)]
        modules = os.pathsep.join(map(str, (directory, ROOT, SPARK_HOME.parent)))
        # Otherwise the threads of a JVM that wait with a limit never sleep.
        settings += ["FAKETIME_FORCE_MONOTONIC_FIX=0", f"PYTHONPATH={modules}"]
        yield ("env", *settings)

"""Recorded results of pyspark.streaming, so that comparing with it does not mean running it.

``recording.json`` maps the text of each program to what the real pyspark.streaming made of it. A
deep test runs every fourth group of them again and compares, a slow one runs all. To record all
again, without those that no test runs any more::

    RECORD_PYSPARK=1 python -m pytest -n 0 -m "not slow" tests/conformance
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyspark

from tests.conformance.oracle import Oracle
from tests.conformance.programs import Program, is_ordered
from tests.conformance.runs import Failed, Run, text_of

FILE = Path(__file__).parent / "recording.json"
RECORD = "RECORD_PYSPARK"
_NAMES = {"Failed": Failed, "nan": math.nan, "inf": math.inf}
"""What the texts of records may name, in addition to Python's own types."""


class ProgramRunner(Protocol):
    """Runs programs on pyspark.streaming, or knows what it made of them."""

    def ask(self, programs: Sequence[Program]) -> None:
        """Begin to run programs in one StreamingContext."""

    def answer(self) -> list[Run]:
        """Wait for the runs of the programs asked for first."""


@dataclass(frozen=True)
class RecordedProgram(Program):
    """A program of the recording, as the text that runs."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


class Recording:
    """The recorded runs; with :data:`RECORD` set, records them with a live pyspark.streaming."""

    def __init__(self, start_oracle: Callable[[], Oracle]) -> None:
        content = json.loads(FILE.read_text()) if FILE.exists() else {"programs": {}}
        self.versions: dict[str, str] = content.get("versions", {})
        self._recorded: dict[str, Any] = content["programs"]
        self._used: dict[str, Any] = {}
        self._start_oracle = start_oracle
        self._answers: list[list[Run]] = []

    def ask(self, programs: Sequence[Program]) -> None:
        """Look up the runs of programs."""
        if RECORD in os.environ:
            self._record(programs)  # all of them, so that the versions hold for each
        elif missing := [p for p in programs if not self._has(p)]:
            texts = "\n\n".join(map(str, missing))
            command = f'{RECORD}=1 python -m pytest -n 0 -m "not slow" tests/conformance'
            raise AssertionError(f"not recorded; run {command}:\n{texts}")
        self._used |= {str(p): self._recorded[str(p)] for p in programs}
        self._answers.append([_run(self._recorded[str(p)]) for p in programs])

    def answer(self) -> list[Run]:
        """Return the runs of the programs asked for first."""
        return self._answers.pop(0)

    def groups(self, size: int) -> list[list[Program]]:
        """Return all programs in groups that can share a StreamingContext."""
        groups: list[list[Program]] = []
        for text, recorded in sorted(self._recorded.items(), key=lambda item: item[1]["batches"]):
            program = RecordedProgram(text, None, recorded["batches"], text=text)  # type: ignore[arg-type]
            last = groups[-1] if groups else []
            alone = _run(recorded).failed
            if alone or not last or len(last) == size or last[0].batches != program.batches:
                groups.append(last := [])
            last.append(program)
            if alone:
                groups.append([])
        return [group for group in groups if group]

    def differences(self, program: Program, run: Run) -> list[str]:
        """Return what pyspark.streaming made now and when it was recorded, if that differs."""
        recorded = self._recorded[str(program)]
        now = _texts(run, recorded["ordered"])
        then = {name: recorded[name] for name in now}
        return [] if now == then else [f"{program}\nnow: {now}\nrecorded: {then}"]

    def save(self) -> None:
        """Write what the tests used, with the versions that it was recorded with."""
        versions = {"pyspark": pyspark.__version__, "python": platform.python_version()}
        content = {"versions": versions, "programs": dict(sorted(self._used.items()))}
        FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def _has(self, program: Program) -> bool:
        found = self._recorded.get(str(program))
        return found is not None and found["batches"] == program.batches

    def _record(self, programs: Sequence[Program]) -> None:
        oracle = self._start_oracle()
        oracle.ask(programs)
        for program, run in zip(programs, oracle.answer(), strict=True):
            ordered = is_ordered(program.output)
            self._recorded[str(program)] = {
                "batches": program.batches,
                "ordered": ordered,
                **_texts(run, ordered),
            }


def _run(recorded: Any) -> Run:
    return Run(
        [_value(text) for text in recorded["outputs"]],
        [[_value(text) for text in rdds] for rdds in recorded["slices"]],
    )


def _texts(run: Run, ordered: bool) -> dict[str, Any]:
    return {
        "outputs": [text_of(batch, ordered) for batch in run.batches],
        "slices": [[text_of(rdd, ordered) for rdd in rdds] for rdds in run.slices],
    }


def _value(text: str) -> Any:
    return eval(text, dict(_NAMES))  # noqa: S307 - a file of this repository

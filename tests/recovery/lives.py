"""Lives of the application: a process each, which ends by itself or is killed at a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import RecoveryPlan, open_files, open_stream, read_plan, stream_ids
from tests.recovery import application as app

ROOT = Path(__file__).parents[2]
_LIFE_S = 300

Rows = list[list[Any]]


@dataclass(frozen=True)
class Entry:
    """A line of the ledger: what an output saw."""

    output: str
    batch_id: int
    rows: Rows


def live(directory: Path, batches: int, *, version: int = 1, kill_at: str = "") -> None:
    """Run the application; it must do all batches, or be killed at the step that is named."""
    run_program("application", directory, str(version), str(batches), kill_at=kill_at)


def run_program(name: str, directory: Path, *arguments: str, kill_at: str = "") -> None:
    """Run a program of this package; it must end well, or be killed at the step that is named."""
    ended = subprocess.run(
        command_of(name, directory, *arguments),
        cwd=ROOT,
        env=environment_of(f"{kill_at}:kill9" if kill_at else ""),
        timeout=_LIFE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = -signal.SIGKILL if kill_at else 0
    assert ended.returncode == wanted, f"{kill_at}: {ended.stdout[-2000:]}{ended.stderr[-6000:]}"


def command_of(name: str, directory: Path, *arguments: str) -> list[str]:
    """The command that runs a program of this package."""
    return [sys.executable, "-m", f"tests.recovery.{name}", str(directory), *arguments]


def environment_of(faults: str) -> dict[str, str]:
    """The environment of a program in which *faults* happen."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    environment.pop("DSTREAMS_FAULTS", None)
    return {**environment, "DSTREAMS_FAULTS": faults} if faults else environment


def plan_of(directory: Path) -> RecoveryPlan:
    """What the next life begins with."""
    checkpoint = f"{directory}/checkpoint"
    newest = stream_ids(open_files(checkpoint))[0]
    return read_plan(open_stream(checkpoint, newest))


def last_id(directory: Path) -> int:
    """Number of the last committed batch, -1 for none."""
    last = plan_of(directory).last
    return -1 if last is None else last.batch_id


def last_begun_id(directory: Path) -> int:
    """Number of the last batch that has a begin record, -1 for none."""
    return max([last_id(directory), *(begun.batch_id for begun in plan_of(directory).in_flight)])


def entries(directory: Path) -> list[Entry]:
    lines = (directory / "ledger").read_text(encoding="utf-8").splitlines()
    found = map(json.loads, lines)
    return [Entry(line["output"], line["batch"], line["rows"]) for line in found]


def values(batch_id: int) -> range:
    """The values of the rows of a batch."""
    return range(batch_id * app.ROWS, (batch_id + 1) * app.ROWS)


def sums(batches: Iterable[int]) -> Rows:
    """(key, sum) over batches; keys that never came are left out."""
    by_key: defaultdict[int, int] = defaultdict(int)
    for batch_id in batches:
        for value in values(batch_id):
            by_key[value % app.KEYS] += value
    return [[key, by_key[key]] for key in sorted(by_key)]


def kept(batch_id: int) -> Rows:
    """What the processor has of each key: numbers and sum of values, numbers by remainder by 3."""
    rows: Rows = []
    for key in range(app.KEYS):
        all_values = range(key, (batch_id + 1) * app.ROWS, app.KEYS)
        by_remainder = [sum(value % 3 == n for value in all_values) for n in range(3)]
        rows.append([key, len(all_values), len(all_values), sum(all_values), *by_remainder])
    return rows


def expected(output: str, batch_id: int) -> Rows:
    """What an output of version 1 must see, from the input alone."""
    if output == "sums":
        return sums(range(batch_id + 1))
    if output == "window":
        return sums(range(max(0, batch_id - app.WINDOW + 1), batch_id + 1))
    if output == "kept":
        return kept(batch_id)
    each = app.ROWS // app.KEYS
    numbers = range(each * batch_id + 1, each * (batch_id + 1) + 1)
    return [[key, number] for key in range(app.KEYS) for number in numbers]

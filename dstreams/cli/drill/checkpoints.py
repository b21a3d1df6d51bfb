"""What drivers have told, and what their checkpoint holds, looked at without them.

The checkpoint is read by ``dstreams checkpoint`` in a process of its own, as a person would.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHECKPOINT = "checkpoint"
"""Name of the checkpoint directory in that of a drill."""

_COMPLETED = "completed"
_LIMIT_S = 300


def write_completed(directory: Path, times: Iterable[int]) -> None:
    """Keep the times of the batches that drivers told of as completed."""
    (directory / _COMPLETED).write_text("".join(f"{time_ms}\n" for time_ms in sorted(times)))


def completed_in(directory: str) -> list[int]:
    """Return what was kept; nothing where nothing was."""
    path = Path(directory, _COMPLETED)
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def problems_of(directory: Path) -> list[str]:
    """Verify a checkpoint, every checksum and every promise."""
    if not (directory / CHECKPOINT).exists():
        return []
    done = _checkpoint("verify", str(directory / CHECKPOINT))
    if done.returncode == 0:
        return []
    said = " ".join((done.stdout + done.stderr).split())
    return [f"the checkpoint at the end does not verify: {said[:1000]}"]


def states_in(directory: str, uid: str) -> list[tuple[Any, Any]]:
    """Return key and state of every key of an operator, as the last commit has them.

    Returns:
        What cannot be read has no states. Of mapWithState each state comes with a time.
    """
    done = _checkpoint("read", f"{directory}/{CHECKPOINT}", "--operator", uid, "--json")
    if done.returncode != 0:
        return []
    return [_pair(line) for line in done.stdout.splitlines()]


def _pair(line: str) -> tuple[Any, Any]:
    row = json.loads(line)
    state = row["value"]
    return row["key"], tuple(state) if isinstance(state, list) else state


def _checkpoint(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own module, without a shell
        [sys.executable, "-m", "checkpoint", *words],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )

"""What mypy says of the expressions of a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_MODULES = (
    "dstreams.dstream.dstream.",
    "dstreams.structured.api.dataset.",
    "dstreams.structured.named_rows.",
    "builtins.",
    "typing.",
    "pyspark.core.rdd.",
    "pyspark.rdd.",
)


def checked(
    head: str, revealed: Sequence[str], refused: Sequence[str], directory: Path
) -> dict[int, str]:
    """Return what mypy says of each expression, by its number: first the revealed ones.

    Args:
        head: the program, up to the inside of a function.
        revealed: expressions whose types are asked for.
        refused: statements.
        directory: where the program is written.
    """
    pytest.importorskip("mypy", reason="comes with the extra 'dev'")
    statements = [f"    reveal_type({line})" for line in revealed] + [f"    {x}" for x in refused]
    path = directory / "program.py"
    path.write_text(head + "\n".join(statements) + "\n")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    first = head.count("\n") + 1
    messages: dict[int, str] = {}
    for line in run.stdout.splitlines():
        where, _, message = line.partition(": ")
        number = int(where.rpartition(":")[2]) - first
        messages[number] = f"{messages.get(number, '')}{message}\n"
    return messages


def revealed_type(message: str) -> str:
    """Return the type that a message reveals, without the names of modules."""
    revealed = message.partition('Revealed type is "')[2].rpartition('"')[0]
    for module in _MODULES:
        revealed = revealed.replace(module, "")
    return revealed.replace("*", "")

"""Checks programs: reads each of them, and says what they use and what to do."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dstreams.compat.check.answers import Kind
from dstreams.compat.check.files import programs_of
from dstreams.compat.check.findings import Finding
from dstreams.compat.check.program import Program, UnreadableError, read_program
from dstreams.compat.check.reader import findings_of
from dstreams.compat.check.table import PACKAGE

_FRAMES = 5000
"""Calls within each other: enough for expressions of 1,000 terms, and for a stack of 8 MiB."""

NOTHING_TO_DO, TO_DO, CANNOT_READ = 0, 1, 2


@dataclass(frozen=True)
class Checked:
    """What is known of some programs.

    Args:
        findings: what they use, by file and line.
        unreadable: files that could not be read, and why.
        files: how many were read.
        main: programs that begin a stream, which is what is run.
        importing: programs that import pyspark.streaming.
        by_hand: lines of imports in which its name cannot simply be replaced, and what to write.
    """

    findings: tuple[Finding, ...]
    unreadable: tuple[tuple[Path, str], ...]
    files: int
    main: tuple[Path, ...]
    importing: tuple[Path, ...]
    by_hand: tuple[tuple[Path, int, str], ...]

    @property
    def status(self) -> int:
        """The exit status."""
        if self.unreadable:
            return CANNOT_READ
        kinds = {one.answer.kind for one in self.findings}
        return TO_DO if kinds & {Kind.CHANGE, Kind.SET} else NOTHING_TO_DO

    def extras(self) -> tuple[str, ...]:
        """Return the extras of dstreams that the programs need."""
        used = {one.name.partition(".")[0] for one in self.findings}
        needed = {"kafka": "KafkaUtils", "kinesis": "KinesisUtils"}
        return tuple(extra for extra, name in needed.items() if name in used)


def check(paths: Sequence[Path]) -> Checked:
    """Read programs, and run nothing of them."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    try:
        return _checked(paths)
    finally:
        sys.setrecursionlimit(limit)


def _checked(paths: Sequence[Path]) -> Checked:
    findings: list[Finding] = []
    unreadable: list[tuple[Path, str]] = []
    main: list[Path] = []
    importing: list[Path] = []
    by_hand: list[tuple[Path, int, str]] = []
    files = 0
    for path in paths:
        if path.is_dir() and not any(programs_of([path])):
            unreadable.append((path, "there is no file *.py below it"))
    for path in programs_of(paths):
        try:
            program = read_program(path)
            found = findings_of(program)
        except UnreadableError as error:
            unreadable.append((path, str(error)))
            continue
        except RecursionError:
            unreadable.append((path, "an expression in it has too many terms; split it"))
            continue
        files += 1
        findings += found
        if any(one.name == "StreamingContext.start" for one in found):
            main.append(path)
        if any(PACKAGE in name for name in _imported(program.tree)):
            importing.append(path)
        by_hand += [(path, line, text) for line, text in _not_replaced(program)]
    return Checked(
        tuple(findings), tuple(unreadable), files, tuple(main), tuple(importing), tuple(by_hand)
    )


def _imported(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _not_replaced(program: Program) -> list[tuple[int, str]]:
    """Return lines of imports that stay wrong after the name was replaced, with what to write."""
    found = []
    imports = [node for node in ast.walk(program.tree) if isinstance(node, ast.Import)]
    aliases = [(node, alias) for node in imports for alias in node.names]
    has_pyspark = any(
        alias.name.startswith("pyspark") and not alias.name.startswith(PACKAGE) and not alias.asname
        for _, alias in aliases
    )
    uses_pyspark = any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "pyspark"
        and node.attr != "streaming"
        for node in ast.walk(program.tree)
    )
    for node, alias in aliases:
        is_of_package = alias.name.startswith(PACKAGE) and not alias.asname
        if is_of_package and uses_pyspark and not has_pyspark:
            found.append((node.lineno, "add 'import pyspark', which this import did as well"))
            break
    for one in ast.walk(program.tree):
        if isinstance(one, ast.ImportFrom) and one.module == "pyspark" and not one.level:
            for alias in one.names:
                if alias.name == "streaming":
                    name = alias.asname or alias.name
                    found.append((one.lineno, f"write 'import dstreams as {name}'"))
    return found

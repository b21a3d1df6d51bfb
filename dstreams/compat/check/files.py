"""Which files are programs: those that are named, and those of Python below directories."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_NOT_OF_PROGRAMS = frozenset(["__pycache__", "node_modules", "site-packages"])


def programs_of(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield each file once: a directory stands for all files ``*.py`` below it, in their order.

    Directories with a dot in front, and environments of Python, are left out.
    """
    seen = set()
    for path in paths:
        for one in _below(path) if path.is_dir() else [path]:
            if one not in seen:
                seen.add(one)
                yield one


def _below(directory: Path) -> Iterator[Path]:
    for root, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if _is_searched(Path(root, name)))
        yield from (Path(root, name) for name in sorted(files) if _is_program(Path(root, name)))


def _is_program(file: Path) -> bool:
    return file.suffix == ".py" and file.is_file()  # reading a pipe would not end


def _is_searched(directory: Path) -> bool:
    name = directory.name
    is_hidden = name.startswith(".") or name in _NOT_OF_PROGRAMS
    return not is_hidden and not (directory / "pyvenv.cfg").exists()

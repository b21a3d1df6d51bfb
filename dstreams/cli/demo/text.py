"""The text: sources of the running Python's standard library, and what a word of it is."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dstreams.errors import EnvironmentNotReadyError

WORD = re.compile(r"[a-z_]\w*")

END_WORD = "_here_ends_the_text_of_the_dstreams_demo_"
"""Last word of what is sent: a state that has it has every word before it."""

_TESTS = {"idle_test", "test", "tests"}


def words_of(line: str) -> list[str]:
    """Return the words of a line: identifiers, keywords and what looks alike, in lower case."""
    return WORD.findall(line.lower())


def count_words(data: bytes) -> Counter[str]:
    """Count the words of a UTF-8 text in one go, with nothing of Spark or of a stream."""
    return Counter(match.group() for match in WORD.finditer(data.decode().lower()))


def library_text(limit_bytes: int, library: Path | None = None) -> bytes:
    """Return sources of the standard library as UTF-8, whole lines, the same at each call.

    Raises:
        EnvironmentNotReadyError: there are no sources, or they cannot be read.
    """
    root = library or Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    try:
        for path in library_files(root):
            text += path.read_bytes().decode("utf-8", "replace").encode()
            if not text.endswith(b"\n"):
                text += b"\n"
            if len(text) >= limit_bytes:
                break
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"the sources of the standard library, which the demo sends, cannot be read: {error}"
        ) from error
    whole_lines = text.rfind(b"\n", 0, limit_bytes) + 1
    if not whole_lines:
        raise EnvironmentNotReadyError(
            f"the demo sends the sources of the standard library, but {root} has none; "
            "use a Python that was installed with its .py files"
        )
    return bytes(text[:whole_lines])


def library_files(root: Path) -> Iterator[Path]:
    """Yield the .py files of the library's modules and packages, sorted, without its tests."""
    for name in sorted(sys.stdlib_module_names - _TESTS):
        module = root / f"{name}.py"
        if module.is_file():
            yield module
        for path in sorted((root / name).rglob("*.py")):
            if not _TESTS.intersection(path.relative_to(root).parts):
                yield path

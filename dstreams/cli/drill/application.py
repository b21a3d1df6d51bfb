"""A drilled application: a Python file with four functions, or a job of the drill."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstreams import InvalidStreamError, StreamingContext
from dstreams.cli.drill.results import OutputFindings
from dstreams.common.callables import require_arity
from dstreams.common.imports import shadow_in
from dstreams.structured import StreamSession

INTERVAL = "DSTREAMS_DRILL_INTERVAL"
"""Environment variable: batch interval of the drill's job in seconds; longer on slow machines."""

KAFKA = "DSTREAMS_DRILL_KAFKA"
"""Environment variable: brokers; if it is set, the job of the drill reads and writes topics."""

_OWN, _OWN_QUERY, _OWN_KAFKA = (
    f"dstreams.cli.drill.{name}job" for name in ("", "query_", "kafka_")
)


@dataclass(frozen=True)
class Application:
    """The functions of a drilled application. Each gets the directory of the drill first.

    An application is a stream, with ``setup``, or a structured query, with ``start``.

    Args:
        feed: ``f(directory, number)`` adds input; called repeatedly, with 0, 1, 2, ...
        is_done: ``f(directory) -> bool``: whether all input has been processed.
        check: ``f(directory)`` checks the outputs, and returns a list of problems as texts or
            :class:`~dstreams.cli.drill.results.OutputFindings`.
        setup: ``f(directory) -> StreamingContext``, called in the first driver; its checkpoint
            directory must be ``directory/checkpoint``.
        start: ``f(directory) -> StreamSession``, called in each driver: starts one query, whose
            checkpoint location must be ``directory/checkpoint``.
    """

    feed: Callable[[str, int], Any]
    is_done: Callable[[str], bool]
    check: Callable[[str], OutputFindings | Iterable[str]]
    setup: Callable[[str], StreamingContext] | None = None
    start: Callable[[str], StreamSession] | None = None

    def findings(self, directory: str) -> OutputFindings:
        """Check the outputs.

        Raises:
            InvalidStreamError: the application's check returned something else.
        """
        found = self.check(directory)
        if isinstance(found, OutputFindings):
            return found
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise InvalidStreamError(
                f"check(directory) must return a list of problems as texts, got {found!r}"
            )
        return OutputFindings(problems=tuple(map(str, found)))


def load(file: Path | None, *, query: bool = False) -> Application:
    """Load an application.

    Args:
        file: a Python file with the functions ``setup`` or ``start``, ``feed``, ``is_done`` and
            ``check``. None: a job of the drill.
        query: whether that is the structured query.

    Raises:
        InvalidStreamError: the file cannot be imported, lacks a function, one takes other
            arguments, or a file in its directory hides a package of dstreams.
    """
    own = _OWN_QUERY if query else _OWN_KAFKA if KAFKA in os.environ else _OWN
    module = importlib.import_module(own) if file is None else _module_of(file)
    runs = "start" if hasattr(module, "start") and not hasattr(module, "setup") else "setup"
    functions = {}
    for name, count, shape in (
        (runs, 1, f"{runs}(directory)"),
        ("feed", 2, "feed(directory, number)"),
        ("is_done", 1, "is_done(directory)"),
        ("check", 1, "check(directory)"),
    ):
        function = getattr(module, name, None)
        if function is None:
            raise InvalidStreamError(
                f"{file} cannot be drilled: no function {shape}; see dstreams drill --help"
            )
        require_arity(function, (count,), f"a drill of {file or own}", shape)
        functions[name] = function
    return Application(**functions)


def _module_of(file: Path) -> Any:
    directory = str(file.resolve().parent)
    problem = shadow_in(directory)
    if problem is not None:
        raise InvalidStreamError(problem)
    # Under its own name, so that its functions can be unpickled.
    sys.path.insert(0, directory)
    try:
        return importlib.import_module(file.stem)
    except Exception as error:
        raise InvalidStreamError(f"{file} cannot be drilled: {raised(error)}") from error


def raised(error: Exception) -> str:
    """Describe an error and where it was raised."""
    if isinstance(error, SyntaxError):  # names the place itself
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    # Not in the import system, which raises if a module is missing.
    *_, last = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    return f"{type(error).__name__}: {error}, at {last.filename}:{last.lineno}"

"""An application that is drilled: a Python file with four functions, or one of the drill's own."""

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
from dstreams.common.shadowing import shadow_in
from dstreams.structured import StreamSession

INTERVAL = "DSTREAMS_DRILL_INTERVAL"
"""Environment variable: seconds between two batches of the drill's own job. A driver that is down
longer has more to catch up, so a slow machine needs a longer one."""

KAFKA = "DSTREAMS_DRILL_KAFKA"
"""Environment variable: brokers. Where it is set, the drill's own job reads and writes topics."""

_OWN, _OWN_QUERY, _OWN_KAFKA = (
    f"dstreams.cli.drill.{name}job" for name in ("", "query_", "kafka_")
)


@dataclass(frozen=True)
class Application:
    """The functions of a drilled application. Each gets the directory of the drill first.

    An application is a stream, with ``setup``, or a structured query, with ``start``.

    Args:
        feed: ``f(directory, number)`` gives more input; called again and again, with 0, 1, 2, ...
        is_done: ``f(directory) -> bool``, whether all input has been through.
        check: ``f(directory)`` compares the outputs with what they must be, and returns problems as
            texts, none when all is well; or :class:`~dstreams.cli.drill.results.OutputFindings`.
        setup: ``f(directory) -> StreamingContext``, in the driver, the first time only; its
            checkpoint directory must be ``directory/checkpoint``.
        start: ``f(directory) -> StreamSession``, in the driver, each time: starts one query, whose
            checkpoint location must be ``directory/checkpoint``.
    """

    feed: Callable[[str, int], Any]
    is_done: Callable[[str], bool]
    check: Callable[[str], OutputFindings | Iterable[str]]
    setup: Callable[[str], StreamingContext] | None = None
    start: Callable[[str], StreamSession] | None = None

    def findings(self, directory: str) -> OutputFindings:
        """Return what the application's check says.

        Raises:
            InvalidStreamError: it says something else than texts.
        """
        found = self.check(directory)
        if isinstance(found, OutputFindings):
            return found
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise InvalidStreamError(
                f"check(directory) must return a list of texts, empty when all is well; it "
                f"returned {found!r}"
            )
        return OutputFindings(problems=tuple(map(str, found)))


def load(file: Path | None, *, query: bool = False) -> Application:
    """Load an application.

    Args:
        file: a Python file with the functions ``setup`` or ``start``, ``feed``, ``is_done`` and
            ``check``. None: a job of the drill's own.
        query: of these the structured query, not the stream.

    Raises:
        InvalidStreamError: the file cannot be imported, has not all of them, they take other
            arguments, or a file beside it has the name of a package of dstreams.
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
                f"{file} cannot be drilled: it has no function {shape}; "
                "see the help of dstreams drill"
            )
        require_arity(function, (count,), f"a drill of {file or own}", shape)
        functions[name] = function
    return Application(**functions)


def _module_of(file: Path) -> Any:
    directory = str(file.resolve().parent)
    problem = shadow_in(directory)
    if problem is not None:
        raise InvalidStreamError(problem)
    # By its own name, so that functions of it can be found again where they are unpickled.
    sys.path.insert(0, directory)
    try:
        return importlib.import_module(file.stem)
    except Exception as error:
        raise InvalidStreamError(f"{file} cannot be drilled: {raised(error)}") from error


def raised(error: Exception) -> str:
    """Say what was raised, and where."""
    if isinstance(error, SyntaxError):  # it says where by itself
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    # Not in the import system itself, where a module is missed.
    *_, last = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    return f"{type(error).__name__}: {error}, at {last.filename}:{last.lineno}"

"""Short messages for errors of Spark jobs and of users' functions.

:func:`summarize` returns one line, :func:`located` adds the user's line of code, and
:func:`code_of` returns the user's lines that led to the error. :func:`make_brief` keeps the full
text, with the frames of the JVM and of dstreams, in the attribute ``java`` of the error. Secrets
are masked in all of them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from linecache import getline
from pathlib import Path
from textwrap import dedent
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

from checkpoint import CheckpointError
from dstreams.common.callables import code_object, describe, place_of
from dstreams.common.redaction import masked
from dstreams.errors import OutputConflictError, StreamError
from dstreams.spark.blocks import shorten

logger = logging.getLogger(__name__)

_TRACEBACK = "Traceback (most recent call last):"
_CRASHED = "Python worker exited unexpectedly"
_NOT_STARTED = re.compile(
    r"^Error from python worker:\n(.*?)^PYTHONPATH was:$", re.DOTALL | re.MULTILINE
)
_FILE_NOT_FOUND = re.compile(r"^Caused by: (java\.io\.FileNotFoundException: .*)$", re.MULTILINE)
_STOPPING = ("checkpoint.", f"{OutputConflictError.__module__}.{OutputConflictError.__name__}")
_NO_WORDS = re.compile(
    r"\s*$|During handling of the above exception, another exception occurred:$"
    r"|The above exception was the direct cause of the following exception:$"
    r"| SQLSTATE: \w{5}$"
)
_ABORTED = re.compile(
    r"^(?:: )?(?:org\.apache\.spark\.SparkException: Job aborted due to stage failure: "
    r"Task \S+ in stage \S+ failed (\d+) times?, most recent failure: "
    r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): )?"
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)\n(?:    (.*)\n)?', re.MULTILINE)
_MACHINERY = re.compile(r"[/\\](pyspark|py4j|pyspark\.zip|py4j-[^/\\]+\.zip)[/\\]|^<frozen ")
_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages)[/\\]")
_STANDARD = re.compile(
    r"[/\\]python3\.\d+[/\\](?!site-packages|dist-packages)"
    r"|\.p(?:xi|yx)$"  # compiled libraries such as pyarrow
)
_PACKAGES = tuple(
    (name, Path(str(sys.modules[name].__file__)).parent) for name in ("dstreams", "checkpoint")
)
_MOST_FRAMES = 4


@dataclass(frozen=True)
class _Frame:
    """A frame of a traceback."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        # Only the driver has the text of a notebook cell.
        text = masked(self.text or getline(self.file, self.line).strip())
        code = f"\n    {text}" if text else ""
        name = place_of(self.file)
        place = f"Cell {name}" if name.startswith("In[") else f'File "{self.file}"'
        return f"  {place}, line {self.line}, in {self.function}{code}"


def summarize(error: BaseException) -> str:
    """Return the class and message of *error*, or of a worker's exception if a job failed."""
    if not _is_of_a_job(error):
        text = _words(error)
        if isinstance(error, UserFunctionError):
            return text
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _raised_in_job(error).removeprefix(_OWN_KIND)


def _words(error: BaseException) -> str:
    """Return the message of an error, empty if its own ``__str__`` fails."""
    try:
        return masked(str(error))
    except Exception:
        return ""


def class_of(error: BaseException) -> str:
    """Return the class name of *error*, or of a worker's exception if a job failed.

    For a UserFunctionError of a worker, it is the class of its cause.
    """
    if not _is_of_a_job(error):
        return type(error).__name__
    raised = _raised_in_job(error)
    if raised.startswith(_OWN_KIND):
        inner, _, _ = _text_of_job(error).rpartition(f"\n{_TRACEBACK}")
        raised = _worker_exception(inner) or raised
    return raised.partition(":")[0]


def _raised_in_job(error: BaseException) -> str:
    text = _text_of_job(error)
    said = (
        _no_start(text)
        or _worker_exception(text)
        or _missing_file(text)
        or _crash(text)
        or _first_line(text)
    )
    return masked(said)


def located(error: BaseException) -> str:
    """Return the summary of *error*, with the line of the user's program that raised it."""
    said, frames = summarize(error), _frames(error)
    if not frames:
        return said
    last = frames[-1]
    place = f"{place_of(last.file)}:{last.line}"
    # The name of a lambda contains its line.
    return (
        said
        if re.search(rf"{re.escape(place)}\b", said)
        else f"{said} ({place} in {last.function})"
    )


def code_of(error: BaseException) -> str:
    """Return the lines of the user's program that led to *error*, formatted as a traceback."""
    return "\n".join(map(str, _frames(error)[-_MOST_FRAMES:]))


def with_code(error: BaseException) -> str:
    """Return the message of *error*, and the user's lines that led to its cause."""
    code = code_of(error.__cause__ or error)
    return f"{error}\n{code}" if code else str(error)


def make_brief(error: BaseException) -> None:
    """Shorten the message of *error* to the exception and the user's own lines.

    It can be caught by the same classes as before. The full text of a failed job, with the frames
    of the JVM, is kept in the attribute ``java``. Frames of Spark and dstreams are removed from the
    traceback, unless it has no others. The full error is logged at level DEBUG.
    """
    logger.debug("full error", exc_info=error)
    frames = walk_tb(error.__traceback__)
    own = [(frame, line) for frame, line in frames if _is_own(frame.f_code.co_filename)]
    if _is_of_a_job(error):
        error.__dict__["java"] = _text_of_job(error)
        error.__class__ = _brief_class(type(error))
        error.__traceback__ = _traceback(own)
    elif any(_is_users(frame.f_code.co_filename) for frame, _ in own):
        error.__traceback__ = _traceback(own)


def _brief_class(kind: type[BaseException]) -> type[BaseException]:
    """Return a subclass of *kind* with a short message, and the same name and module."""
    if "java" in vars(kind):
        return kind
    if kind not in _brief_classes:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _brief_classes[kind] = type(
            kind.__name__, (kind,), {**names, "__str__": _brief, "java": ""}
        )
    return _brief_classes[kind]


_brief_classes: dict[type[BaseException], type[BaseException]] = {}


def _brief(error: BaseException) -> str:
    code = code_of(error)
    return f"{_raised_in_job(error)}\n{code}" if code else _raised_in_job(error)


def _traceback(frames: list[tuple[Any, int]]) -> TracebackType | None:
    made = None
    for frame, line in reversed(frames):
        made = TracebackType(made, frame, frame.f_lasti, line)
    return made


def stops_stream(error: BaseException) -> bool:
    """Return whether no further batch may run after *error*.

    This is so for failures of the checkpoint's storage, and for outputs of another history of the
    checkpoint: the batch stays uncommitted and runs again later. An OSError is not sufficient,
    because users' functions raise it too.
    """
    if isinstance(error, (CheckpointError, OutputConflictError)):
        return True
    return _is_of_a_job(error) and _raised_in_job(error).startswith(_STOPPING)


def _is_of_a_job(error: BaseException) -> bool:
    """Return whether a Spark job failed: an error of Py4J, or of PySpark if there is a session."""
    if hasattr(error, "java_exception") or "java" in getattr(error, "__dict__", ()):
        return True
    return type(error).__module__.startswith("pyspark.errors") and _TRACEBACK in str(error)


def _text_of_job(error: BaseException) -> str:
    """Return the full text of the error of a job, without calling the JVM twice."""
    known = error.__dict__.get("java")
    return str(error) if known is None else str(known)


def _frames(error: BaseException) -> list[_Frame]:
    """Return the user's frames in the driver, then those in a worker."""
    if isinstance(error, UserFunctionError):
        return [] if error.__cause__ is None else _frames(error.__cause__)
    here = [
        _Frame(code.co_filename, line, code.co_name, getline(code.co_filename, line).strip())
        for code, line in ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    ]
    return _own(here) + (_worker_frames(_text_of_job(error)) if _is_of_a_job(error) else [])


def _worker_frames(text: str) -> list[_Frame]:
    """Return the user's frames in a worker, of the newest exception that has any."""
    tracebacks = text.split("\n\tat ", 1)[0].split(_TRACEBACK)[1:]
    if len(tracebacks) > 1 and f"\n{_OWN_KIND}" in tracebacks[-1]:
        tracebacks.pop()  # the cause of a UserFunctionError has the user's frames
    for traceback in reversed(tracebacks):
        found = [
            _Frame(file, int(line), function, text.strip())
            for file, line, function, text in _FRAME.findall(f"{traceback}\n")
        ]
        if own := _own(found):
            return own
    return []


def _own(frames: list[_Frame]) -> list[_Frame]:
    """Return the frames of the user's program, else those of installed packages."""
    others = [frame for frame in frames if _is_users(frame.file)]
    return [frame for frame in others if not _INSTALLED.search(frame.file)] or others


@cache
def _is_own(file: str) -> bool:
    """Return whether a file, here or on a worker, does not belong to Spark or dstreams."""
    if _MACHINERY.search(file):
        return False
    for name, home in _PACKAGES:
        _, found, rest = file.rpartition(f"/{name}/")
        if found and (home / rest).exists():
            return False
    return True


def is_in_program(frames: Iterable[FrameType]) -> bool:
    """Return whether the user's program is running, and not a call from it to Spark or dstreams.

    *frames* start with the innermost one.
    """
    for frame in frames:
        file = frame.f_code.co_filename
        if not _is_own(file) or _is_users(file):
            return _is_own(file)
    return False


def _is_users(file: str) -> bool:
    """Return whether a file belongs to the user's program or to a third-party library."""
    return _is_own(file) and not _STANDARD.search(file)


def _worker_exception(text: str) -> str | None:
    """Return the exception that ends the last traceback before the Java frames."""
    start = text.find(_TRACEBACK)
    if start < 0:
        return None
    message: list[str] = []
    in_frames = False
    for line in text[start:].split("\n\tat ", 1)[0].splitlines():
        if line == _TRACEBACK:
            in_frames = True
        elif in_frames and line[:1] not in ("", " "):
            message, in_frames = [line], False
        elif not in_frames and not _NO_WORDS.match(line):
            message.append(line.strip())
    return " ".join(message) or None


def _no_start(text: str) -> str | None:
    """Return the output of a worker that could not be started, which Spark indents."""
    written = _NOT_STARTED.search(text)
    if written is None:
        return None
    words = dedent(written[1])
    return f"a Python worker could not be started: {_worker_exception(words) or words.strip()}"


def _missing_file(text: str) -> str | None:
    """Return the JVM's message for a missing file.

    Spark reports a crashed worker if Python was waiting for the records of that file.
    """
    found = _FILE_NOT_FOUND.findall(text)
    return found[-1].strip() if found and _CRASHED in text else None


def _crash(text: str) -> str | None:
    """Return the message for workers that ended without an exception."""
    if _CRASHED not in text:
        return None
    attempts = _ABORTED.match(_first_words(text))
    times = f" in all {attempts[1]} attempts" if attempts and attempts[1] else ""
    return (
        f"a Python worker ended without an exception{times}: it crashed, or the system killed it, "
        "for example because memory is short; spark.python.worker.faulthandler.enabled=true shows "
        "where C code crashes"
    )


def _first_line(text: str) -> str:
    return _ABORTED.sub("", _first_words(text)) or "unknown failure"


def _first_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[min(1, len(lines) - 1)] if lines else ""


class UserFunctionError(RuntimeError):
    """A user's function failed or returned an invalid value; the message names the key."""


def failed(where: str, subject: Any, error: BaseException, kind: str = "key") -> UserFunctionError:
    """Return the UserFunctionError for an *error* of a user's function called with *subject*."""
    if isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{where} failed for {kind} {shorten(subject)}: {summarize(error)}")


def mapped(func: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """Return the results of a user's function for *values*.

    Raises:
        RuntimeError: the function raised StopIteration, which ends ``map``.
        Exception: the function raised it; calling it per value shows which value caused it.
    """
    results = list(map(func, values))
    if len(results) < len(values):
        raise RuntimeError("the function raised StopIteration")
    return results


@contextmanager
def calling(operation: str, *functions: Callable[..., Any]) -> Iterator[None]:
    """Name the operation and its function in errors of the function, on a worker.

    Errors of the input that the function reads are passed on unchanged.
    """
    try:
        yield
    except (UserFunctionError, StreamError, CheckpointError):
        raise
    except Exception as error:
        function = _to_blame(error, functions)
        if function is None:
            raise
        where = function_of(function, operation)
        raise UserFunctionError(f"{where} failed: {summarize(error)}") from error


def function_of(func: object, operation: str) -> str:
    """Return the name of a function of an operation in messages."""
    return f"function {describe(func)} of {operation}"


def _to_blame(error: Exception, functions: tuple[Callable[..., Any], ...]) -> Any:
    """Return the function that raised *error*, None if other code did.

    A function written in C has no frame: it raised the error if its caller is the last frame.
    """
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    passed = codes[codes[0].co_name == calling.__name__ :]  # starts with the user of the block
    if len(functions) == 1 and passed[1:] and all(_is_own(each.co_filename) for each in passed[1:]):
        return functions[0]  # also if it has returned an iterator that fails now
    for function in functions:
        code = code_object(function)
        if code in passed:
            inside = passed[len(passed) - passed[::-1].index(code) :]
            return function if all(_is_own(each.co_filename) for each in inside) else None
    in_c = [function for function in functions if code_object(function) is None]
    return in_c[0] if in_c and _calls_functions(passed[-1]) else None


def _calls_functions(code: CodeType) -> bool:
    """Return whether code of dstreams or PySpark calls a user's function directly."""
    return (os.path.basename(code.co_filename), code.co_name) in _CALLERS


_CALLERS: Final = {
    ("reduction.py", "_reduced"),
    ("element_tasks.py", "guarded"),
    ("shuffle.py", "mergeValues"),
    ("shuffle.py", "mergeCombiners"),
    ("util.py", "wrapper"),
}
_OWN_KIND: Final = f"{UserFunctionError.__module__}.{UserFunctionError.__name__}: "

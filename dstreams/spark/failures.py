"""What went wrong, short enough to read: in a Spark job, or in a user's function.

:func:`summarize` says it in a line, :func:`located` with the user's own line of code, and
:func:`code_of` has the lines of his that led there. The rest, which is the JVM's and ours, is there
for who asks: :func:`make_brief` leaves the whole text in the attribute ``java`` of the error. All
that is said here is without secrets, for messages, logs, listeners and pages alike.
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
    r"|\.p(?:xi|yx)$"  # of a library that is compiled, as pyarrow is
)
_PACKAGES = tuple(
    (name, Path(str(sys.modules[name].__file__)).parent) for name in ("dstreams", "checkpoint")
)
_MOST_FRAMES = 4


@dataclass(frozen=True)
class _Frame:
    """A place in a program that an error went through."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        # Of the cell of a notebook only the driver has the text.
        text = masked(self.text or getline(self.file, self.line).strip())
        code = f"\n    {text}" if text else ""
        name = place_of(self.file)
        place = f"Cell {name}" if name.startswith("In[") else f'File "{self.file}"'
        return f"  {place}, line {self.line}, in {self.function}{code}"


def summarize(error: BaseException) -> str:
    """Return what *error* says: for a failed Spark job, the exception of the Python worker."""
    if not _is_of_a_job(error):
        text = _words(error)
        if isinstance(error, UserFunctionError):
            return text
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _raised_in_job(error).removeprefix(_OWN_KIND)


def _words(error: BaseException) -> str:
    """Return what an error says of itself; nothing where it fails at that, as a user's own may."""
    try:
        return masked(str(error))
    except Exception:
        return ""


def class_of(error: BaseException) -> str:
    """Return the name of the class of *error*: for a failed Spark job, of what a worker raised.

    Where that names the user's function, it is the class of what the function raised.
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
    """Return what *error* says, and the line of the user's program that it comes from."""
    said, frames = summarize(error), _frames(error)
    if not frames:
        return said
    last = frames[-1]
    place = f"{place_of(last.file)}:{last.line}"
    # A lambda is named by its line already.
    return (
        said
        if re.search(rf"{re.escape(place)}\b", said)
        else f"{said} ({place} in {last.function})"
    )


def code_of(error: BaseException) -> str:
    """Return the lines of the user's program that led to *error*, as a traceback has them."""
    return "\n".join(map(str, _frames(error)[-_MOST_FRAMES:]))


def with_code(error: BaseException) -> str:
    """Return the message of an error of ours, and the user's lines that led to its cause."""
    code = code_of(error.__cause__ or error)
    return f"{error}\n{code}" if code else str(error)


def make_brief(error: BaseException) -> None:
    """Let *error* print itself as what matters of it: what was raised, and the user's own lines.

    Its class stays what it was for who catches it. The text of a failed job, which has the JVM's
    frames around those of the worker, is in its attribute ``java`` from then on. Its traceback has
    the frames that are neither Spark's nor ours, if there are any; the whole is logged for
    debugging.
    """
    logger.debug("the whole of a failure", exc_info=error)
    frames = walk_tb(error.__traceback__)
    own = [(frame, line) for frame, line in frames if _is_own(frame.f_code.co_filename)]
    if _is_of_a_job(error):
        error.__dict__["java"] = _text_of_job(error)
        error.__class__ = _brief_class(type(error))
        error.__traceback__ = _traceback(own)
    elif any(_is_users(frame.f_code.co_filename) for frame, _ in own):
        error.__traceback__ = _traceback(own)


def _brief_class(kind: type[BaseException]) -> type[BaseException]:
    """Return *kind* with short words; its name and module are the same for who prints it."""
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
    """Whether after *error*, or the worker exception inside it, no further batch may run.

    These are failures of the storage of checkpoints, and an output of another history of the
    checkpoint: the batch stays uncommitted and runs again later. An OSError is none of them: users'
    functions meet refused connections and missing files too.
    """
    if isinstance(error, (CheckpointError, OutputConflictError)):
        return True
    return _is_of_a_job(error) and _raised_in_job(error).startswith(_STOPPING)


def _is_of_a_job(error: BaseException) -> bool:
    """Whether it is the error of a Spark job: Py4J's, or PySpark's own once there is a session."""
    if hasattr(error, "java_exception") or "java" in getattr(error, "__dict__", ()):
        return True
    return type(error).__module__.startswith("pyspark.errors") and _TRACEBACK in str(error)


def _text_of_job(error: BaseException) -> str:
    """Return the text of the error of a job as PySpark has it: the JVM is asked for it once."""
    known = error.__dict__.get("java")
    return str(error) if known is None else str(known)


def _frames(error: BaseException) -> list[_Frame]:
    """Return the user's lines that *error* went through: the driver's, then those on a worker."""
    if isinstance(error, UserFunctionError):
        return [] if error.__cause__ is None else _frames(error.__cause__)
    here = [
        _Frame(code.co_filename, line, code.co_name, getline(code.co_filename, line).strip())
        for code, line in ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    ]
    return _own(here) + (_worker_frames(_text_of_job(error)) if _is_of_a_job(error) else [])


def _worker_frames(text: str) -> list[_Frame]:
    """Return the user's lines on the worker, of the newest exception that has any."""
    tracebacks = text.split("\n\tat ", 1)[0].split(_TRACEBACK)[1:]
    if len(tracebacks) > 1 and f"\n{_OWN_KIND}" in tracebacks[-1]:
        tracebacks.pop()  # it says which function failed; where that did is in its cause
    for traceback in reversed(tracebacks):
        found = [
            _Frame(file, int(line), function, text.strip())
            for file, line, function, text in _FRAME.findall(f"{traceback}\n")
        ]
        if own := _own(found):
            return own
    return []


def _own(frames: list[_Frame]) -> list[_Frame]:
    """Return the frames of the user's program; of one that is installed, all that are not ours."""
    others = [frame for frame in frames if _is_users(frame.file)]
    return [frame for frame in others if not _INSTALLED.search(frame.file)] or others


@cache
def _is_own(file: str) -> bool:
    """Whether a file is neither Spark's nor ours, here or on a worker."""
    if _MACHINERY.search(file):
        return False
    for name, home in _PACKAGES:
        _, found, rest = file.rpartition(f"/{name}/")
        if found and (home / rest).exists():
            return False
    return True


def is_in_program(frames: Iterable[FrameType]) -> bool:
    """Whether the user's program runs, and nothing that it calls of Spark's or ours.

    *frames* begin with the innermost one.
    """
    for frame in frames:
        file = frame.f_code.co_filename
        if not _is_own(file) or _is_users(file):
            return _is_own(file)
    return False


def _is_users(file: str) -> bool:
    """Whether a file is of the user's program, or of a library of Python for it."""
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
    """Return what a worker wrote that could not be started, which Spark moves in by two columns."""
    written = _NOT_STARTED.search(text)
    if written is None:
        return None
    words = dedent(written[1])
    return f"a Python worker could not be started: {_worker_exception(words) or words.strip()}"


def _missing_file(text: str) -> str | None:
    """Return what the JVM says of a file that it could not find.

    If Python waits for the records of that file, the job's error says that a worker crashed.
    """
    found = _FILE_NOT_FOUND.findall(text)
    return found[-1].strip() if found and _CRASHED in text else None


def _crash(text: str) -> str | None:
    """Return what is known of workers that ended without a word."""
    if _CRASHED not in text:
        return None
    attempts = _ABORTED.match(_first_words(text))
    times = f" in all {attempts[1]} attempts" if attempts and attempts[1] else ""
    return (
        f"a Python worker ended without a word{times}: the system killed it, as where memory is "
        "short, or what runs in it did; spark.python.worker.faulthandler.enabled=true shows where "
        "C code crashes"
    )


def _first_line(text: str) -> str:
    return _ABORTED.sub("", _first_words(text)) or "unknown failure"


def _first_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[min(1, len(lines) - 1)] if lines else ""


class UserFunctionError(RuntimeError):
    """A user's function failed, or returned what it must not; the message names the key."""


def failed(where: str, subject: Any, error: BaseException, kind: str = "key") -> UserFunctionError:
    """Return the error for an *error* of a user's function, called for a *subject* of a *kind*."""
    if isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{where} failed for {kind} {shorten(subject)}: {summarize(error)}")


def mapped(func: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """Return what a user's function gives for each value.

    Raises:
        RuntimeError: it raised a StopIteration, which ``map`` takes for the end of the values.
        Exception: it raised another error; a call for each value says which is to blame.
    """
    results = list(map(func, values))
    if len(results) < len(values):
        raise RuntimeError("a function raised StopIteration")
    return results


@contextmanager
def calling(operation: str, *functions: Callable[..., Any]) -> Iterator[None]:
    """Name the operation and its function where that fails in the block, on a worker.

    What its input fails with, which the function pulls, passes as it is. It costs nothing unless
    something fails.
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
    """Return how messages name a function of an operation."""
    return f"function {describe(func)} of {operation}"


def _to_blame(error: Exception, functions: tuple[Callable[..., Any], ...]) -> Any:
    """Return the function that raised *error*, None if it came from somewhere else.

    A function that is written in C has no frame: it is to blame if the frame that calls it is the
    last one.
    """
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    passed = codes[codes[0].co_name == calling.__name__ :]  # the first is who has the block
    if len(functions) == 1 and passed[1:] and all(_is_own(each.co_filename) for each in passed[1:]):
        return functions[0]  # also where it has returned an iterator, which fails now
    for function in functions:
        code = code_object(function)
        if code in passed:
            inside = passed[len(passed) - passed[::-1].index(code) :]
            return function if all(_is_own(each.co_filename) for each in inside) else None
    in_c = [function for function in functions if code_object(function) is None]
    return in_c[0] if in_c and _calls_functions(passed[-1]) else None


def _calls_functions(code: CodeType) -> bool:
    """Whether it is code of ours or of PySpark's mergers that calls a function of the user's."""
    return (os.path.basename(code.co_filename), code.co_name) in _CALLERS


_CALLERS: Final = {
    ("totals.py", "_reduced"),
    ("element_tasks.py", "guarded"),
    ("shuffle.py", "mergeValues"),
    ("shuffle.py", "mergeCombiners"),
    ("util.py", "wrapper"),
}
_OWN_KIND: Final = f"{UserFunctionError.__module__}.{UserFunctionError.__name__}: "

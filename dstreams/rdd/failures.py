"""What went wrong, in a line: in a Spark job, or in a user's function."""

from __future__ import annotations

import re
from typing import Any

from checkpoint import CheckpointError
from dstreams.errors import OutputConflictError
from dstreams.rdd.blocks import shorten

_TRACEBACK = "Traceback (most recent call last):"
_CRASHED = "Python worker exited unexpectedly"
_FILE_NOT_FOUND = re.compile(r"^Caused by: (java\.io\.FileNotFoundException: .*)$", re.MULTILINE)
_STOPPING = ("checkpoint.", f"{OutputConflictError.__module__}.{OutputConflictError.__name__}")
_NO_WORDS = re.compile(
    r"\s*$|During handling of the above exception, another exception occurred:$"
    r"|The above exception was the direct cause of the following exception:$"
    r"| SQLSTATE: \w{5}$"
)


def summarize(error: BaseException) -> str:
    """Return what *error* says: for a failed Spark job, the exception of the Python worker."""
    text = str(error)
    if not _is_of_a_job(error):
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _worker_exception(text) or _missing_file(text) or _first_line(text)


def stops_stream(error: BaseException) -> bool:
    """Whether after *error*, or the worker exception inside it, no further batch may run.

    These are failures of the storage of checkpoints, and an output of another history of the
    checkpoint: the batch stays uncommitted and runs again later. An OSError is none of them: users'
    functions meet refused connections and missing files too.
    """
    if isinstance(error, (CheckpointError, OutputConflictError)):
        return True
    return _is_of_a_job(error) and summarize(error).startswith(_STOPPING)


def _is_of_a_job(error: BaseException) -> bool:
    """Whether it is the error of a Spark job: Py4J's, or PySpark's own once there is a session."""
    is_captured = type(error).__module__.startswith("pyspark.errors")
    return hasattr(error, "java_exception") or (is_captured and _TRACEBACK in str(error))


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


def _missing_file(text: str) -> str | None:
    """Return what the JVM says of a file that it could not find.

    If Python waits for the records of that file, the job's error says that a worker crashed.
    """
    found = _FILE_NOT_FOUND.findall(text)
    return found[-1].strip() if found and _CRASHED in text else None


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[min(1, len(lines) - 1)] if lines else "unknown failure"


class UserFunctionError(RuntimeError):
    """A user's function failed, or returned what it must not; the message names the key."""


def failed(where: str, subject: Any, error: BaseException, kind: str = "key") -> UserFunctionError:
    """Return the error for an *error* of a user's function, called for a *subject* of a *kind*."""
    if isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{where} failed for {kind} {shorten(subject)}: {summarize(error)}")

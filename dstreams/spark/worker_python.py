"""Which Python runs the tasks of a SparkContext, and whether it has what dstreams needs.

PySpark sends itself to the workers; dstreams and its dependencies have to be there. Workers on the
driver's machine run the driver's interpreter. On a cluster, or where the user has chosen an
interpreter, one small job looks before anything begins; another one checks that executors share
the checkpoint with the driver.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from secrets import token_hex  # noqa: TID251
from socket import gethostname
from types import FunctionType
from typing import Any, NamedTuple

from pyspark import SparkContext

from checkpoint import CheckpointError, Files
from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark.failures import summarize

_MODULES = ("dstreams", "checkpoint", "cloudpickle", "fsspec", "lmdb", "msgspec", "zstandard")
_DEFAULT_OF_PYSPARK = "python3"
_HOST_OF_TASK = re.compile(r"\(TID \d+\) \((\S+) executor")
_REMEDY = (
    "install dstreams there for the Python of the workers, or name one that has it by "
    "PYSPARK_PYTHON before the SparkContext is made; on a cluster an environment can be sent "
    "along: spark.archives=environment.tar.gz#environment, made by venv-pack or conda-pack, and "
    "PYSPARK_PYTHON=environment/bin/python (addPyFile cannot carry the compiled parts of lmdb, "
    "msgspec and zstandard)"
)

_END_OF_APPLICATION = re.compile(
    rb"(?:Application has been killed\. Reason: |(?=YARN application has exited))(.+)"
)

_ready: weakref.WeakSet[SparkContext] = weakref.WeakSet()
_ends: deque[str] = deque(maxlen=1)


class _Found(NamedTuple):
    """What one worker has: *lacking* names modules, *version* is that of dstreams."""

    host: str
    interpreter: str
    lacking: tuple[str, ...]
    version: str | None


def use_driver_python(spark: SparkContext) -> None:
    """Let workers on this machine run the driver's interpreter, unless the user chose another.

    PySpark takes ``PYSPARK_PYTHON``, else the first ``python3`` on ``PATH``, which is the system's
    where a program runs as ``venv/bin/python app.py``. ``spark.pyspark.python`` counts here too.
    """
    if "PYSPARK_PYTHON" in os.environ or spark.pythonExec != _DEFAULT_OF_PYSPARK:
        return
    chosen = spark.getConf().get("spark.pyspark.python")
    if chosen is None and _is_local(spark):
        chosen = sys.executable
    spark.pythonExec = chosen or _DEFAULT_OF_PYSPARK


def is_ready(interpreter: str) -> bool:
    """Whether an interpreter on this machine is the driver's, and dstreams is installed for it."""
    return _is_of_driver(interpreter) and _installed() is not None


def require_workers(spark: SparkContext) -> None:
    """Refuse a SparkContext whose workers lack what dstreams needs, once for each context.

    Where they run the driver's interpreter on this machine there is nothing to ask. Elsewhere one
    job looks, with a task for each executor that is there: Spark gives each a task in turn.

    Raises:
        EnvironmentNotReadyError: a worker cannot be started, lacks a module, or has another version
            of dstreams; the message names host, interpreter, and what to do. Or Spark does not run
            the job, as where the cluster has ended the application.
    """
    if spark in _ready:
        return
    use_driver_python(spark)
    if not (_is_local(spark) and is_ready(spark.pythonExec)):
        problems = _problems(spark)
        if problems:
            raise EnvironmentNotReadyError(
                f"Python workers cannot run dstreams: {'; '.join(problems)}; {_REMEDY}"
            )
    _ready.add(spark)


def require_shared(spark: SparkContext, files: Files) -> None:
    """Refuse a checkpoint that an executor does not share with the driver.

    The driver creates a file, and a task for each executor looks for it. With a local master there
    is nothing to ask.

    Raises:
        EnvironmentNotReadyError: an executor does not see the file; the message names its host.
        CheckpointError: the driver cannot create the file.
    """
    if _is_local(spark):
        return
    name = f"probe-{token_hex(8)}"
    files.create(name, [b""])
    try:
        problems = sorted(set(_ask_executors(spark, partial(_look_for, files, name))))
    finally:
        with suppress(CheckpointError):
            files.delete(name)
    if problems:
        raise EnvironmentNotReadyError(
            f"the checkpoint {files.url} is not shared by all hosts: {'; '.join(problems)}, and "
            f"the driver on host {gethostname()} has just created it; give a checkpoint on a file "
            "system that every host mounts at this path, or in an object store that every host "
            "can reach"
        )


def _look_for(files: Files, name: str, _: Iterable[Any]) -> list[str]:
    """Task: return what keeps this host from seeing a file."""
    try:
        if files.exists(name):
            return []
        reason = "it is not there"
    except CheckpointError as error:
        reason = str(error)
    return [f"host {gethostname()} cannot see the file {name}: {reason}"]


def note_line_of_log(line: bytes) -> None:
    """Keep from a line of the JVM's log why the cluster has ended the application, if it says so.

    The JVM has the reason nowhere else.
    """
    found = _END_OF_APPLICATION.search(line)
    if found is not None:
        _ends.append(found[1].decode(errors="replace").strip())


def forget_end_of_application() -> None:
    """Forget how an earlier application of this process ended."""
    _ends.clear()


def end_of_application(spark: SparkContext) -> str | None:
    """Return why Spark has stopped a context by itself, as far as known; None while it runs."""
    if not spark._jsc.sc().isStopped():
        return None
    return _ends[-1] if _ends else "the SparkContext has been stopped; Spark's log has the reason"


def _ask_executors(spark: SparkContext, look: Callable[..., list[Any]]) -> list[Any]:
    """Return the results of one job with a task for each executor that is registered.

    Raises:
        EnvironmentNotReadyError: the job was not run, whatever the workers are like.
        Exception: a task failed on a host.
    """
    try:
        tasks = max(1, spark._jsc.sc().getExecutorMemoryStatus().size() - 1)  # it has the driver
        return spark.parallelize(range(tasks), tasks).mapPartitions(look).collect()
    except Exception as error:
        if _HOST_OF_TASK.search(str(error)) and "ExecutorLostFailure" not in str(error):
            raise
        reason = end_of_application(spark) or summarize(error)
        raise EnvironmentNotReadyError(
            f"the executors of {spark.appName!r} could not be checked: {reason}; look at the log "
            "of Spark, of the cluster's master and of the executors"
        ) from error


def _problems(spark: SparkContext) -> list[str]:
    # By value, as nothing of this module may be there.
    look = FunctionType(_look.__code__, {"__name__": "__main__"}, _look.__name__)
    try:
        found = {_Found(*row) for row in _ask_executors(spark, partial(look, _MODULES))}
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        host = _HOST_OF_TASK.search(str(error))
        where = f" on host {host[1]}" if host else ""
        return [f"{spark.pythonExec!r} cannot work{where}: {summarize(error)}"]
    return [problem for one in sorted(found) for problem in _problem_of(one)]


def _problem_of(found: _Found) -> Iterator[str]:
    where = f"{found.interpreter} on host {found.host}"
    if found.lacking:
        yield f"{where} has no {', '.join(found.lacking)}"
    elif found.version != _installed() and None not in (found.version, _installed()):
        yield f"{where} has dstreams {found.version}, and the driver {_installed()}"


def _look(modules: Iterable[str], _: Iterable[Any]) -> list[Any]:
    """Task: what there is; sent as code, so all it uses is imported here."""
    import contextlib  # noqa: PLC0415
    import importlib  # noqa: PLC0415
    import importlib.metadata  # noqa: PLC0415
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    lacking, version = [], None
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            is_absent = getattr(error, "name", None) == name
            lacking.append(name if is_absent else f"{name} that can be imported ({error})")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("dstreams")
    return [(socket.gethostname(), sys.executable, tuple(lacking), version)]


def _installed() -> str | None:
    """Return the version of dstreams; None where it is imported from a directory of its own."""
    try:
        return version("dstreams")
    except PackageNotFoundError:
        return None


def _is_local(spark: SparkContext) -> bool:
    return str(spark.master).startswith("local")


def _is_of_driver(interpreter: str) -> bool:
    """Whether *interpreter* is the driver's, by one of the names that its environment links."""
    path = shutil.which(interpreter)
    if path is None:
        return False
    if path == sys.executable:
        return True
    is_beside = os.path.dirname(path) == os.path.dirname(sys.executable)
    return is_beside and os.path.samefile(path, sys.executable)

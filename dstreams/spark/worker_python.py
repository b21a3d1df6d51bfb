"""Checks of the Python interpreter of workers, and of their access to the checkpoint.

PySpark sends itself to the workers, but dstreams and its dependencies must be installed there. On
the driver's machine, workers run the driver's interpreter. On a cluster, or if the user has chosen
an interpreter, a small job checks it first; another job checks that executors share the checkpoint
with the driver.
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

MODULES = ("dstreams", "checkpoint", "cloudpickle", "lmdb", "msgspec", "zstandard")
_PACKAGES = ("dstreams", "cloudpickle", "lmdb", "msgspec", "zstandard")
"""Packages whose versions are compared with the driver's, as is that of PySpark."""

_DEFAULT_OF_PYSPARK = "python3"
_HOST_OF_TASK = re.compile(r"\(TID \d+\) \((\S+) executor")
_REMEDY = (
    "install dstreams there for the Python of the workers, or set PYSPARK_PYTHON to an interpreter "
    "with dstreams before the SparkContext is made, or ship the driver's environment: dstreams "
    "pack environment.tar.gz, spark.archives=environment.tar.gz#environment and "
    "PYSPARK_PYTHON=environment/bin/python (addPyFile does not support the compiled parts of lmdb, "
    "msgspec and zstandard)"
)

_END_OF_APPLICATION = re.compile(
    rb"(?:Application has been killed\. Reason: |(?=YARN application has exited))(.+)"
)

_ready: weakref.WeakSet[SparkContext] = weakref.WeakSet()
_ends: deque[str] = deque(maxlen=1)


class _Found(NamedTuple):
    """The modules that a Python is *lacking*, and its known *versions* of packages."""

    host: str
    interpreter: str
    lacking: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]


def use_driver_python(spark: SparkContext) -> None:
    """Let workers on this machine run the driver's interpreter, unless the user chose another.

    PySpark uses ``PYSPARK_PYTHON`` or the first ``python3`` on ``PATH``, which is the system's if a
    program is run as ``venv/bin/python app.py``. ``spark.pyspark.python`` is respected too.
    """
    if "PYSPARK_PYTHON" in os.environ or spark.pythonExec != _DEFAULT_OF_PYSPARK:
        return
    chosen = spark.getConf().get("spark.pyspark.python")
    if chosen is None and _is_local(spark):
        chosen = sys.executable
    spark.pythonExec = chosen or _DEFAULT_OF_PYSPARK


def is_ready(interpreter: str) -> bool:
    """Return whether *interpreter* is the driver's, and dstreams is installed for it."""
    return _is_of_driver(interpreter) and _installed() is not None


def require_workers(spark: SparkContext) -> None:
    """Check once per SparkContext that its workers can run dstreams.

    Workers that run the driver's interpreter on this machine can. Otherwise a job checks them with
    one task per registered executor, which Spark assigns in turn.

    Raises:
        EnvironmentNotReadyError: a worker cannot be started, lacks a module, or has a version of
            dstreams or of a package that does not fit the driver's. Or Spark does not run the job,
            for example because the cluster has ended the application.
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
    """Check that all executors share the checkpoint with the driver.

    The driver creates a file, and a task for each executor looks it up. With a local master, no
    check is needed.

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
            f"the checkpoint {files.url}: not shared by all hosts: {'; '.join(problems)}, and "
            f"the driver on host {gethostname()} has just created it; choose a file system that "
            "every host mounts at this path, or an object store that every host can reach"
        )


def _look_for(files: Files, name: str, _: Iterable[Any]) -> list[str]:
    """Task: return the reasons why this host cannot see a file."""
    try:
        if files.exists(name):
            return []
        reason = "it does not exist"
    except CheckpointError as error:
        reason = str(error)
    return [f"host {gethostname()} cannot see the file {name}: {reason}"]


def note_line_of_log(line: bytes) -> None:
    """Keep the reason why the cluster has ended the application, if a line of the log has it.

    The JVM does not provide the reason in any other way.
    """
    found = _END_OF_APPLICATION.search(line)
    if found is not None:
        _ends.append(found[1].decode(errors="replace").strip())


def forget_end_of_application() -> None:
    """Discard the reason why an earlier application of this process ended."""
    _ends.clear()


def end_of_application(spark: SparkContext) -> str | None:
    """Return why Spark has stopped a context by itself, None if it is running."""
    if _is_rejected(spark):
        return (
            f"the master {spark.master} did not accept it; check the address, and that "
            "spark.authenticate, spark.authenticate.secret and spark.network.crypto.enabled are "
            "those of the cluster"
        )
    if not spark._jsc.sc().isStopped():
        return None
    return _ends[-1] if _ends else "the SparkContext was stopped; see Spark's log for the reason"


def _is_rejected(spark: SparkContext) -> bool:
    """Return whether a standalone master has given the application no id.

    Spark waits for the id, and if it gets none, it stops the context in another thread, some time
    after it has returned the context.
    """
    return str(spark.master).startswith("spark:") and spark.applicationId.startswith(
        "spark-application"
    )


def _ask_executors(spark: SparkContext, look: Callable[..., list[Any]]) -> list[Any]:
    """Return the results of one job with a task for each registered executor.

    Raises:
        EnvironmentNotReadyError: Spark did not run the job.
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
            f"the executors of {spark.appName!r} could not be checked: {reason}; see the logs of "
            "Spark, of the cluster's master and of the executors"
        ) from error


def _problems(spark: SparkContext) -> list[str]:
    # Pickled by value, because workers may not have this module.
    look = FunctionType(_look.__code__, {"__name__": "__main__"}, _look.__name__)
    try:
        asked = partial(look, MODULES, _PACKAGES)
        found = {_Found(*row) for row in _ask_executors(spark, asked)}
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        host = _HOST_OF_TASK.search(str(error))
        where = f" on host {host[1]}" if host else ""
        return [f"{spark.pythonExec!r} cannot work{where}: {summarize(error)}"]
    (driver,) = (_Found(*row) for row in _look(MODULES, _PACKAGES, ()))
    of_driver = dict(driver.versions)
    return [problem for one in sorted(found) for problem in _problem_of(one, of_driver)]


def _problem_of(found: _Found, of_driver: dict[str, str]) -> Iterator[str]:
    where = f"{found.interpreter} on host {found.host}"
    if found.lacking:
        yield f"{where} lacks {', '.join(found.lacking)}"
        return
    misfits = [
        f"{name} {version} (the driver has {of_driver[name]})"
        for name, version in found.versions
        if not _fits(name, version, of_driver.get(name, version))
    ]
    if misfits:
        yield f"{where} has {', '.join(misfits)}"


def _fits(package: str, version: str, of_driver: str) -> bool:
    """Return whether the version of a worker fits the driver's.

    dstreams is the same in both, because they exchange bytes of its own. Other packages may differ
    behind the first number that is not zero, those of Spark behind the second. PySpark itself
    compares the versions of Python.
    """
    if package == "dstreams":
        return version == of_driver
    numbers = 2 if package == "pyspark" or of_driver.startswith("0.") else 1
    return version.split(".")[:numbers] == of_driver.split(".")[:numbers]


def _look(modules: Iterable[str], packages: Iterable[str], _: Iterable[Any]) -> list[Any]:
    """Task: return what a Python has; it is sent as code and must import all it uses."""
    import contextlib  # noqa: PLC0415
    import importlib  # noqa: PLC0415
    import importlib.metadata  # noqa: PLC0415
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    import pyspark  # noqa: PLC0415

    # The PySpark that executors add to the path has no metadata.
    lacking, versions = [], [("pyspark", pyspark.__version__)]
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            is_absent = getattr(error, "name", None) == name
            lacking.append(name if is_absent else f"{name} (its import fails: {error})")
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append((name, importlib.metadata.version(name)))
    return [(socket.gethostname(), sys.executable, tuple(lacking), tuple(versions))]


def _installed() -> str | None:
    """Return the version of dstreams, None if it is not installed but imported from a directory."""
    try:
        return version("dstreams")
    except PackageNotFoundError:
        return None


def _is_local(spark: SparkContext) -> bool:
    return str(spark.master).startswith("local")


def _is_of_driver(interpreter: str) -> bool:
    """Return whether *interpreter* is the driver's, also by another name in its environment."""
    path = shutil.which(interpreter)
    if path is None:
        return False
    if path == sys.executable:
        return True
    is_beside = os.path.dirname(path) == os.path.dirname(sys.executable)
    return is_beside and os.path.samefile(path, sys.executable)

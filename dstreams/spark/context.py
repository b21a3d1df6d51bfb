"""A SparkContext set up for many small jobs by Python workers, on one machine or on a cluster.

In a notebook:

    from dstreams.spark.context import tuned_context

    sc = tuned_context("experiment", "local[2,4]")
    sc.parallelize(range(10), 2).map(lambda x: x * x).sum()
    sc.stop()

What is tuned, and how to have it otherwise, is said at :func:`tuned_conf`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from dstreams.common.shadowing import shadow_in
from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark.failures import summarize
from dstreams.spark.machine_settings import machine_settings, spark_conf_directory
from dstreams.spark.socket_directory import socket_directory
from dstreams.spark.worker_python import (
    end_of_application,
    forget_end_of_application,
    is_ready,
    note_line_of_log,
)

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Workers talk to the JVM over Unix sockets: without it a job waits about 40 ms a task, idle."""

SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
"""Where those are. Whoever can connect to one commands a worker: PySpark asks no secret there."""

WORKER_DAEMON = "spark.python.daemon.module"
"""Which module starts workers: ours where they run what the driver runs, and have dstreams."""

DEFAULT_MASTER = "local[*,4]"
"""All cores, and four attempts for a task: ``local[*]`` gives it one."""

_LOOPBACK = "127.0.0.1"
_ADDRESS = "SPARK_LOCAL_IP"
_PYTHON = "spark.pyspark.python"
_OLDEST_SPARK, _NEXT_SPARK, _SPARK_WITH_UNIX_SOCKETS = (3, 5), (5, 0), (4, 1)
_JAVA_ANSWER_S = 10
_QUIET_LOGGING = Path(__file__).with_name("log4j2.properties")
# Printed by Java itself before logging exists, because Spark 4 loads this module; no flag stops it.
_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector"

# Not extraJavaOptions, which would be lost where the caller sets his own.
JVM_OPTIONS = "spark.driver.defaultJavaOptions"
"""The setting for options of a JVM that is launched."""
ERRORS_ONLY = f"-Dlog4j2.configurationFile={_QUIET_LOGGING.as_uri()}"
"""Option by which the JVM logs errors only."""

ONE_COMPILER = "-XX:TieredStopAtLevel=1"
"""Option by which the JVM compiles a method once, and does not measure how it is used.

With small jobs its second compiler is at work for hours, on methods that take no time.
"""

# As a property of the JVM, because spark-submit shows progress to us where nothing is said.
_NO_PROGRESS = "-Dspark.ui.showConsoleProgress=false"

_log = logging.getLogger(__name__)
_of_command: dict[str, str] = {}
_warned: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def tuned_context(
    app_name: str, master: str | None = None, conf: Mapping[str, str] | SparkConf | None = None
) -> SparkContext:
    """Start a SparkContext with :func:`tuned_conf`.

    ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` become the running interpreter where the
    environment (or ``spark.pyspark.python`` in *conf*) does not say otherwise, so that workers run
    what the driver runs.

    Args:
        app_name: name of the application.
        master: Spark master. None: that of *conf* or spark-submit, else ``local[*,4]``.
        conf: settings that win over the tuned ones.

    Raises:
        EnvironmentNotReadyError: Java or PySpark is missing or too old, a SparkContext runs
            already, or Spark does not start.
        KeyboardInterrupt: Ctrl-C was pressed meanwhile; Spark is stopped again.
    """
    require_spark()
    return _start(tuned_conf(app_name, master, conf))


def context_like(earlier: Callable[[SparkConf], SparkConf]) -> SparkContext:
    """Start a SparkContext as that of an earlier process was.

    Args:
        earlier: adds the settings of the earlier context to those that this process was given.

    Raises:
        EnvironmentNotReadyError: as in :func:`tuned_context`.
        KeyboardInterrupt: as in :func:`tuned_context`.
    """
    require_spark()
    conf = earlier(SparkConf().setAll(list(_submitted().items())))
    if conf.contains(JVM_OPTIONS):  # it was tuned; addresses and sockets are each process's own
        of_machine = machine_settings()
        master = conf.get("spark.master", None) or of_machine.get("spark.master", DEFAULT_MASTER)
        python = conf.get(_PYTHON, None) or of_machine.get(_PYTHON)
        for key, value in tuned_settings(master, python).items():
            if key not in of_machine:
                conf.setIfMissing(key, value)
    return _start(conf)


def _require_unshadowed(conf: SparkConf) -> None:
    # Workers of this machine are started as modules, so they search the working directory first.
    if conf.get(WORKER_DAEMON, "").startswith("dstreams.") and "PYTHONSAFEPATH" not in os.environ:
        problem = shadow_in(os.getcwd())
        if problem is not None:
            raise EnvironmentNotReadyError(f"Python workers would not start: {problem}")


def _start(conf: SparkConf) -> SparkContext:
    _require_no_other()
    forget_end_of_application()
    _require_unshadowed(conf)
    choose_python(conf.get(_PYTHON, None) or machine_settings().get(_PYTHON))
    spark = None
    try:
        with starting_spark():
            if not has_jvm():
                require_java()
            is_local = is_local_master(conf.get("spark.master", DEFAULT_MASTER))
            gateway = None if has_jvm() else launch_jvm(conf, is_local=is_local)
            spark = SparkContext(conf=conf, gateway=gateway)
    except KeyboardInterrupt:
        if spark is not None:
            spark.stop()
        raise
    return spark


def tuned_conf(
    app_name: str, master: str | None = None, conf: Mapping[str, str] | SparkConf | None = None
) -> SparkConf:
    """Return a SparkConf for many small jobs by Python workers.

    ======================================== =================================================
    ``spark.master``                         ``local[*,4]``: failed tasks are tried again
    ``spark.python.unix.domain.socket.``     ``true`` with a local master, where PySpark has it
    ``enabled``                              (4.1): about 40 ms less a task
    ``spark.python.unix.domain.socket.dir``  a directory that only this user can enter; where there
                                             can be none, workers talk over TCP, with a secret
    ``spark.python.daemon.module``           ``dstreams.spark.worker_daemon`` with a local master,
                                             where workers run the driver's Python: about 20 ms less
                                             per task
    ``spark.shuffle.compress``               ``false`` with a local master, where what is shuffled
                                             stays on the machine: up to a fifth less CPU time
    ``spark.python.task.killTimeout``        ``200ms``: a cancelled task stops in half a second
    ``spark.ui.showConsoleProgress``         ``false``
    ``spark.port.maxRetries``                ``64``: so many programs have a page each on one host
    ``spark.driver.defaultJavaOptions``      the JVM logs errors only; with a local master it also
                                             compiles by its first compiler alone
                                             (``-XX:TieredStopAtLevel=1``): a third less CPU time a
                                             small batch. Where Spark computes much by itself, as
                                             in SQL over many rows, give
                                             ``-XX:TieredStopAtLevel=4``
    ``spark.driver.bindAddress``, ``.host``  ``127.0.0.1`` with a local master
    ======================================== =================================================

    Spark's own page stays on (``spark.ui.enabled``): ``sc.uiWebUrl`` has its address, port 4040 and
    up. With a local master a JVM that is launched here opens it to this machine alone, by
    ``SPARK_LOCAL_IP``, where the environment does not say otherwise.

    Args:
        app_name: name of the application.
        master: Spark master. None: that of *conf*, spark-submit or the machine, else
            ``local[*,4]``.
        conf: settings that win over these; what was given to spark-submit, by
            ``PYSPARK_SUBMIT_ARGS`` or in ``spark-defaults.conf`` does too. The name and master
            given as arguments win over all, as in :class:`pyspark.SparkContext`. Options for the
            JVM are best given in ``spark.driver.extraJavaOptions``, which adds to ours.
    """
    given = dict(conf.getAll() if isinstance(conf, SparkConf) else conf or {})
    given = {**_submitted(), **given, "spark.app.name": app_name}
    of_machine = machine_settings()
    named = master or given.get("spark.master") or of_machine.get("spark.master")
    given["spark.master"] = named or DEFAULT_MASTER
    settings = tuned_settings(given["spark.master"], given.get(_PYTHON, of_machine.get(_PYTHON)))
    options = jvm_options()
    if is_local_master(given["spark.master"]):
        options = f"{ONE_COMPILER} {options}"
    tuned = {JVM_OPTIONS: options, **settings}
    left = {key: value for key, value in tuned.items() if key not in of_machine}
    return SparkConf().setAll(list({**left, **given}.items()))


def jvm_options() -> str:
    """Return the options of a JVM that is launched: the logging of the machine is left as it is."""
    has_own_logging = (spark_conf_directory() / "log4j2.properties").exists()
    return _NO_PROGRESS if has_own_logging else f"{_NO_PROGRESS} {ERRORS_ONLY}"


def tuned_settings(master: str, python: str | None = None) -> dict[str, str]:
    """Return the settings of :func:`tuned_conf`, other than that of the JVM.

    Args:
        master: Spark master.
        python: interpreter of the workers as ``spark.pyspark.python`` says, None if it does not.
    """
    settings = {
        "spark.python.task.killTimeout": "200ms",
        "spark.ui.showConsoleProgress": "false",
        "spark.port.maxRetries": "64",
    }
    if is_local_master(master):
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
        settings["spark.shuffle.compress"] = "false"
        settings |= _sockets() if _has_unix_sockets() else {}
        if is_ready(_python_of_workers(python)):
            settings[WORKER_DAEMON] = "dstreams.spark.worker_daemon"
    return settings


def _sockets() -> dict[str, str]:
    directory = socket_directory()
    if directory is None:
        return {UNIX_SOCKETS: "false"}
    return {UNIX_SOCKETS: "true", SOCKET_DIRECTORY: directory}


def choose_python(python: str | None) -> None:
    """Let workers run what the driver runs, or *python*, unless the environment says otherwise."""
    os.environ.setdefault("PYSPARK_PYTHON", _python_of_workers(python))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _python_of_workers(python: str | None) -> str:
    return os.environ.get("PYSPARK_PYTHON") or python or sys.executable


@contextlib.contextmanager
def starting_spark() -> Iterator[None]:
    """Name what keeps Spark from starting, and raise a Ctrl-C pressed in the block after the block.

    A KeyboardInterrupt raised while PySpark waits for its JVM would leave a JVM behind that never
    ends.
    """
    with _interrupt_put_off():
        try:
            yield
        except (OSError, Py4JError, PySparkException) as error:
            raise EnvironmentNotReadyError(
                f"Spark could not be started on this machine: {summarize(error)}"
            ) from error


@contextlib.contextmanager
def _interrupt_put_off() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = threading.Event()

    def note(*_: object) -> None:
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if pressed.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # else PySpark has put its own there
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if pressed.is_set():
        raise KeyboardInterrupt


def warn_if_untuned(sc: SparkContext) -> None:
    """Log, once for each local context, that it talks to its workers over TCP though it need not.

    On a cluster every host would need a directory for the sockets that nobody else can enter.
    """
    if sc in _warned or not _has_unix_sockets() or not is_local_master(sc.master):
        return
    # PySpark reads this variable where the setting is absent.
    default = os.environ.get("PYSPARK_UDS_MODE", "false")
    if str(sc.getConf().get(UNIX_SOCKETS, default)).lower() == "true":
        return
    _warned.add(sc)
    _log.warning(
        "this SparkContext talks to its Python workers over TCP, which costs about 40 ms a task; "
        "use dstreams.spark.context.tuned_context, or set %s=true and %s to a directory that only "
        "this user can enter",
        UNIX_SOCKETS,
        SOCKET_DIRECTORY,
    )


def require_spark() -> None:
    """Refuse a PySpark that dstreams cannot work with."""
    if not _OLDEST_SPARK <= _spark_version() < _NEXT_SPARK:
        raise EnvironmentNotReadyError(
            f"pyspark {pyspark.__version__} is installed, but dstreams needs 3.5 or newer and "
            "older than 5; run: python -m pip install 'pyspark>=3.5,<5'"
        )


def require_running(spark: SparkContext) -> None:
    """Refuse a SparkContext that has been stopped, which answers with errors of its own.

    Raises:
        EnvironmentNotReadyError: the program has stopped it, or the cluster.
    """
    if spark._jsc is None:
        raise EnvironmentNotReadyError(
            f"the SparkContext of {spark.appName!r} has been stopped, as ssc.stop() does unless "
            "stopSparkContext=False; start another one, such as tuned_context(name)"
        )
    reason = end_of_application(spark)
    if reason is not None:
        raise EnvironmentNotReadyError(
            f"Spark has ended the application {spark.appName!r}: {reason}; look at the log of "
            "Spark, of the cluster's master and of the executors"
        )


def _require_no_other() -> None:
    running = SparkContext._active_spark_context
    if running is not None:
        raise EnvironmentNotReadyError(
            f"a SparkContext runs in this process already, {running.appName!r} at "
            f"{running.master}, and there can be one only: SparkContext.getOrCreate() returns it; "
            "for other settings stop() it first"
        )


def require_java() -> None:
    """Refuse a machine whose Java cannot run the installed PySpark.

    Looks where Spark looks: ``JAVA_HOME``, else ``PATH``. A Java that was found good is not asked
    again in this process. A ``spark-env.sh`` may say otherwise, so then nothing is checked.

    Raises:
        EnvironmentNotReadyError: there is no Java, it does not answer within 10 s, or it is older
            than what the installed PySpark needs (17 for PySpark 4, 8 for 3.5).
    """
    if (spark_conf_directory() / "spark-env.sh").exists():
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise _java_error("JAVA_HOME is not set and PATH has no java")
    if home and not os.access(java, os.X_OK):
        raise _java_error(f"JAVA_HOME is {home!r} and {java} is no program")
    _require_java_at(java, "JAVA_HOME" if home else "PATH")


@functools.cache  # of success only: what raises is asked again
def _require_java_at(java: str, found_in: str) -> None:
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_JAVA_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _java_error(
            f"{java} (from {found_in}) did not answer -version within {_JAVA_ANSWER_S} s"
        ) from None
    except OSError as error:
        raise _java_error(f"{java} (from {found_in}) cannot be run: {error}") from error
    text = answer.stderr + answer.stdout
    major = _java_major(text) if answer.returncode == 0 else None
    if major is None:
        line = (text.strip().splitlines() or ["nothing"])[-1]
        raise _java_error(
            f"{java} (from {found_in}) exited with {answer.returncode} and said {line!r}"
        )
    if major < _java_needed():
        raise _java_error(f"{java} (from {found_in}) is Java {major}")


def _java_major(text: str) -> int | None:
    """Read the major version out of ``java -version``: 17 of ``17.0.15``, 8 of ``1.8.0_292``."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def _java_needed() -> int:
    return 17 if _spark_version() >= (4, 0) else 8


def _java_error(found: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"PySpark {pyspark.__version__} needs Java {_java_needed()} or newer, but {found}; "
        "install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17) or set JAVA_HOME to the directory of one"
    )


def _spark_version() -> tuple[int, int]:
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def _has_unix_sockets() -> bool:
    return hasattr(socket, "AF_UNIX") and _spark_version() >= _SPARK_WITH_UNIX_SOCKETS


def submit(settings: Mapping[str, str]) -> None:
    """Let *settings* be those of who started this process, as those of spark-submit are."""
    _of_command.update(settings)


def _submitted() -> dict[str, str]:
    """Return the settings of who started this process: of spark-submit, or as :func:`submit`."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return dict(_of_command)
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def has_jvm() -> bool:
    """Whether this process has a JVM of Spark already, its own or that of spark-submit."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def launch_jvm(conf: SparkConf, *, is_local: bool) -> Any:
    """Launch a JVM and return its gateway; its standard error goes through us to our own.

    What a JVM *is_local* listens on is open to this machine alone, unless the environment has
    another address for it: Spark binds its page to all of them.
    """
    read_fd, write_fd = os.pipe()
    forwarder = threading.Thread(  # noqa: TID251
        target=_forward_errors, args=(read_fd,), name="dstreams-jvm-stderr", daemon=True
    )
    forwarder.start()
    is_chosen = _ADDRESS in os.environ
    try:
        with environment({_ADDRESS: _LOOPBACK} if is_local and not is_chosen else {}):
            return launch_gateway(conf, {"stderr": write_fd})
    finally:
        os.close(write_fd)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set *variables* for the child process that is started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def is_local_master(master: str | None) -> bool:
    """Whether all of Spark with this master runs in this process and its JVM."""
    return master is not None and master.startswith("local")


def _forward_errors(read_fd: int) -> None:
    """Copy lines from *read_fd* to standard error until its end, without the one known as noise."""
    rest = b""
    # os.read, not a buffered file, whose lock a daemon thread may hold when the interpreter ends.
    while chunk := os.read(read_fd, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(_NOISE):
                note_line_of_log(line)
                _write_error(line + b"\n")
    _write_error(rest)
    os.close(read_fd)


def _write_error(text: bytes) -> None:
    with contextlib.suppress(OSError):  # standard error is closed: nobody is there to read it
        os.write(2, text)

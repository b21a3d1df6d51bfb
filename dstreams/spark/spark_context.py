"""SparkContexts tuned for many small jobs of Python workers.

In a notebook:

    from dstreams import tuned_context

    sc = tuned_context("experiment", "local[2,4]")
    sc.parallelize(range(10), 2).map(lambda x: x * x).sum()
    sc.stop()

See :func:`tuned_conf` for the settings and how to override them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shlex
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

from dstreams.common.imports import shadow_in
from dstreams.errors import EnvironmentNotReadyError
from dstreams.spark.failures import summarize
from dstreams.spark.socket_directory import socket_directory
from dstreams.spark.worker_python import (
    end_of_application,
    forget_end_of_application,
    is_ready,
    note_line_of_log,
)

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Lets workers use Unix sockets; over TCP, each task waits about 40 ms."""

SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
"""The directory of these sockets; it must be private, because PySpark does not authenticate."""

WORKER_DAEMON = "spark.python.daemon.module"
"""The module that starts workers: ours if they run the driver's Python and have dstreams."""

DEFAULT_MASTER = "local[*,4]"
"""All cores, and four attempts per task; ``local[*]`` allows one."""

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
MASTER = "MASTER"
"""The variable from which spark-submit takes the master if options and files do not set it."""

_OPTIONS = {"--master": "spark.master", "--name": "spark.app.name"}
_CONF, _FILE = ("--conf", "-c"), "--properties-file"
_PROPERTY = re.compile(r"^[ \t]*([^\s=:#!][^\s=:]*)[ \t]*[=: \t][ \t]*(.*?)[ \t\r]*$", re.MULTILINE)

_LOOPBACK = "127.0.0.1"
_ADDRESS = "SPARK_LOCAL_IP"
_PYTHON = "spark.pyspark.python"
_OLDEST_SPARK, _NEXT_SPARK, _SPARK_WITH_UNIX_SOCKETS = (3, 5), (5, 0), (4, 1)
_JAVA_ANSWER_S = 10
_QUIET_LOGGING = Path(__file__).with_name("log4j2.properties")
# Java prints this before logging starts, because Spark 4 loads the module; no flag disables it.
_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector"

# Not extraJavaOptions, which a caller's own setting would replace.
JVM_OPTIONS = "spark.driver.defaultJavaOptions"
"""The setting for the options of a launched JVM."""
ERRORS_ONLY = f"-Dlog4j2.configurationFile={_QUIET_LOGGING.as_uri()}"
"""JVM option to log only errors."""

ONE_COMPILER = "-XX:TieredStopAtLevel=1"
"""JVM option to use only the first compiler.

With small jobs, the second compiler runs for hours on methods that take little time.
"""

# A JVM property, because spark-submit shows progress unless this is set.
_NO_PROGRESS = "-Dspark.ui.showConsoleProgress=false"

_log = logging.getLogger(__name__)
_of_command: dict[str, str] = {}
_warned: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def tuned_context(
    app_name: str, master: str | None = None, conf: Mapping[str, str] | SparkConf | None = None
) -> SparkContext:
    """Start a SparkContext with :func:`tuned_conf`.

    ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` are set to the driver's interpreter, unless the
    environment (or ``spark.pyspark.python`` in *conf*) sets them.

    Args:
        app_name: name of the application.
        master: Spark master. None: that of *conf* or spark-submit, else ``local[*,4]``.
        conf: settings that override the tuned ones.

    Raises:
        EnvironmentNotReadyError: Java or PySpark is missing or too old, a SparkContext is already
            running, or Spark does not start.
        KeyboardInterrupt: Ctrl-C was pressed; Spark is stopped.
    """
    require_spark()
    return _start(tuned_conf(app_name, master, conf))


def context_like(earlier: Callable[[SparkConf], SparkConf]) -> SparkContext:
    """Start a SparkContext with the settings of an earlier process.

    Args:
        earlier: adds the settings of the earlier context to those of this process.

    Raises:
        EnvironmentNotReadyError: as in :func:`tuned_context`.
        KeyboardInterrupt: as in :func:`tuned_context`.
    """
    require_spark()
    conf = earlier(SparkConf().setAll(list(_submitted().items())))
    if conf.contains(JVM_OPTIONS):  # it was tuned; each process needs its own sockets
        of_machine = machine_settings()
        master = conf.get("spark.master", None) or of_machine.get("spark.master", DEFAULT_MASTER)
        python = conf.get(_PYTHON, None) or of_machine.get(_PYTHON)
        for key, value in tuned_settings(master, python).items():
            if key not in of_machine:
                conf.setIfMissing(key, value)
    return _start(conf)


def _require_unshadowed(conf: SparkConf) -> None:
    # Local workers are started as modules, so they search the working directory first.
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
        require_running(spark)
    except (KeyboardInterrupt, EnvironmentNotReadyError):
        if spark is not None:
            spark.stop()
        raise
    return spark


def tuned_conf(
    app_name: str, master: str | None = None, conf: Mapping[str, str] | SparkConf | None = None
) -> SparkConf:
    """Return a SparkConf for many small jobs of Python workers.

    ======================================== =================================================
    ``spark.master``                         ``local[*,4]``: failed tasks are retried
    ``spark.python.unix.domain.socket.``     ``true`` with a local master and PySpark 4.1 or newer:
    ``enabled``                              saves about 40 ms per task
    ``spark.python.unix.domain.socket.dir``  a private directory; if there is none, workers use
                                             authenticated TCP connections
    ``spark.python.daemon.module``           ``dstreams.spark.worker_daemon`` if workers run the
                                             driver's Python on this machine: saves about 20 ms per
                                             task
    ``spark.shuffle.compress``               ``false`` with a local master, because shuffled data
                                             stays on the machine: up to a fifth less CPU time
    ``spark.python.task.killTimeout``        ``200ms``: a cancelled task stops in half a second
    ``spark.ui.showConsoleProgress``         ``false``
    ``spark.port.maxRetries``                ``64`` programs on a host can each have a Spark UI
    ``spark.driver.defaultJavaOptions``      logs only errors; with a local master, it also disables
                                             the second compiler (``-XX:TieredStopAtLevel=1``): a
                                             third less CPU time for small batches. For heavy
                                             computations in Spark, such as SQL over many rows, set
                                             ``-XX:TieredStopAtLevel=4``
    ``spark.driver.bindAddress``, ``.host``  ``127.0.0.1`` with a local master
    ======================================== =================================================

    The Spark UI stays enabled (``spark.ui.enabled``); ``sc.uiWebUrl`` is its address, from port
    4040. With a local master, it is accessible only from this machine, unless the environment sets
    ``SPARK_LOCAL_IP``.

    Args:
        app_name: name of the application.
        master: Spark master. None: that of *conf*, spark-submit or the machine, else
            ``local[*,4]``.
        conf: settings that override these. Settings of spark-submit, ``PYSPARK_SUBMIT_ARGS`` and
            ``spark-defaults.conf`` override them too. Name and master as arguments override all
            others, as in :class:`pyspark.SparkContext`. Give JVM options in
            ``spark.driver.extraJavaOptions``, which are added to these.
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
    """Return the options of a launched JVM; they respect a log4j2.properties of the machine."""
    has_own_logging = (spark_conf_directory() / "log4j2.properties").exists()
    return _NO_PROGRESS if has_own_logging else f"{_NO_PROGRESS} {ERRORS_ONLY}"


def tuned_settings(master: str, python: str | None = None) -> dict[str, str]:
    """Return the settings of :func:`tuned_conf` without the JVM options.

    Args:
        master: Spark master.
        python: the value of ``spark.pyspark.python``, if set.
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
    """Let workers run *python* or the driver's interpreter, unless the environment sets one."""
    os.environ.setdefault("PYSPARK_PYTHON", _python_of_workers(python))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _python_of_workers(python: str | None) -> str:
    return os.environ.get("PYSPARK_PYTHON") or python or sys.executable


@contextlib.contextmanager
def starting_spark() -> Iterator[None]:
    """Explain errors when Spark starts, and delay a Ctrl-C to the end of the block.

    A KeyboardInterrupt while PySpark waits for its JVM would leave a JVM running.
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
        if signal.getsignal(signal.SIGINT) is note:  # otherwise PySpark has set its own
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if pressed.is_set():
        raise KeyboardInterrupt


def warn_if_untuned(sc: SparkContext) -> None:
    """Log a warning, once per local context, if its workers use TCP instead of Unix sockets.

    On a cluster, each host would need a private directory for the sockets.
    """
    if sc in _warned or not _has_unix_sockets() or not is_local_master(sc.master):
        return
    # PySpark reads this variable if the setting is absent.
    default = os.environ.get("PYSPARK_UDS_MODE", "false")
    if str(sc.getConf().get(UNIX_SOCKETS, default)).lower() == "true":
        return
    _warned.add(sc)
    _log.warning(
        "the Python workers of this SparkContext use TCP, which costs about 40 ms per task; use "
        "dstreams.tuned_context, or set %s=true and %s to a directory that only "
        "this user can enter",
        UNIX_SOCKETS,
        SOCKET_DIRECTORY,
    )


def require_spark() -> None:
    """Refuse a version of PySpark that is not supported."""
    if not _OLDEST_SPARK <= _spark_version() < _NEXT_SPARK:
        raise EnvironmentNotReadyError(
            f"pyspark {pyspark.__version__} is installed, but dstreams needs 3.5 or newer and "
            "older than 5; run: python -m pip install 'pyspark>=3.5,<5'"
        )


def require_running(spark: SparkContext) -> None:
    """Raise EnvironmentNotReadyError if the program or the cluster has stopped a SparkContext."""
    if spark._jsc is None:
        raise EnvironmentNotReadyError(
            f"the SparkContext of {spark.appName!r} has been stopped, as by ssc.stop() without "
            "stopSparkContext=False; start another one, for example by tuned_context(name)"
        )
    reason = end_of_application(spark)
    if reason is not None:
        raise EnvironmentNotReadyError(
            f"Spark has ended the application {spark.appName!r}: {reason}; see the logs of "
            "Spark, of the cluster's master and of the executors"
        )


def _require_no_other() -> None:
    running = SparkContext._active_spark_context
    if running is not None:
        raise EnvironmentNotReadyError(
            f"this process already has a SparkContext, {running.appName!r} at {running.master}, "
            "and can have only one; SparkContext.getOrCreate() returns it; call its stop() first "
            "to start one with other settings"
        )


def require_java() -> None:
    """Check once per process that Java can run the installed PySpark.

    Spark uses ``JAVA_HOME``, else ``PATH``. A ``spark-env.sh`` may choose another Java, so nothing
    is checked if there is one.

    Raises:
        EnvironmentNotReadyError: Java is missing, does not answer within 10 s, or is older than
            required (17 for PySpark 4, 8 for 3.5).
    """
    if (spark_conf_directory() / "spark-env.sh").exists():
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise _java_error("JAVA_HOME is not set and PATH has no java")
    if home and not os.access(java, os.X_OK):
        raise _java_error(f"JAVA_HOME is {home!r} and {java} is not executable")
    _require_java_at(java, "JAVA_HOME" if home else "PATH")


@functools.cache  # caches only success: failures are checked again
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
            f"{java} (from {found_in}) exited with {answer.returncode} and printed {line!r}"
        )
    if major < _java_needed():
        raise _java_error(f"{java} (from {found_in}) is Java {major}")


def _java_major(text: str) -> int | None:
    """Parse the major version from ``java -version``: 17 of ``17.0.15``, 8 of ``1.8.0_292``."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def _java_needed() -> int:
    return 17 if _spark_version() >= (4, 0) else 8


def _java_error(found: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"PySpark {pyspark.__version__} needs Java {_java_needed()} or newer, but {found}; "
        "install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17) or set JAVA_HOME to its directory"
    )


def _spark_version() -> tuple[int, int]:
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def _has_unix_sockets() -> bool:
    return hasattr(socket, "AF_UNIX") and _spark_version() >= _SPARK_WITH_UNIX_SOCKETS


def submit(settings: Mapping[str, str]) -> None:
    """Add *settings* to this process, with the same precedence as those of spark-submit."""
    _of_command.update(settings)


def _submitted() -> dict[str, str]:
    """Return the settings of spark-submit, or of :func:`submit`."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return dict(_of_command)
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def has_jvm() -> bool:
    """Return whether this process already has a JVM, its own or that of spark-submit."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def launch_jvm(conf: SparkConf, *, is_local: bool) -> Any:
    """Launch a JVM, forward its standard error to ours, and return its gateway.

    If *is_local*, it listens only on the loopback address, unless the environment sets another one:
    Spark would bind its UI to all addresses.
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
    """Set environment *variables* in the block."""
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
    """Return whether Spark runs entirely on this machine with this master."""
    return master is not None and master.startswith("local")


def _forward_errors(read_fd: int) -> None:
    """Copy lines from *read_fd* to standard error until its end, except for known noise."""
    rest = b""
    # Not a buffered file: a daemon thread may hold its lock when the interpreter exits.
    while chunk := os.read(read_fd, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(_NOISE):
                note_line_of_log(line)
                _write_error(line + b"\n")
    _write_error(rest)
    os.close(read_fd)


def _write_error(text: bytes) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(2, text)


def machine_settings() -> dict[str, str]:
    """Return the settings that a launched JVM takes from the machine.

    In order of precedence: ``PYSPARK_SUBMIT_ARGS``, ``spark-defaults.conf``, and ``MASTER``. Empty
    under spark-submit, where the JVM runs already.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    options = list(_options(os.environ.get(SUBMIT_ARGS, "")))
    files = [Path(value) for key, value in options if key == _FILE]
    settings = {"spark.master": os.environ[MASTER]} if os.environ.get(MASTER) else {}
    for path in files or [spark_conf_directory() / "spark-defaults.conf"]:
        with contextlib.suppress(OSError):
            settings |= dict(_PROPERTY.findall(path.read_text(encoding="utf-8", errors="replace")))
    return settings | {key: value for key, value in options if key != _FILE}


def spark_conf_directory() -> Path:
    """Return Spark's configuration directory, which need not exist."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))


def _options(arguments: str) -> Iterator[tuple[str, str]]:
    """Yield the settings and properties files among the arguments of spark-submit."""
    words = iter(shlex.split(arguments))
    for word in words:
        option, equals, value = word.partition("=")
        if option not in (*_OPTIONS, *_CONF, _FILE):
            continue
        value = value if equals else next(words, "")
        if option in _CONF:
            key, _, value = value.partition("=")
            yield key, value
        else:
            yield _OPTIONS.get(option, option), value

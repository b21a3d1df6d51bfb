"""Runs a program as Python would, with dstreams in place of ``pyspark.streaming``.

:class:`TunedSpark` gives a SparkContext that the program creates the tuned settings. It replaces
the methods in which PySpark launches its JVM and initializes a context. Precedence: settings of the
program, then options of ``dstreams run``, then ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``
as in every PySpark program, then the tuned settings, which are reported.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import TracebackException
from types import TracebackType
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from dstreams.common.imports import shadow_in
from dstreams.common.settings import UI_ENABLED
from dstreams.compat import modules
from dstreams.context import StreamingContext
from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, StreamError
from dstreams.monitoring.registry import registry
from dstreams.monitoring.web.page import page
from dstreams.spark.failures import make_brief
from dstreams.spark.spark_context import (
    DEFAULT_MASTER,
    ERRORS_ONLY,
    JVM_OPTIONS,
    MASTER,
    SOCKET_DIRECTORY,
    SUBMIT_ARGS,
    UNIX_SOCKETS,
    WORKER_DAEMON,
    choose_python,
    environment,
    has_jvm,
    is_local_master,
    jvm_options,
    launch_jvm,
    machine_settings,
    require_java,
    require_spark,
    starting_spark,
    submit,
    tuned_settings,
)

_COLUMNS = 80
_OPTIONS = {"spark.master": "--master", "spark.app.name": "--name"}
_PROGRESS = "spark.ui.showConsoleProgress"
_PYTHON = "PYSPARK_PYTHON"
_REASONS: Mapping[str, str] = {
    "spark.master": "all cores, and a failed task is retried",
    JVM_OPTIONS: "the JVM logs errors only",
    "spark.driver.bindAddress": "Spark listens on this machine only",
    _PROGRESS: "Spark draws no progress bars over the output of the program",
    "spark.port.maxRetries": "up to that many pages on one host",
    "spark.shuffle.compress": "data that stays on this machine is not compressed",
    "spark.python.task.killTimeout": "a cancelled task stops within half a second",
    UNIX_SOCKETS: "workers answer about 40 ms sooner",
    WORKER_DAEMON: "workers start with dstreams loaded",
    UI_ENABLED: "the live page of dstreams is on",
    _PYTHON: "workers run the interpreter of the program",
}
_REPORTED_WITH = {"spark.driver.host": "spark.driver.bindAddress", SOCKET_DIRECTORY: UNIX_SOCKETS}
_WITHOUT_VALUE = (JVM_OPTIONS, _PYTHON)


def run_program(
    program: Path,
    arguments: Sequence[str],
    submitted: Mapping[str, str],
    *,
    is_quiet: bool = False,
    is_as_spark: bool = False,
    adopts: str | None = None,
    states: Mapping[str, str] | None = None,
) -> int:
    """Run the file *program* as the main program of this process.

    Its name, arguments and path are those of ``python PROGRAM ARGUMENTS...``. Unless *is_quiet*,
    restarts show their progress on a terminal, and changed defaults of Spark are printed. Its
    contexts take over the checkpoint *adopts* of Spark, or only *states* in it.

    Returns:
        0, or 1 after an exception, whose traceback was printed.

    Raises:
        EnvironmentNotReadyError: Java or Spark is missing on this machine.
        InvalidStreamError: a file in the program's directory hides a package of dstreams.
        KeyboardInterrupt: the program was interrupted and did not handle it.
        SystemExit: the program raised it.
    """
    require_spark()
    is_searched = not getattr(sys.flags, "safe_path", False)  # as with python -P
    problem = shadow_in(str(program.resolve().parent)) if is_searched else None
    if problem is not None:
        raise InvalidStreamError(problem)
    modules.install()
    page.prints = not is_quiet
    registry().shows_restarts = not (is_quiet or is_as_spark)
    TunedSpark(submitted, program.name, not is_quiet, is_as_spark).install()
    StreamingContext._adopts, StreamingContext._adopts_states = adopts, states
    sys.argv[:] = [str(program), *arguments]
    if is_searched:
        sys.path[0] = str(program.resolve().parent)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except EnvironmentNotReadyError:
        raise
    except Exception as error:
        error.__traceback__ = _frames_of(program, error.__traceback__)
        _print(error)
        if isinstance(error, SyntaxError) and error.filename == str(program):
            sys.stderr.write(f"dstreams run: if it is Python 2, see dstreams check {program}\n")
        return 1
    return 0


def _print(error: Exception) -> None:
    """Print an exception as Python does; one of dstreams without internal frames and its cause.

    The message of those is enough to act on. An excepthook of the program gets everything.
    """
    if sys.excepthook is not sys.__excepthook__ or not isinstance(error, StreamError):
        sys.excepthook(type(error), error, error.__traceback__)
        return
    make_brief(error)
    printed = TracebackException.from_exception(error)
    printed.__cause__ = None
    sys.stderr.write("".join(printed.format()))


def _frames_of(program: Path, frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from that of the program on; None if it was not entered."""
    while frames is not None and frames.tb_frame.f_code.co_filename != str(program):
        frames = frames.tb_next
    return frames


@dataclass
class TunedSpark:
    """The settings of a SparkContext that the program creates."""

    submitted: Mapping[str, str]  # settings from the command line
    app_name: str  # default name of the application
    shows_defaults: bool = True  # print the changed defaults
    is_as_spark: bool = False  # keep all defaults of Spark
    _changed: dict[str, str] = field(default_factory=dict)
    _has_reported: bool = False
    _master: str | None = None

    def install(self) -> None:
        """Apply to every SparkContext of this process from now on."""
        submit(self.submitted)  # for contexts made by tuned_context or a restart
        ensure_initialized = SparkContext._ensure_initialized
        initialize = SparkContext._initialize_context

        def new(
            cls: type[SparkContext], master: str | None = None, *_: object, **__: object
        ) -> SparkContext:
            # Wrapping __init__ would put a frame into the stack that Spark searches for the caller.
            self._master = master
            context: SparkContext = object.__new__(cls)
            return context

        def ensure(
            cls: type[SparkContext],
            instance: SparkContext | None = None,
            gateway: Any = None,
            conf: SparkConf | None = None,
        ) -> None:
            with SparkContext._lock:
                if gateway is None and SparkContext._gateway is None:
                    gateway = self._launch(conf, None if instance is None else self._master)
                ensure_initialized(instance=instance, gateway=gateway, conf=conf)

        def tune(context: SparkContext, jconf: Any) -> Any:
            if not self.is_as_spark:
                self._tune(jconf)
            return initialize(context, jconf)

        spark: Any = SparkContext
        spark.__new__ = staticmethod(new)
        spark._ensure_initialized = classmethod(ensure)
        spark._initialize_context = tune

    def _tune(self, jconf: Any) -> None:
        for key, value in {**tuned_settings(jconf.get("spark.master")), UI_ENABLED: "true"}.items():
            if not jconf.contains(key):
                jconf.set(key, value)
                self._changed[key] = value
        if self.shows_defaults and not self._has_reported:
            self._has_reported = True
            sys.stderr.write(changed_defaults(self._changed))

    def _launch(self, conf: SparkConf | None, master: str | None) -> Any:
        """Launch a JVM and return its gateway; None for PySpark to use that of spark-submit.

        Raises:
            EnvironmentNotReadyError: Java is missing, or Spark does not start.
            KeyboardInterrupt: Ctrl-C was pressed; the JVM has been ended.
        """
        of_machine = machine_settings()
        given = dict(conf.getAll()) if conf is not None else {}
        if not self.is_as_spark:
            self._choose_python(
                {**of_machine, **self.submitted, **given}.get("spark.pyspark.python")
            )
        if has_jvm():
            return None
        gateway = None
        try:
            with starting_spark():
                require_java()
                if self.is_as_spark:
                    gateway = self._launch_as_spark(given)
                else:
                    gateway = self._launch_tuned(given, master, of_machine)
        except KeyboardInterrupt:
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
            raise
        return gateway

    def _choose_python(self, named: str | None) -> None:
        if named is None and _PYTHON not in os.environ:
            self._changed[_PYTHON] = sys.executable
        choose_python(named)

    def _known_master(self, given: Mapping[str, str], of_machine: Mapping[str, str]) -> str | None:
        """Return the master that Spark uses if the program passes none as an argument."""
        return {**of_machine, **self.submitted, **given}.get("spark.master")

    def _launch_tuned(
        self, given: Mapping[str, str], master: str | None, of_machine: Mapping[str, str]
    ) -> Any:
        known = master or self._known_master(given, of_machine)
        if known is None:
            self._changed["spark.master"] = DEFAULT_MASTER
        tuned = {"spark.app.name": self.app_name, JVM_OPTIONS: jvm_options()}
        left = {key: value for key, value in tuned.items() if key not in of_machine}
        named = {**left, **self.submitted, **given}
        if ERRORS_ONLY in named.get(JVM_OPTIONS, ""):
            self._changed[JVM_OPTIONS] = ERRORS_ONLY
        if JVM_OPTIONS in left and _PROGRESS not in {**of_machine, **named}:
            self._changed[_PROGRESS] = "false"
        conf = SparkConf(loadDefaults=False).setAll(list({**left, **given}.items()))
        with environment({**self._arguments(), MASTER: os.environ.get(MASTER) or DEFAULT_MASTER}):
            return launch_jvm(conf, is_local=is_local_master(known or DEFAULT_MASTER))

    def _launch_as_spark(self, given: Mapping[str, str]) -> Any:
        conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
        with environment(self._arguments()):
            return launch_gateway(conf)

    def _arguments(self) -> dict[str, str]:
        return {SUBMIT_ARGS: _after_arguments(os.environ.get(SUBMIT_ARGS), self.submitted)}


def _after_arguments(arguments: str | None, settings: Mapping[str, str]) -> str:
    """Return arguments of spark-submit with *settings* after their options, to override them."""
    *options, shell = shlex.split(arguments or "") or ["pyspark-shell"]
    for key, value in settings.items():
        option = _OPTIONS.get(key)
        options += [option, value] if option else ["--conf", f"{key}={value}"]
    return shlex.join([*options, shell])


def changed_defaults(changed: Mapping[str, str]) -> str:
    """Return a report of *changed* settings, a line or two each; empty without changes.

    Settings that belong together, such as the two addresses of a driver, share a line.
    """
    shown = [key for key in _REASONS if key in changed or key in map(_REPORTED_WITH.get, changed)]
    if not shown:
        return ""
    lines = ["dstreams changes these defaults (none with --spark-defaults):"]
    for key in shown:
        has_value = key in changed and key not in _WITHOUT_VALUE
        named = f"{key}={changed[key]}" if has_value else key
        lines += textwrap.wrap(
            f"{named}: {_REASONS[key]}",
            _COLUMNS,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "".join(f"{line}\n" for line in lines)

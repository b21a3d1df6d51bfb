"""Settings under a SparkContext that a program makes itself: tuned ones, which lose to all others.

PySpark asks for its JVM in one place and starts a context on it in another, both methods of
SparkContext; :class:`TunedSpark` stands in both. From the strongest: what the program sets, what
the command line of ``dstreams run`` says, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf`` as in
every PySpark program, and at last the tuned settings.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import SparkConf, SparkContext

from dstreams.rdd.context import (
    DEFAULT_MASTER,
    ERRORS_ONLY,
    JVM_OPTIONS,
    choose_python,
    has_jvm,
    launch_jvm,
    require_java,
    spark_conf_directory,
    starting_spark,
    tuned_settings,
)

_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_MASTER = "MASTER"  # where spark-submit looks when options and spark-defaults.conf have none
_OPTIONS = {"spark.master": "--master", "spark.app.name": "--name"}

# As a property of the JVM, because spark-submit shows progress to us where nothing is said.
_NO_PROGRESS = "-Dspark.ui.showConsoleProgress=false"


@dataclass(frozen=True)
class TunedSpark:
    """What a SparkContext gets that the program makes."""

    submitted: Mapping[str, str]
    app_name: str

    def install(self) -> None:
        """Stand where every SparkContext of this process is made from now on."""
        ensure_initialized = SparkContext._ensure_initialized
        initialize = SparkContext._initialize_context

        def ensure(
            cls: type[SparkContext],
            instance: SparkContext | None = None,
            gateway: Any = None,
            conf: SparkConf | None = None,
        ) -> None:
            with SparkContext._lock:
                if gateway is None and SparkContext._gateway is None:
                    gateway = self._launch(conf)
                ensure_initialized(instance=instance, gateway=gateway, conf=conf)

        def tune(context: SparkContext, jconf: Any) -> Any:
            for key, value in tuned_settings(jconf.get("spark.master")).items():
                jconf.setIfMissing(key, value)
            return initialize(context, jconf)

        spark: Any = SparkContext
        spark._ensure_initialized = classmethod(ensure)
        spark._initialize_context = tune

    def _launch(self, conf: SparkConf | None) -> Any:
        """Launch a JVM and return its gateway; None for PySpark to use that of spark-submit.

        Raises:
            EnvironmentNotReadyError: there is no Java, or Spark does not start.
            KeyboardInterrupt: Ctrl-C was pressed meanwhile; the JVM is ended again.
        """
        defaults = {"spark.app.name": self.app_name, JVM_OPTIONS: _jvm_options()}
        given = {**defaults, **(dict(conf.getAll()) if conf is not None else {})}
        choose_python({**self.submitted, **given}.get("spark.pyspark.python"))
        if has_jvm():
            return None
        gateway = None
        try:
            with starting_spark():
                require_java()
                gateway = self._launch_jvm(given)
        except KeyboardInterrupt:
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
            raise
        return gateway

    def _launch_jvm(self, given: Mapping[str, str]) -> Any:
        conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
        variables = {
            _SUBMIT_ARGS: _after_arguments(os.environ.get(_SUBMIT_ARGS), self.submitted),
            _MASTER: os.environ.get(_MASTER, DEFAULT_MASTER),
        }
        with _environment(variables):
            return launch_jvm(conf)


def _jvm_options() -> str:
    has_own_logging = (spark_conf_directory() / "log4j2.properties").exists()
    return _NO_PROGRESS if has_own_logging else f"{_NO_PROGRESS} {ERRORS_ONLY}"


def _after_arguments(arguments: str | None, settings: Mapping[str, str]) -> str:
    """Return arguments of spark-submit with *settings* behind their options, so that these win."""
    *options, shell = shlex.split(arguments or "") or ["pyspark-shell"]
    for key, value in settings.items():
        option = _OPTIONS.get(key)
        options += [option, value] if option else ["--conf", f"{key}={value}"]
    return shlex.join([*options, shell])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
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

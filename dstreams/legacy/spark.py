"""Settings under a SparkContext that a program makes itself: tuned ones, which lose to all others.

PySpark asks for its JVM in one place and starts a context on it in another, both methods of
SparkContext; :class:`TunedSpark` stands in both. From the strongest: what the program sets, what
the command line of ``dstreams run`` says, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf`` as in
every PySpark program, and at last the tuned settings.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import SparkConf, SparkContext

from dstreams.rdd.context import (
    DEFAULT_MASTER,
    ERRORS_ONLY,
    JVM_OPTIONS,
    choose_python,
    environment,
    has_jvm,
    is_local_master,
    launch_jvm,
    require_java,
    spark_conf_directory,
    starting_spark,
    submit,
    tuned_settings,
)
from dstreams.settings import UI_ENABLED

_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_MASTER = "MASTER"  # where spark-submit looks when options and spark-defaults.conf have none
_MASTER_IN_TEXT = re.compile(r"^(?:.*\s)?(?:--master|spark\.master)[\s=:]+(\S+)", re.MULTILINE)
_OPTIONS = {"spark.master": "--master", "spark.app.name": "--name"}

# As a property of the JVM, because spark-submit shows progress to us where nothing is said.
_NO_PROGRESS = "-Dspark.ui.showConsoleProgress=false"


@dataclass(frozen=True)
class TunedSpark:
    """What a SparkContext gets that the program makes."""

    submitted: Mapping[str, str]
    app_name: str
    shows_progress: bool = True

    def install(self) -> None:
        """Stand where every SparkContext of this process is made from now on."""
        submit(self.submitted)  # for those that the program makes by tuned_context, or a restart
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
                    # SparkContext.__init__ calls this, and hands its other arguments to nobody.
                    master = None if instance is None else sys._getframe(1).f_locals.get("master")
                    gateway = self._launch(conf, master)
                ensure_initialized(instance=instance, gateway=gateway, conf=conf)

        def tune(context: SparkContext, jconf: Any) -> Any:
            for key, value in tuned_settings(jconf.get("spark.master")).items():
                jconf.setIfMissing(key, value)
            jconf.setIfMissing(UI_ENABLED, "true")
            shown = "true" if self.shows_progress else "false"
            jconf.setIfMissing("spark.dstreams.showConsoleProgress", shown)
            return initialize(context, jconf)

        spark: Any = SparkContext
        spark._ensure_initialized = classmethod(ensure)
        spark._initialize_context = tune

    def _launch(self, conf: SparkConf | None, master: str | None) -> Any:
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
                gateway = self._launch_jvm(given, master or self._known_master(given))
        except KeyboardInterrupt:
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
            raise
        return gateway

    def _known_master(self, given: Mapping[str, str]) -> str:
        """Return the master that Spark will find where the program names none as an argument."""
        master = given.get("spark.master") or self.submitted.get("spark.master")
        if master is not None:
            return master
        texts = [os.environ.get(_SUBMIT_ARGS, "")]
        with suppress(OSError):
            texts.append((spark_conf_directory() / "spark-defaults.conf").read_text())
        found = (_MASTER_IN_TEXT.search(text) for text in texts)
        named = next((match.group(1) for match in found if match is not None), None)
        return named or os.environ.get(_MASTER, DEFAULT_MASTER)

    def _launch_jvm(self, given: Mapping[str, str], master: str) -> Any:
        conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
        variables = {
            _SUBMIT_ARGS: _after_arguments(os.environ.get(_SUBMIT_ARGS), self.submitted),
            _MASTER: os.environ.get(_MASTER, DEFAULT_MASTER),
        }
        with environment(variables):
            return launch_jvm(conf, is_local=is_local_master(master))


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

"""Settings under a SparkContext that a program makes itself: tuned ones, which lose to all others.

PySpark asks for its JVM in one place and starts a context on it in another, both methods of
SparkContext; :class:`TunedSpark` stands in both. From the strongest: what the program sets, what
the command line of ``dstreams run`` says, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf`` as in
every PySpark program, and at last the tuned settings; they are told, and may be left as Spark has
them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from dstreams.common.settings import UI_ENABLED
from dstreams.compat.changed_defaults import PYTHON, changed_defaults
from dstreams.spark.context import (
    DEFAULT_MASTER,
    ERRORS_ONLY,
    JVM_OPTIONS,
    choose_python,
    environment,
    has_jvm,
    is_local_master,
    jvm_options,
    launch_jvm,
    require_java,
    starting_spark,
    submit,
    tuned_settings,
)
from dstreams.spark.machine_settings import MASTER, SUBMIT_ARGS, machine_settings

_OPTIONS = {"spark.master": "--master", "spark.app.name": "--name"}
_PYTHON, _PROGRESS = "spark.pyspark.python", "spark.ui.showConsoleProgress"


@dataclass
class TunedSpark:
    """What a SparkContext gets that the program makes.

    Args:
        submitted: what the command line says.
        app_name: name of an application that has none.
        shows_progress: whether restarts show how far they are, and changed defaults are told.
        is_as_spark: whether no default of Spark is changed.
    """

    submitted: Mapping[str, str]
    app_name: str
    shows_progress: bool = True
    is_as_spark: bool = False
    _changed: dict[str, str] = field(default_factory=dict)
    _has_told: bool = False
    _master: str | None = None

    def install(self) -> None:
        """Stand where every SparkContext of this process is made from now on."""
        submit(self.submitted)  # for those that the program makes by tuned_context, or a restart
        ensure_initialized = SparkContext._ensure_initialized
        initialize = SparkContext._initialize_context

        def new(
            cls: type[SparkContext], master: str | None = None, *_: object, **__: object
        ) -> SparkContext:
            # It gets what __init__ gets, and is not in the stack that Spark searches for a caller.
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
        shown = "true" if self.shows_progress else "false"
        jconf.setIfMissing("spark.dstreams.showConsoleProgress", shown)
        if self.shows_progress and not self._has_told:
            self._has_told = True
            sys.stderr.write(changed_defaults(self._changed))

    def _launch(self, conf: SparkConf | None, master: str | None) -> Any:
        """Launch a JVM and return its gateway; None for PySpark to use that of spark-submit.

        Raises:
            EnvironmentNotReadyError: there is no Java, or Spark does not start.
            KeyboardInterrupt: Ctrl-C was pressed meanwhile; the JVM is ended again.
        """
        of_machine = machine_settings()
        given = dict(conf.getAll()) if conf is not None else {}
        if not self.is_as_spark:
            self._choose_python({**of_machine, **self.submitted, **given}.get(_PYTHON))
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
        if named is None and PYTHON not in os.environ:
            self._changed[PYTHON] = sys.executable
        choose_python(named)

    def _known_master(self, given: Mapping[str, str], of_machine: Mapping[str, str]) -> str | None:
        """Return the master that Spark will find where the program names none as an argument."""
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
    """Return arguments of spark-submit with *settings* behind their options, so that these win."""
    *options, shell = shlex.split(arguments or "") or ["pyspark-shell"]
    for key, value in settings.items():
        option = _OPTIONS.get(key)
        options += [option, value] if option else ["--conf", f"{key}={value}"]
    return shlex.join([*options, shell])

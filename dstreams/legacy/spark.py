"""Settings under a SparkContext that a program makes itself: tuned ones, which lose to all others.

PySpark asks for its JVM in one place and starts a context on it in another, both methods of
SparkContext; :class:`TunedSpark` stands in both. From the strongest: what the program sets, what
the command line of ``dstreams run`` says, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf`` as in
every PySpark program, and at last the tuned settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from dstreams.errors import EnvironmentNotReadyError
from dstreams.rdd.context import (
    DEFAULT_MASTER,
    QUIET_JVM,
    choose_python,
    has_jvm,
    interrupt_put_off,
    launch_jvm,
    require_java,
    spark_conf_directory,
    tuned_settings,
)
from dstreams.rdd.failures import summarize

_MASTER = "MASTER"


@dataclass(frozen=True)
class TunedSpark:
    """What a SparkContext gets that the program makes.

    Args:
        submitted: settings of the command line.
        app_name: name of the application, if nothing else gives one.
    """

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
        given = dict(conf.getAll()) if conf is not None else {}
        settings = {"spark.app.name": self.app_name, **self.submitted, **given}
        if not Path(spark_conf_directory(), "log4j2.properties").exists():
            settings = {**QUIET_JVM, **settings}
        choose_python(settings.get("spark.pyspark.python"))
        if has_jvm():
            return None
        gateway = None
        try:
            with interrupt_put_off():
                require_java()
                gateway = _launch(SparkConf(loadDefaults=False).setAll(list(settings.items())))
        except KeyboardInterrupt:
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
            raise
        return gateway


def _launch(conf: SparkConf) -> Any:
    try:
        with _default_master():
            return launch_jvm(conf)
    except (OSError, Py4JError, PySparkException) as error:
        raise EnvironmentNotReadyError(
            f"Spark could not be started on this machine: {summarize(error)}"
        ) from error


@contextmanager
def _default_master() -> Iterator[None]:
    """Let spark-submit choose our master where options and spark-defaults.conf name none."""
    before = os.environ.get(_MASTER)
    os.environ.setdefault(_MASTER, DEFAULT_MASTER)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_MASTER, None)

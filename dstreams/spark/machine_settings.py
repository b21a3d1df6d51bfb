"""Settings of Spark that are given outside of a program: to its process, or to the machine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
MASTER = "MASTER"
"""Where spark-submit looks for a master when options and spark-defaults.conf have none."""

_OPTIONS = {"--master": "spark.master", "--name": "spark.app.name"}
_CONF, _FILE = ("--conf", "-c"), "--properties-file"
_PROPERTY = re.compile(r"^[ \t]*([^\s=:#!][^\s=:]*)[ \t]*[=: \t][ \t]*(.*?)[ \t\r]*$", re.MULTILINE)


def machine_settings() -> dict[str, str]:
    """Return what a JVM that is launched here will be told whatever the program says.

    From the strongest: ``PYSPARK_SUBMIT_ARGS``, ``spark-defaults.conf``, and ``MASTER``. Under
    spark-submit there is nothing of it: the JVM has its settings already.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    options = list(_options(os.environ.get(SUBMIT_ARGS, "")))
    files = [Path(value) for key, value in options if key == _FILE]
    settings = {"spark.master": os.environ[MASTER]} if os.environ.get(MASTER) else {}
    for path in files or [spark_conf_directory() / "spark-defaults.conf"]:
        with suppress(OSError):
            settings |= dict(_PROPERTY.findall(path.read_text(encoding="utf-8", errors="replace")))
    return settings | {key: value for key, value in options if key != _FILE}


def spark_conf_directory() -> Path:
    """Return the directory where Spark looks for its configuration; it need not exist."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))


def _options(arguments: str) -> Iterator[tuple[str, str]]:
    """Yield the settings among arguments of spark-submit, and the files that it reads them of."""
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

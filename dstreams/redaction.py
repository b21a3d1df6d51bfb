"""Which settings are secret: neither written to a checkpoint nor printed.

Spark's own rule counts: ``spark.redaction.regex`` searches names and values. Variables for
executors (``API_KEY``, ``DB_PASS``) and passwords in URLs and options escape it, so they are added
here. A value of ``true`` or ``false`` is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

REGEX_KEY = "spark.redaction.regex"
DEFAULT_REGEX = "(?i)secret|password|token|access[.]?key|credential"
"""Where ``spark.redaction.regex`` is not set, as in Spark 4.3; that of 3.5 finds less."""

_NAME = re.compile(
    DEFAULT_REGEX + r"|passphrase|passwd|(?<!by)pass(?![a-z])|(?<![a-z])pwd|\.sas\.|key$"
    r"|(access|private|account|encryption|api|signing)[._-]?key"
    r"|(?<![a-z])(auth|authorization)(?![a-z])|(?<![a-z])sig(nature)?$"
)
_ASSIGNED = re.compile(r"([\w.-]+)[\"']?\s*[=:]")
"""Names in a value, such as ``-Dname=`` or ``name=`` or ``"name":``."""
USER_IN_URL = re.compile(r"://[^/\s]*:\S*@")
_FLAGS = ("true", "false")


def secret_settings(settings: Mapping[str, str]) -> Callable[[str, str], bool]:
    """Return the function that says whether a setting, by its name and value, is secret."""
    of_spark = _compiled(settings.get(REGEX_KEY, DEFAULT_REGEX))

    def is_secret(name: str, value: str) -> bool:
        if name == REGEX_KEY or value.strip().lower() in _FLAGS:
            return False
        return bool(
            of_spark.search(name)
            or of_spark.search(value)
            or _NAME.search(name)
            or any(_NAME.search(assigned) for assigned in _ASSIGNED.findall(value))
            or USER_IN_URL.search(value)
        )

    return is_secret


def _compiled(regex: str) -> re.Pattern[str]:
    """Compile a regex of Java; what only Java understands hides every setting."""
    try:
        return re.compile(regex)
    except re.error:
        return re.compile("")

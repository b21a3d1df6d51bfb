"""Which settings are secret: neither written to a checkpoint nor printed; also within texts.

Spark's own rule counts: ``spark.redaction.regex`` searches names and values. Variables for
executors (``API_KEY``, ``DB_PASS``) and passwords in URLs and options escape it, so they are added
here. A value of ``true`` or ``false`` is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from checkpoint import without_secrets

REGEX_KEY = "spark.redaction.regex"
DEFAULT_REGEX = "(?i)secret|password|token|access[.]?key|credential"
"""Where ``spark.redaction.regex`` is not set, as in Spark 4.3; that of 3.5 finds less."""

REDACTED = "*********(redacted)"
"""What stands in the place of a secret, as in Spark."""

_NAME_IN_TEXT = re.compile(
    DEFAULT_REGEX + r"|passphrase|passwd|(?<!by)pass(?![a-z])|(?<![a-z])pwd|\.sas\."
    r"|(access|private|account|encryption|api|signing)[._-]?key"
    r"|(?<![a-z])(auth|authorization)(?![a-z])|(?<![a-z])sig(nature)?$"
)
_NAME = re.compile(_NAME_IN_TEXT.pattern + r"|key$")
"""Of settings alone: the key in what an error says is that of a record."""
_ASSIGNED = re.compile(r"([\w.-]+)[\"']?\s*[=:]")
"""Names in a value, such as ``-Dname=`` or ``name=`` or ``"name":``."""
USER_IN_URL = re.compile(r"://[^/\s]*:\S*@")
_QUOTED = r"\"[^\"\n]*\"|'[^'\n]*'"
_VALUES = (
    re.compile(rf"(?<![\w.-])([\w.-]+)(\s*=\s*)({_QUOTED}|[^\s\"',;&)\]}}]+)"),
    re.compile(rf"(?<=[\"'])([\w.-]+)([\"']\s*:\s*)({_QUOTED})"),
)
"""Named values in a text: ``name=value`` and ``"name": "value"``."""
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
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


def redacted(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings in the order of their names, with a mark in the place of secrets."""
    is_secret = secret_settings(settings)
    return {
        name: REDACTED if is_secret(name, value) else value
        for name, value in sorted(settings.items())
    }


class _Rule:
    """What ``spark.redaction.regex`` says in this process."""

    of_spark = re.compile(DEFAULT_REGEX)


def mask_by(settings: Mapping[str, str]) -> None:
    """Let ``spark.redaction.regex`` of *settings* count in :func:`masked`, in this process."""
    _Rule.of_spark = _compiled(settings.get(REGEX_KEY, DEFAULT_REGEX))


def masked(text: str) -> str:
    """Return what is told of an error without the secrets in it.

    These are what URLs have of them, and named values by the rule of settings. What a record holds
    is none as long as nothing says so.

    >>> masked("no user in host=db password='a b', key=7, {'token': 'x'}, s3://me:pw@bucket")
    "no user in host=db password=***, key=7, {'token': ***}, s3://me:***@bucket"
    """
    text = _BEARER.sub(r"\1 ***", without_secrets(text))
    for values in _VALUES:
        text = values.sub(_hidden, text)
    return text


def _hidden(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    rule = _Rule.of_spark
    if value.strip("\"'").lower() in _FLAGS:
        return found[0]
    is_secret = rule.search(name) or rule.search(value) or _NAME_IN_TEXT.search(name)
    return f"{name}{between}***" if is_secret else found[0]


def _compiled(regex: str) -> re.Pattern[str]:
    """Compile a regex of Java; what only Java understands hides every setting."""
    try:
        return re.compile(regex)
    except re.error:
        return re.compile("")

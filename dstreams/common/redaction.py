"""Redaction of secrets in settings and messages: secrets are neither stored nor printed.

Spark's own rule applies: ``spark.redaction.regex`` searches names and values. It misses variables
for executors (``API_KEY``, ``DB_PASS``) and passwords in URLs and options, so they are added here.
The values ``true`` and ``false`` are not secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from checkpoint import without_secrets

REGEX_KEY = "spark.redaction.regex"
DEFAULT_REGEX = "(?i)secret|password|token|access[.]?key|credential"
"""The default of ``spark.redaction.regex`` in Spark 4.3; the default of 3.5 matches less."""

REDACTED = "*********(redacted)"
"""The mark that replaces a secret, as in Spark."""

_NAME_IN_TEXT = re.compile(
    DEFAULT_REGEX + r"|passphrase|passwd|(?<!by)pass(?![a-z])|(?<![a-z])pwd|\.sas\."
    r"|(access|private|account|encryption|api|signing)[._-]?key"
    r"|(?<![a-z])(auth|authorization)(?![a-z])|user[._-]?info|(?<![a-z])sig(nature)?$"
)
_NAME = re.compile(_NAME_IN_TEXT.pattern + r"|key$")
"""Only for settings: in an error message, the key is that of a record."""
_ASSIGNED = re.compile(r"([\w.-]+)[\"']?\s*[=:]")
"""Names in a value, such as ``-Dname=`` or ``name=`` or ``"name":``."""
USER_IN_URL = re.compile(r"://[^/\s]*:\S*@")
_NAMED = re.compile(r"(?<![\w.-])(--?)?([\w.-]*\w)([\"']?)(\s*(?:=|:|->|,|\s)\s*)")
"""A name in a text, the quotation mark after it, and the separator before its value."""
_OPEN = r"[\[(]?(?:[bBuU](?=[\"']))?"
_SECRET_VALUE = re.compile(_OPEN + r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'&][^\s\"&]*|[\"']\S*)")
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&)\]}]+")
_CLOSERS = "\"',;)]}"
_ERROR_NAME = re.compile(r"(Error|Exception|Warning|Failure)$")
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*-----|\Z)", re.DOTALL
)
_COOKIE = re.compile(r"(?i)\b((?:set-)?cookie:\s*)[^\n]+")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_FLAGS = ("true", "false")
_SCHEMES = ("bearer", "basic")


def secret_settings(settings: Mapping[str, str]) -> Callable[[str, str], bool]:
    """Return a function of name and value that returns whether a setting is secret."""
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
    """Return settings sorted by name, with secrets replaced by a mark."""
    is_secret = secret_settings(settings)
    return {
        name: REDACTED if is_secret(name, value) else value
        for name, value in sorted(settings.items())
    }


class _Rule:
    """The value of ``spark.redaction.regex`` in this process."""

    of_spark = re.compile(DEFAULT_REGEX)


def mask_by(settings: Mapping[str, str]) -> None:
    """Apply ``spark.redaction.regex`` of *settings* in :func:`masked`, in this process."""
    _Rule.of_spark = _compiled(settings.get(REGEX_KEY, DEFAULT_REGEX))


def masked(text: str) -> str:
    """Return an error message with its secrets masked.

    Masks secrets in URLs, private keys, cookies, and values whose name is secret by the rule of
    settings: ``password=x``, ``password: x``, ``'password': b'x'``, ``--password x``. A value ends
    at its closing quotation mark, or at a space. Data of records without such a name is not masked,
    nor are sentences such as "the password is x".

    >>> masked("no user in host=db password='a b', key=7, {'token': 'x'}, s3://me:pw@bucket")
    "no user in host=db password=***, key=7, {'token': ***}, s3://me:***@bucket"
    """
    text = _PRIVATE_KEY.sub(r"\1***\2", without_secrets(text))
    text = _COOKIE.sub(r"\1***", _BEARER.sub(r"\1 ***", text))
    parts: list[str] = []
    done = seen = 0
    for found in _NAMED.finditer(text):
        if found.start() < seen:  # within a value
            continue
        value, is_hidden = _value(text, found)
        seen = found.end() + len(value) if value else seen
        if is_hidden:
            parts += text[done : found.end()], "***"
            done = seen
    return "".join([*parts, text[done:]])


def _value(text: str, found: re.Match[str]) -> tuple[str, bool]:
    """Return the value of a name, empty if it has none, and whether to mask it."""
    flag, name, quote, between = found.groups()
    sign = between.strip()
    if not _is_sign(sign, flag, quote):
        return "", False
    rule = _Rule.of_spark
    is_secret = rule.search(name) or _NAME_IN_TEXT.search(name)
    if not is_secret:
        is_named = sign == "=" or (sign == ":" and bool(quote))
        value = _VALUE.match(text, found.end()) if is_named else None
        return ("", False) if value is None else (value[0], _is_hidden_by(rule, value[0]))
    value = _SECRET_VALUE.match(text, found.end())
    if value is None or value[0].strip("\"'").lower() in _FLAGS:
        return "", False
    if sign == ":" and not quote and _ERROR_NAME.search(name):
        return "", False
    if sign != "=" and (not re.search(r"\w", value[0]) or value[0].lower() in _SCHEMES):
        return "", False
    is_quoted = value[0][-1] in "\"'" and len(value[0]) > 1
    return value[0] if is_quoted else value[0].rstrip(_CLOSERS), True


def _is_hidden_by(rule: re.Pattern[str], value: str) -> bool:
    return value.strip("\"'").lower() not in _FLAGS and rule.search(value) is not None


def _is_sign(sign: str, flag: str | None, quote: str) -> bool:
    """Return whether a value follows: after a comma only if quoted, after a space only a flag's."""
    if sign == ",":
        return bool(quote)
    return bool(sign) or flag == "--"


def _compiled(regex: str) -> re.Pattern[str]:
    """Compile a Java regex; if Python cannot, return one that hides every setting."""
    try:
        return re.compile(regex)
    except re.error:
        return re.compile("")

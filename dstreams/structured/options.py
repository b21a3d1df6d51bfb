"""Options of sources and sinks: found whatever the case of their letters, and looked at by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dstreams.errors import InvalidStreamError


def known_options(given: Mapping[str, Any], known: Sequence[str], what: str) -> dict[str, Any]:
    """Return options under the names that they have, whatever the case of their letters.

    Args:
        given: options, by name.
        known: names of those that there are.
        what: whose they are, for the message.

    Raises:
        InvalidStreamError: there is no such option.
    """
    names = {name.lower(): name for name in known}
    for key in given:
        if not isinstance(key, str) or key.lower() not in names:
            raise InvalidStreamError(f"{what} has no option {key!r}; there are {', '.join(known)}")
    return {names[key.lower()]: value for key, value in given.items()}


def as_path(value: object, name: str) -> str:
    """Return a path or URL as text.

    Raises:
        InvalidStreamError: it is neither, or empty.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path.strip():
        raise InvalidStreamError(f"{name} must be a path or a URL, got {value!r}")
    return path


def whole_number(value: object, name: str, least: int = 1) -> int:
    """Return a number that may be written as text.

    Raises:
        InvalidStreamError: it is no whole number of at least *least*.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < least:
        raise InvalidStreamError(
            f"{name} must be a whole number of at least {least}, got {value!r}"
        )
    return int(text)


def flag(value: object, name: str) -> bool:
    """Return what is true or false, and may be written as text.

    Raises:
        InvalidStreamError: it is neither.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidStreamError(f"{name} must be true or false, got {value!r}")
    return text == "true"

"""Settings of Kafka's clients as commands are given them: in a file, with the brokers beside it."""

from __future__ import annotations

from pathlib import Path

from dstreams.errors import InvalidStreamError
from dstreams.kafka.parameters import BROKERS


def client_settings(brokers: str | None, config: Path | None) -> dict[str, str]:
    """Return the settings of a file, with these brokers if there are any; empty for neither.

    Args:
        brokers: host and port of one or more; None or empty for those of the file.
        config: a file of lines ``name=value``; None for none.

    Raises:
        InvalidStreamError: the file cannot be read.
    """
    given = {} if config is None else _settings_in(config)
    return {**given, BROKERS: brokers} if brokers else given


def _settings_in(file: Path) -> dict[str, str]:
    """Read a file; no error says more of a line than its number."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidStreamError(f"{file} cannot be read: {type(error).__name__}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidStreamError(
                f"line {number} of {file} is no setting; write name=value, one a line"
            )
        found[name.strip()] = value.strip()
    return found

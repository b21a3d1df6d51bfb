"""Shared by the commands: exit statuses, error output, types of arguments."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUCCEEDED, FAILED, MISUSED, NOT_READY, INTERRUPTED = 0, 1, 2, 3, 130  # 2 is argparse's own


def complain(command: str, problem: object, status: int) -> int:
    """Write a problem to standard error, and return *status*."""
    sys.stderr.write(f"dstreams {command}: {problem}\n")
    return status


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add the option that turns progress off."""
    command.add_argument("--quiet", action="store_true", help="print only the result and errors")


def add_brokers(command: argparse.ArgumentParser, text: str) -> None:
    """Add the options for Kafka brokers and the settings of their clients."""
    command.add_argument("--bootstrap-server", type=brokers, metavar="HOST:PORT", help=text)
    command.add_argument(
        "--config", type=file, metavar="FILE", help="settings of the Kafka clients, with secrets"
    )


def add_states(command: argparse.ArgumentParser) -> None:
    """Add the argument ``--state``: states of Spark by uid."""
    command.add_argument(
        "--state",
        type=_state,
        action="append",
        default=[],
        metavar="UID=DIRECTORY",
        help="an updateStateByKey and the directory UUID/rdd-NUMBER with its state, if the graph "
        "of the checkpoint is lost; can be repeated",
    )


def _state(text: str) -> tuple[str, str]:
    uid, _, directory = text.partition("=")
    if not (uid and directory):
        raise argparse.ArgumentTypeError(f"{text!r} must be UID=DIRECTORY")
    return uid, directory


def number_type(
    least: float, unit: str, kind: Callable[[str], Any] = float
) -> Callable[[str], Any]:
    """Return the type of an argument that is a number of at least *least*."""

    def parsed(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(
                f"{text!r} must be a {what} of {unit}, at least {least}"
            )
        return value

    return parsed


def brokers(text: str) -> str:
    """Return *text* if it is a list of brokers."""
    for one in text.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise argparse.ArgumentTypeError(
                f"{text!r} must be HOST:PORT, or several separated by commas"
            )
    return text


def file(text: str) -> Path:
    """Return the path of an existing file."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {text!r}")
    return path

"""What the commands share: exit statuses, complaints, kinds of arguments."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TypeAlias

from checkpoint.cli.command_parser import CommandParser

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

SUCCEEDED, FAILED, MISUSED, NOT_READY, INTERRUPTED = 0, 1, 2, 3, 130  # 2 is argparse's own


def complain(command: str, problem: object, status: int) -> int:
    """Say on standard error what is wrong, and return *status*."""
    sys.stderr.write(f"dstreams {command}: {problem}\n")
    return status


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add the argument of a command that shows how far it is."""
    command.add_argument("--quiet", action="store_true", help="no progress: result and errors only")


def add_kafka(command: argparse._ActionsContainer, text: str) -> None:
    """Add the argument that says where Kafka is."""
    command.add_argument("--kafka", type=brokers, metavar="HOST:PORT", help=text)


def add_config(command: argparse.ArgumentParser) -> None:
    """Add the argument that names a file of settings of Kafka's clients."""
    command.add_argument(
        "--config", type=file, metavar="FILE", help="settings of Kafka's clients, with secrets"
    )


def megabytes(text: str) -> float:
    """Return how much data *text* says."""
    return _number(text, 0.01, "megabytes")


def seconds(text: str) -> float:
    """Return how long *text* says."""
    return _number(text, 1, "seconds")


def cores(text: str) -> int:
    """Return how many cores *text* says."""
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to 1024")
    return int(text)


def count(text: str) -> int:
    """Return how many *text* says, one at least."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def seed(text: str) -> int:
    """Return the seed of random numbers that *text* says."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number")
    return int(text)


def setting(text: str) -> tuple[str, str]:
    """Return key and value of a setting of Spark."""
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} must be spark.KEY=VALUE")
    return key, value


def brokers(text: str) -> str:
    """Return *text* if it names brokers."""
    for one in text.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise argparse.ArgumentTypeError(f"{text!r} must be HOST:PORT, or some with commas")
    return text


def file(text: str) -> Path:
    """Return the path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def _number(text: str, least: float, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of {unit}, at least {least}")
    return value

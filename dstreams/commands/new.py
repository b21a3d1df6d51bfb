"""``new``: a small project to begin with."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dstreams.commands.common import MISUSED, SUCCEEDED, Commands, brokers
from dstreams.project.project import Project, name_for, write_project

_STATUS = """\
exit status:
  0    the project is there
  2    the directory is not empty, the name cannot be one, or the command was used wrongly
  3    the directory cannot be written
"""


def add_new(commands: Commands) -> None:
    """Add the command to a parser."""
    new = commands.add_parser(
        "new",
        help="make a small project: a stream, its test, a drill, ways to deploy it",
        description=(
            "Makes a project in a directory that is not there yet, or empty: a stream with state, "
            "a test of it, a drill, a unit of systemd, a Dockerfile. Its test passes at once."
        ),
        examples=["word-count", "/srv/app --name clicks --kafka broker:9092"],
        epilog=_STATUS,
    )
    new.add_argument(
        "--name", metavar="NAME", help="of the project (default: that of the directory)"
    )
    new.add_argument(
        "--kafka",
        nargs="?",
        const="localhost:9092",
        type=brokers,
        metavar="HOST:PORT",
        help="the stream reads a topic of Kafka of these brokers (default: localhost:9092)",
    )
    new.add_argument("directory", type=Path, metavar="DIR", help="where to make it")
    new.set_defaults(run=_run, invalid_status=MISUSED)


def _run(options: argparse.Namespace) -> int:
    directory: Path = options.directory
    name = name_for(directory) if options.name is None else options.name
    files = write_project(Project(directory, name, options.kafka, _release()))
    listed = "".join(f"  {file}\n" for file in files)
    here = Path(sys.executable)
    sys.stdout.write(f"""\
{name} is in {directory}:
{listed}
What comes next:
  cd {directory}
  {here} -m pip install -e '.[dev]'
  {here} -m pytest
  {here.with_name("dstreams")} drill --app drill.py --kills 5
README.md says how it is run, and what to change.
""")
    return SUCCEEDED


def _release() -> str:
    try:
        return version("dstreams")
    except PackageNotFoundError:  # run from its sources
        return "0.1.0"

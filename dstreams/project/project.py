"""A new project: a name, the files that are made of the templates, and where they go."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from dstreams.errors import InvalidStreamError

_TEMPLATES = files("dstreams.project").joinpath("files")

_FILES = {
    ".gitignore": "gitignore",
    "Dockerfile": "Dockerfile",
    "README.md": "README.md",
    "drill.py": "drill.py",
    "pyproject.toml": "pyproject.toml",
    "src/$module/__init__.py": "package.py",
    "src/$module/stream.py": "stream.py",
    "tests/test_stream.py": "test_stream.py",
    "$name.service": "unit.service",
}
"""Each file of a project, and its template."""

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_MAX_NAME = 40

_MAX_BROKERS = 80
_BROKERS = re.compile(rf"[\w.,:\[\]-]{{0,{_MAX_BROKERS}}}", re.ASCII)

_TAKEN = frozenset({*sys.stdlib_module_names, "dstreams", "checkpoint", "pyspark", "py4j"})
_OF_THE_PROJECT = frozenset({"drill", "tests"})


@dataclass(frozen=True)
class Project:
    """A project that is to be made.

    Args:
        directory: where; it is made, or is there and empty.
        name: what it is called, in lower case with hyphens.
        brokers: its stream reads a topic of Kafka of them. None: files.
        dstreams: the release of dstreams that it requires.
    """

    directory: Path
    name: str
    brokers: str | None
    dstreams: str

    @property
    def module(self) -> str:
        """The name of its package."""
        return self.name.replace("-", "_")


def name_for(directory: Path) -> str:
    """Return the name that a project in *directory* has where none is given."""
    return re.sub(r"[\s._-]+", "-", directory.resolve().name.lower()).strip("-")


def require_name(name: str) -> None:
    """Require a name that a distribution, a package and a service can have.

    Raises:
        InvalidStreamError: they cannot, or it is the name of something else.
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise InvalidStreamError(
            f"the name of a project has {_MAX_NAME} letters at most, lower case, with digits and "
            f"single hyphens between them, such as word-count; got {name!r}: give another --name"
        )
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise InvalidStreamError(f"{name!r} is a word of Python's own: give another --name")
    if module in _TAKEN:
        raise InvalidStreamError(
            f"a package {module!r} would be imported in the place of the one that Python, Spark or "
            "dstreams has by that name: give another --name"
        )
    if module in _OF_THE_PROJECT:
        raise InvalidStreamError(
            f"{name!r} is what a part of the project is called: give another --name"
        )


def _require_brokers(brokers: str) -> None:
    if not _BROKERS.fullmatch(brokers):
        raise InvalidStreamError(
            f"brokers are HOST:PORT, with commas between them and {_MAX_BROKERS} letters at most; "
            f"one or two of a cluster are enough; got {brokers!r}"
        )


def write_project(project: Project) -> list[Path]:
    """Write the files of a project, and return them, relative to its directory.

    Raises:
        InvalidStreamError: the name cannot be one, the brokers cannot stand in the files, or the
            directory is there and not empty.
    """
    require_name(project.name)
    _require_brokers(project.brokers or "")
    directory = project.directory
    if directory.exists() and not directory.is_dir():
        raise InvalidStreamError(f"{directory} is a file: give another directory")
    if directory.exists() and any(directory.iterdir()):
        raise InvalidStreamError(
            f"{directory} is not empty, and nothing in it is touched: give another directory"
        )
    texts = _texts(project)  # all of them before the first is written
    for path, text in texts.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return list(texts)


def _texts(project: Project) -> dict[Path, str]:
    kind = "files" if project.brokers is None else "kafka"
    values = {
        "name": project.name,
        "module": project.module,
        "dstreams": project.dstreams,
        "extra": "" if project.brokers is None else "[kafka]",
        "brokers": project.brokers or "",
        "source": _template(f"source.{kind}.py").rstrip("\n"),
        "imports": _template(f"imports.{kind}.py").rstrip("\n"),
        "input": _template(f"input.{kind}.md").rstrip("\n"),
        "environment": _template(f"environment.{kind}").rstrip("\n"),
        "docker": _template(f"docker.{kind}").rstrip("\n"),
    }
    # A part may name the project, too.
    values = {key: Template(text).substitute(values) for key, text in values.items()}
    return {
        Path(Template(path).substitute(values)): Template(_template(template)).substitute(values)
        for path, template in _FILES.items()
    }


def _template(name: str) -> str:
    return _TEMPLATES.joinpath(f"{name}.template").read_text(encoding="utf-8")

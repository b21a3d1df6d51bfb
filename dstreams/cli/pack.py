"""The command ``pack``: an archive of this Python and its packages, for workers of a cluster."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from importlib.metadata import distributions
from pathlib import Path
from shutil import copy2, copytree
from tempfile import TemporaryDirectory

from checkpoint.cli import CommandParser
from dstreams.cli.common import SUCCEEDED
from dstreams.errors import EnvironmentNotReadyError

_STATUS = """\
exit status:
  0    the archive was written, and its interpreter can import dstreams
  2    usage error
  3    this environment cannot be packed, or the file cannot be written
  130  interrupted by Ctrl-C
"""
_LAUNCHER = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/python%s" "$@"
"""
_CACHES = ("__pycache__", "*/__pycache__")
_NOT_OF_LIBRARY = (*_CACHES, "*-packages", "config-*", "ensurepip", "idlelib", "test", "tkinter")
_NOT_OF_PACKAGES = (*_CACHES, "pip", "pip-*", "pyspark/examples", "pyspark/jars")
"""Not packed: executors have Spark's jars."""

_LIBPYTHON = re.compile(r"/.*/libpython3.*")
_COMPRESSION = 6


def configure_pack(command: CommandParser) -> None:
    """Add the arguments of ``dstreams pack``."""
    command.description = (
        "Packs the Python that runs this command, and its packages, into an archive for "
        "spark.archives. Hosts need no Python, only the same processor architecture and a Linux "
        "with the same libraries. Spark's jars are not packed, because every executor has them."
    )
    command.add_below(["environment.tar.gz", "--exclude 'polars*' environment.tar.gz"], _STATUS)
    command.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="exclude matching packages or paths below site-packages, such as 'polars*' or "
        "'botocore/data'; can be repeated",
    )
    command.add_argument(
        "archive", type=_archive, metavar="FILE", help="the archive, named FILE.tar.gz or FILE.tgz"
    )
    command.set_defaults(run=_run)


def _archive(text: str) -> Path:
    if not text.endswith((".tar.gz", ".tgz")):
        raise argparse.ArgumentTypeError(f"{text!r} must end with .tar.gz or .tgz")
    return Path(text)


def _run(options: argparse.Namespace) -> int:
    archive: Path = options.archive
    pack(archive, options.exclude)
    sys.stdout.write(
        f"{archive}: {archive.stat().st_size / 1e6:.0f} MB; use it with\n"
        "  PYSPARK_PYTHON=environment/bin/python\n"
        f"  --conf spark.archives={archive}#environment\n"
    )
    return SUCCEEDED


def pack(archive: Path, exclude: Sequence[str] = ()) -> None:
    """Write an archive of this Python and its packages.

    The files are copied to a directory beside the archive, and the copied interpreter must import
    dstreams before they are packed.

    Args:
        archive: the file to write; an existing one is replaced once the new one is complete.
        exclude: patterns of paths below ``site-packages``.

    Raises:
        EnvironmentNotReadyError: the environment cannot be packed, or does not work when copied.
        OSError: the archive cannot be written.
    """
    _require_packable()
    with _directory_beside(archive) as directory:
        root = Path(directory).resolve() / "environment"
        _copy(root, exclude)
        _require_working(root)
        packed = Path(directory, archive.name)
        with tarfile.open(packed, "w:gz", compresslevel=_COMPRESSION) as tar:
            tar.add(root, ".")
        packed.replace(archive)


def _directory_beside(archive: Path) -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix=f".{archive.name}-", dir=archive.parent)
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"{archive}: cannot be written: {error.strerror}; choose a directory that exists and "
            "that you can write to"
        ) from error


def _require_packable() -> None:
    if sys.platform != "linux":
        raise EnvironmentNotReadyError(f"an archive for Linux is made on Linux, got {sys.platform}")
    if Path(sys.prefix, "conda-meta").is_dir():
        raise EnvironmentNotReadyError(
            f"{sys.prefix} is an environment of conda, and conda-pack knows its libraries; run "
            "conda-pack -o environment.tar.gz"
        )
    if sys.prefix == sys.base_prefix:
        raise EnvironmentNotReadyError(
            f"{sys.executable} is not in a virtual environment; make one (python -m venv "
            "environment), install dstreams and your packages there, and run its bin/dstreams pack"
        )
    outside = _installed_outside(sysconfig.get_path("purelib"))
    if outside:
        raise EnvironmentNotReadyError(
            f"{', '.join(outside)} in {sys.prefix}: installed as editable (pip install -e), so the "
            "files are elsewhere; install without -e"
        )


def _installed_outside(packages: str) -> list[str]:
    """Return the distributions that are installed as editable."""
    texts = ((one.name, one.read_text("direct_url.json")) for one in distributions(path=[packages]))
    return sorted(
        name
        for name, text in texts
        if text is not None and json.loads(text).get("dir_info", {}).get("editable")
    )


def _copy(root: Path, exclude: Iterable[str]) -> None:
    """Copy the interpreter, its shared library, the standard library and the packages."""
    version = sysconfig.get_python_version()
    interpreter = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    copy2(interpreter, _made(root / "bin") / f"python{version}")
    for name in ("python", "python3"):
        launcher = root / "bin" / name
        launcher.write_text(_LAUNCHER % version)
        launcher.chmod(0o755)
    for library in set(_LIBPYTHON.findall(Path("/proc/self/maps").read_text())):
        copy2(library, _made(root / "lib"))
    library = Path(sysconfig.get_path("stdlib"))
    _copy_tree(library, root / library.relative_to(sys.base_prefix), _NOT_OF_LIBRARY)
    inside = root / _place_of_packages(interpreter)
    for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        _copy_tree(Path(packages), inside, (*_NOT_OF_PACKAGES, *exclude))


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _place_of_packages(interpreter: Path) -> str:
    """Return where an interpreter looks for packages below its prefix; Debian has other names."""
    asked = "import site; print(site.getsitepackages(['/'])[0])"
    done = subprocess.run(  # noqa: S603
        [interpreter, "-I", "-c", asked], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().lstrip("/")


def _copy_tree(source: Path, target: Path, exclude: Sequence[str]) -> None:
    copytree(
        source,
        target,
        ignore=_ignoring(source, exclude),
        ignore_dangling_symlinks=True,
        dirs_exist_ok=True,
    )


def _ignoring(root: Path, patterns: Sequence[str]) -> Callable[[str, list[str]], list[str]]:
    """Return a function for ``copytree`` that ignores paths below *root* by patterns."""

    def ignored(directory: str, names: list[str]) -> list[str]:
        inside = Path(directory).relative_to(root)
        return [
            name
            for name in names
            if any(fnmatch(str(inside / name), pattern) for pattern in patterns)
        ]

    return ignored


def _require_working(root: Path) -> None:
    """Let the copied interpreter import what workers need, from nowhere else."""
    from dstreams.spark.worker_python import MODULES  # noqa: PLC0415 - loads PySpark

    code = f"import sys, pyspark, {', '.join(MODULES)}; print(sys.prefix)"
    done = subprocess.run(  # noqa: S603
        [root / "bin" / "python", "-I", "-B", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or Path(done.stdout.strip()) != root:
        reason = done.stderr.strip() or f"it uses {done.stdout.strip()} in place of its own files"
        raise EnvironmentNotReadyError(f"{sys.prefix}: cannot run dstreams when copied: {reason}")

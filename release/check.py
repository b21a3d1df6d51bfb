"""Run the release checklist, step by step.

    python release/check.py [--list] [--only STEP]... [--out DIRECTORY]

Each step describes itself, and passes or fails; the exit status is 1 if one has failed. The release
is then in DIRECTORY (default: dist): wheel, sdist and SBOM. Nothing is published.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]

BY_HAND = """\
Not run here, because they take long or need a person:
  .ci/run              the whole suite, in a fresh environment (20 minutes)
  tox run              a part of the tests on each Python with each PySpark
  tox run -e locked    the whole suite with the packages of requirements/dev.lock
  pytest -m slow       the drills for the changes: see CONTRIBUTING.md
  git tag -s vVERSION  then publish the files of the directory"""

FAST_TESTS = (
    *("tests/checkpoint/test_checkpoint.py", "tests/checkpoint/state_store"),
    *(f"tests/dstreams/{name}" for name in ("engine", "graph", "state")),
)
NO_SPARK = ("-m", "not slow and not spark", "-k", "not crash_points and not power_loss")


class StepFailedError(Exception):
    """A step failed; the message has the problem and the remedy."""


@dataclass
class Release:
    """The release, with the directories for the results of its steps."""

    out: Path
    scratch: Path
    version: str = field(init=False)
    _installed: Path | None = None

    def __post_init__(self) -> None:
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg", encoding="utf-8")
        self.version = setup["metadata"]["version"]

    def wheel(self) -> Path:
        """Return the wheel that was built."""
        return self._built(f"dstreams-{self.version}-py3-none-any.whl")

    def sdist(self) -> Path:
        """Return the source distribution that was built."""
        return self._built(f"dstreams-{self.version}.tar.gz")

    def _built(self, name: str) -> Path:
        if not (self.out / name).exists():
            raise StepFailedError(f"{self.out} has no {name}: run the step build first")
        return self.out / name

    def python(self) -> Path:
        """Return the Python of a fresh environment with the wheel and its dependencies."""
        if self._installed is None:
            home = self.scratch / "environment"
            venv.create(home, symlinks=True)  # without pip, which would be in the SBOM
            self._installed = home / "bin" / "python"
            self.install(str(self.wheel()))
        return self._installed

    def install(self, what: str) -> None:
        """Install a package and its dependencies in that environment."""
        run(sys.executable, "-m", "pip", "--python", self._installed, "install", "-q", what)


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command without this process's PYTHONPATH; return its output."""
    words = [str(word) for word in command]
    print("  $", " ".join(words), flush=True)
    surroundings = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        words,
        cwd=cwd,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise StepFailedError(f"status {done.returncode}\n{last}")
    return done.stdout


def tracked() -> set[str]:
    """Return the files tracked by git."""
    return set(run("git", "ls-files").splitlines())


def tree(release: Release) -> str:
    """All changes are committed."""
    changed = run("git", "status", "--porcelain").splitlines()
    if changed:
        raise StepFailedError("commit or remove:\n" + "\n".join(changed))
    return "at " + run("git", "log", "-1", "--format=%h %s").strip()


def version(release: Release) -> str:
    """The version is a release version, and has no tag yet."""
    try:
        parsed = Version(release.version)
    except InvalidVersion as error:
        raise StepFailedError(f"setup.cfg: {error}") from error
    if parsed.is_devrelease or parsed.local is not None:
        raise StepFailedError(f"setup.cfg: {parsed} is not a release version such as 0.1.0")
    if str(parsed) != release.version:
        raise StepFailedError(f"setup.cfg: write {release.version} as {parsed}")
    if run("git", "tag", "--list", f"v{parsed}").strip():
        raise StepFailedError(f"v{parsed} is released: setup.cfg needs the next version")
    return str(parsed)


def changelog(release: Release) -> str:
    """The newest section of the changelog has this version, its date and entries."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading, _, lines = text.partition("\n## ")[2].partition("\n")
    wanted = f"## {release.version} - YYYY-MM-DD"
    found = re.fullmatch(re.escape(release.version) + r" - (\d{4}-\d\d-\d\d)", heading)
    if found is None:
        raise StepFailedError(f"CHANGELOG.md begins with '## {heading}'; write '{wanted}'")
    try:
        day = date.fromisoformat(found[1])
    except ValueError as error:
        raise StepFailedError(f"CHANGELOG.md: '## {heading}': {error}; {wanted}") from error
    if day > date.fromtimestamp(time.time()):  # noqa: DTZ012, TID251 - the local date
        raise StepFailedError(f"CHANGELOG.md: {day} is in the future")
    count = len(re.findall(r"^- ", lines.partition("\n## ")[0], re.MULTILINE))
    if count == 0:
        raise StepFailedError(f"CHANGELOG.md has no entries under '## {heading}'")
    return f"{count} lines, {day}"


def build(release: Release) -> str:
    """Wheel and source distribution are built, and contain all files of the repository."""
    for old in release.out.glob("dstreams-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "-q", "--outdir", release.out, ".")
    files = tracked()
    with tarfile.open(release.sdist()) as archive:
        packed = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    made = {name for name in packed if name.startswith(("PKG-INFO", "dstreams.egg-info/"))}
    compare(packed - made, files, release.sdist().name)
    with ZipFile(release.wheel()) as archive:
        installed = {name for name in archive.namelist() if ".dist-info/" not in name}
    packages = ("checkpoint/", "dstreams/")
    compare(installed, {name for name in files if name.startswith(packages)}, release.wheel().name)
    sizes = (f"{path.name} {path.stat().st_size:,} bytes" for path in sorted(release.out.iterdir()))
    return ", ".join(sizes)


def compare(packed: set[str], files: set[str], archive: str) -> None:
    """Check that an archive has exactly these files."""
    missing, foreign = sorted(files - packed), sorted(packed - files)
    if missing:
        raise StepFailedError(f"{archive} lacks {', '.join(missing)}: see MANIFEST.in, setup.cfg")
    if foreign:
        raise StepFailedError(f"{archive} has {', '.join(foreign)}, which git does not track")


def metadata(release: Release) -> str:
    """The metadata is valid for a package index, and the description can be rendered."""
    run(sys.executable, "-m", "twine", "check", "--strict", release.wheel(), release.sdist())
    with ZipFile(release.wheel()) as archive:
        text = archive.read(f"dstreams-{release.version}.dist-info/METADATA").decode()
    header = text.partition("\n\n")[0]
    if "\nProject-URL:" in header:
        return "with addresses of the project"
    return "without addresses of the project: add project_urls to setup.cfg as soon as it has any"


def install(release: Release) -> str:
    """The wheel is installed with its dependencies, and imported outside the sources."""
    python = release.python()
    run(sys.executable, "-m", "pip", "--python", python, "check")
    said = run(python.with_name("dstreams"), "--version", cwd=release.scratch).strip()
    if not said.startswith(f"dstreams {release.version},"):
        raise StepFailedError(f"dstreams --version says {said!r}, not {release.version}")
    place = run(
        python, "-c", "import checkpoint, dstreams; print(dstreams.__file__)", cwd=release.scratch
    )
    if str(python.parents[1]) not in place:
        raise StepFailedError(f"imported {place.strip()} instead of the wheel")
    return said


def demo(release: Release) -> str:
    """The first command of the README, with the wheel: the demo, in an empty directory."""
    command = release.python().with_name("dstreams")
    empty = release.scratch / "empty"
    empty.mkdir(exist_ok=True)
    said = run(command, "demo", "--quiet", "--megabytes", "1", cwd=empty)
    return said.strip().splitlines()[-1]


def tests(release: Release) -> str:
    """The fast part of the second command: the tests of the source distribution, on the wheel."""
    python = release.python()
    release.install(f"{release.wheel()}[test]")
    with tarfile.open(release.sdist()) as archive:
        archive.extractall(release.scratch, filter="data")
    sources = release.scratch / f"dstreams-{release.version}"
    for package in ("checkpoint", "dstreams"):  # otherwise pytest would import them
        shutil.rmtree(sources / package, ignore_errors=True)
    pytest = (python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile")
    said = run(*pytest, *NO_SPARK, *FAST_TESTS, cwd=sources)
    return said.strip().splitlines()[-1]


def docs(release: Release) -> str:
    """The documentation is built, without broken links."""
    site = release.scratch / "site"
    run(
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "-q",
        "--strict",
        "-f",
        "docs/mkdocs.yml",
        "-d",
        site,
    )
    return f"{len(list(site.rglob('*.html')))} pages"


def sbom(release: Release) -> str:
    """The SBOM of the wheel and its dependencies is written, as CycloneDX."""
    file = release.out / f"dstreams-{release.version}.cdx.json"
    said = run(sys.executable, ROOT / "release" / "sbom.py", release.python(), file)
    return f"{file.name}: {said.strip()}"


STEPS: dict[str, Callable[[Release], str]] = {
    step.__name__: step
    for step in (tree, version, changelog, build, metadata, install, sbom, demo, tests, docs)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps, and return the exit status."""
    parser = argparse.ArgumentParser(description="Walk through the checklist of a release.")
    parser.add_argument("--list", action="store_true", help="show the steps")
    parser.add_argument(
        "--only", action="append", choices=STEPS, metavar="STEP", help="this one; may be repeated"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        metavar="DIRECTORY",
        help="directory for wheel, sdist and SBOM; build replaces its files (default: dist)",
    )
    options = parser.parse_args(argv)
    if options.list:
        for name, step in STEPS.items():
            print(f"{name:10} {step.__doc__}")
        print(f"\n{BY_HAND}")
        return 0
    chosen = [name for name in STEPS if options.only is None or name in options.only]
    with TemporaryDirectory(prefix="dstreams-release-") as scratch:
        release = Release(options.out.resolve(), Path(scratch).resolve())
        failed = [name for name in chosen if not walk(name, release)]
    if failed:
        print(f"\n{len(failed)} of {len(chosen)} steps failed: {', '.join(failed)}")
        return 1
    print(f"\nall {len(chosen)} steps passed\n{BY_HAND}")
    return 0


def walk(name: str, release: Release) -> bool:
    """Run one step, and return whether it passed."""
    print(f"{name}: {STEPS[name].__doc__}", flush=True)
    began = time.monotonic()
    try:
        said = STEPS[name](release)
    except (OSError, StepFailedError) as error:
        print(f"  FAILED: {error}", flush=True)
        return False
    print(f"  passed in {time.monotonic() - began:.1f} s: {said}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())

"""What is built of the repository works alone, and is whole; the lock and the matrix fit to it."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "dev.lock"
PURPOSES = {"kafka", "avro", "protobuf", "kinesis", "postgres", "test", "release", "dev"}


def setup_of(section: str) -> configparser.SectionProxy:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup[section]


def files_of_the_repository() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone of the repository")
    found = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in found.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution, and the wheel that was made of it."""
    pytest.importorskip("build", reason="pip install -e '.[dev]'")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in files_of_the_repository():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel, which borrows from this one what it requires."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    # A directory that is named in such a file comes last, and its own such files are not read: what
    # is installed here for editing is not there.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    done = subprocess.run(
        [*command, str(wheel)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return python


def alone(*command: str | Path, empty: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in an empty directory, told nothing of the repository."""
    told = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)),
        cwd=empty,
        env={**told, "PYSPARK_PYTHON": str(command[0])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.deep
def test_wheel_is_whole(wheel: Path) -> None:
    """All files of both packages are in the wheel: code, types, log settings, the page."""
    files = {
        name for name in files_of_the_repository() if name.startswith(("checkpoint/", "dstreams/"))
    }
    with ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == files
    kinds = {Path(name).name for name in files} | {Path(name).suffix for name in files}
    assert {"py.typed", "log4j2.properties", "index.html", ".js", ".css"} <= kinds


def test_source_distribution_is_whole(built: Path) -> None:
    """All files of the repository are in the source distribution, and nothing else but its own."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    own = {name for name in names if name.startswith(("PKG-INFO", "dstreams.egg-info/"))}
    assert names - own == files_of_the_repository()


def test_metadata(wheel: Path) -> None:
    """The wheel says who made it, under which licences, for what, and what changed."""
    with ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        said = message_from_bytes(archive.read(name))
        commands = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert said["Author"] == "dstreams developers"
    assert said["License-Expression"] == "Apache-2.0 AND MIT"
    assert len(said.get_all("License-File") or ()) == 2
    assert "pyspark" in said["Keywords"]
    assert set(said.get_all("Provides-Extra") or ()) >= PURPOSES
    assert "\n# Changelog\n" in said.get_payload()
    assert commands.split() == ["[console_scripts]", "dstreams", "=", "dstreams.cli.main:main"]


@pytest.mark.deep
def test_wheel_is_imported_alone(installed: Path, tmp_path: Path) -> None:
    """Each public name is there, the drill's applications, and what the page is made of."""
    program = """
import pathlib, sys
import checkpoint, dstreams, dstreams.structured, dstreams.testing
from dstreams.cli.drill.application import load
from dstreams.spark import spark_context
home = pathlib.Path(sys.prefix)
for package in (checkpoint, dstreams, dstreams.structured):
    assert home in pathlib.Path(package.__file__).parents, package.__file__
    [getattr(package, name) for name in package.__all__]
load(None), load(None, query=True)
assert spark_context._QUIET_LOGGING.is_file()
web = pathlib.Path(dstreams.__file__).with_name("monitoring") / "web"
assert (web / "static" / "index.html").is_file()
print("all there")
"""
    done = alone(installed, "-c", program, empty=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all there\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.spark
def test_demo_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The demo passes in an empty directory, and leaves it empty."""
    demo = ("-m", "dstreams", "demo", "--quiet", "--megabytes", "0.1", "--cores", "2")
    done = alone(installed, *demo, empty=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def required(extra: str) -> list[Requirement]:
    """Return what an extra requires, with what its extras require."""
    extras = setup_of("options.extras_require")
    found: list[Requirement] = []
    for line in extras[extra].split("\n"):
        if not line.strip():
            continue
        requirement = Requirement(line)
        if requirement.name == "dstreams":
            for other in requirement.extras:
                found += required(other)
        else:
            found.append(requirement)
    return found


def test_lock_has_what_tests_need() -> None:
    """A version is locked for each package of the extra dev that fits, and has hashes."""
    text = LOCK.read_text(encoding="utf-8")
    locked: dict[str, set[str]] = {}
    for line in re.findall(r"^[^\s#].*?==.*$", text, re.MULTILINE):
        assert line.endswith("\\"), f"{line} has no hash"
        name, _, version = line.partition(" ")[0].partition("==")
        locked.setdefault(canonicalize_name(name.partition("[")[0]), set()).add(version)
    own = [
        Requirement(line) for line in setup_of("options")["install_requires"].split("\n") if line
    ]
    misfits = [
        f"{requirement}: {locked.get(canonicalize_name(requirement.name))}"
        for requirement in (*own, *required("dev"))
        if not any(
            map(requirement.specifier.contains, locked.get(canonicalize_name(requirement.name), ()))
        )
    ]
    assert misfits == [], "tox run -e lock"


def test_lock_knows_no_machine() -> None:
    """The lock names the command that writes it, and neither a registry nor a directory."""
    text = LOCK.read_text(encoding="utf-8")
    assert "tox run -e lock\n" in text
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links|file:|[ =](/|~/)", text)


def test_matrix_has_each_python() -> None:
    """Each Python that the package is for stands in the matrix, and each PySpark from 3.5 on."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    cells = re.findall(r'"py(3)(\d+)-pyspark(\d)(\d)"', text)
    pythons = re.findall(r"Python :: (3)\.(\d+)", setup_of("metadata")["classifiers"])
    assert {cell[:2] for cell in cells} == set(pythons)
    assert {cell[2:] for cell in cells} == {("3", "5"), ("4", "0"), ("4", "3")}

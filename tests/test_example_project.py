"""``examples/project``, the project to copy: its test, linter, unit, image and drill pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "examples" / "project"

INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT"}


def copied(to: Path) -> Path:
    """Copy the project, without what commands have left in it."""
    left = shutil.ignore_patterns(".*_cache", "__pycache__", "*.egg-info", "data")
    return shutil.copytree(PROJECT, to, ignore=left)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, in which a command may leave files."""
    return copied(tmp_path / "app")


def run(project: Path, *words: str | Path, limit_s: float = 600) -> str:
    """Run a command in a project, as if it were installed, and return what it prints."""
    done = subprocess.run(
        list(map(str, words)),
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{project / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def blocks(language: str) -> list[str]:
    """Return the blocks of the README in a language."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def ruff() -> Path:
    command = Path(sys.executable).with_name("ruff")
    if not command.exists():
        pytest.skip("comes with the extra 'dev'")
    return command


def test_code(project: Path) -> None:
    """Its files pass its own linter."""
    run(project, ruff(), "check", "--no-cache", ".")
    run(project, ruff(), "format", "--no-cache", "--diff", ".")


def test_renamed(tmp_path: Path) -> None:
    """The commands of the README copy the project and rename all of it."""
    copied(tmp_path / "examples" / "project")
    run(tmp_path, "bash", "-ec", blocks("console")[0])
    renamed = tmp_path / "clicks"
    texts = [path.read_text(encoding="utf-8") for path in renamed.rglob("*") if path.is_file()]
    assert not any(re.search("word[-_]count", text) for text in texts)
    assert (renamed / "src" / "clicks" / "stream.py").is_file()
    run(renamed, ruff(), "check", "--no-cache", ".")


def test_unit(project: Path) -> None:
    """systemd takes the unit, where its command exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = project / "word-count.service"
    text = unit.read_text()
    assert text.count("/opt/word-count/.venv/bin/word-count /var/lib/word-count\n") == 1
    unit.write_text(text.replace("/opt/word-count/.venv/bin/word-count", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "word-count.service" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_image(project: Path) -> None:
    """The Dockerfile has instructions that there are, and copies files that there are."""
    text = (project / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("FROM python:3.")
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((project / name).exists() for name in copied if name != "*.whl")
    assert lines[-1] == 'ENTRYPOINT ["word-count", "/data"]'


@pytest.mark.deep
@pytest.mark.spark
def test_its_own_test_passes(project: Path) -> None:
    """It is run as the project's README says."""
    said = run(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in said


@pytest.mark.deep
@pytest.mark.spark
def test_what_is_drilled_is_right(project: Path, tmp_path: Path) -> None:
    """Input of the drill goes through the stream, and its check sees counts that are wrong."""
    (tmp_path / "run").mkdir()
    said = run(
        project,
        sys.executable,
        "-c",
        f"""
from pathlib import Path
import drill
directory = {str(tmp_path / "run")!r}
ssc = drill.setup(directory)
assert drill.check(directory) == []
drill.feed(directory, 0)
assert not drill.is_done(directory)
ssc.step()
drill.feed(directory, 1)
ssc.step()
assert drill.is_done(directory)
print(drill.check(directory), sorted(drill.found(directory).items()))
Path(directory, "input", "file-1.txt").unlink()
print(drill.check(directory)[0])
ssc.stop()
""",
    )
    counts = [("all", 200), ("number-0", 50), ("number-1", 50), ("same", 100)]
    assert f"[] {counts}\n'all' is counted 200 times, not 100\n" in said


@pytest.mark.deep
@pytest.mark.spark
def test_topic(project: Path, tmp_path: Path) -> None:
    """With the source of the README the values of a topic are counted; one may be missing."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    (source,) = blocks("python")
    with (project / "src" / "word_count" / "stream.py").open("a", encoding="utf-8") as code:
        code.write(source)  # a later function of the name is the one that is called
    (tmp_path / "run").mkdir()
    said = run(
        project,
        sys.executable,
        "-c",
        f"""
import os, sys
sys.path.append({str(project)!r})
import drill
from word_count import stream
from confluent_kafka import Producer
from dstreams.cli.demo import MockCluster
with MockCluster() as cluster:
    os.environ["KAFKA"] = cluster.brokers
    producer = Producer({{"bootstrap.servers": cluster.brokers}})
    for line in ("to be or", "not to be", None):
        producer.produce("lines", line)
    producer.flush()
    ssc = stream.setup({str(tmp_path / "run")!r})
    ssc.step()
    ssc.stop()
print(sorted(drill.found({str(tmp_path / "run")!r}).items()))
""",
    )
    # The client may say besides that the cluster has gone.
    assert "[('be', 2), ('not', 1), ('or', 1), ('to', 2)]" in said.splitlines(), said


@pytest.mark.slow
def test_drill(project: Path) -> None:
    """The drill that the project's README names passes."""
    drill = (sys.executable, "-m", "dstreams", "drill", "--app", "drill.py", "--kills", "1")
    assert "all promises held" in run(project, *drill, limit_s=500)

"""``dstreams new``: what it writes is a project whose test, linter and drill pass at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dstreams.cli import main
from dstreams.errors import InvalidStreamError
from dstreams.project.project import Project, name_for, require_name, write_project

ROOT = Path(__file__).parents[3]
LONGEST = "a" * 40

INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "STOPSIGNAL", "ENTRYPOINT"}


def run(project: Path, *words: str | Path, limit_s: float = 240) -> str:
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


def made(directory: Path, name: str, brokers: str | None = None) -> Path:
    write_project(Project(directory, name, brokers, "0.1.0"))
    return directory


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what is there and what comes next; the name is that of the directory."""
    directory = tmp_path / "below" / "Word Count"
    assert main(["new", str(directory)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"word-count is in {directory}:\n")
    there = {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}
    assert there == set(re.findall(r"^  (\S+)$", said.partition("What comes next")[0], re.M))
    assert {"src/word_count/stream.py", "word-count.service", "Dockerfile"} <= there
    assert "dstreams drill --app drill.py" in said


def test_directory_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of another project is touched."""
    (tmp_path / "README.md").write_text("Mine.")
    assert main(["new", str(tmp_path), "--name", "clicks"]) == 2
    assert capsys.readouterr().err == (
        f"dstreams new: {tmp_path} is not empty, and nothing in it is touched: give another "
        "directory\n"
    )
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("README.md", "Mine.")
    ]
    assert main(["new", str(tmp_path / "README.md"), "--name", "clicks"]) == 2
    assert "README.md is a file: give another directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "letters at most"),
        ("Count", "lower case"),
        ("2-counts", "such as word-count; got '2-counts'"),
        ("count--er", "single hyphens"),
        ("../count", "got '../count'"),
        (LONGEST + "a", "has 40 letters at most"),
        ("class", "'class' is a word of Python's own"),
        ("match", "'match' is a word of Python's own"),
        ("json", "'json' would be imported in the place of"),
        ("checkpoint", "'checkpoint' would be imported in the place of"),
        ("dstreams", "'dstreams' would be imported in the place of"),
        ("pyspark", "'pyspark' would be imported in the place of"),
        ("drill", "'drill' is what a part of the project is called"),
        ("tests", "'tests' is what a part of the project is called"),
    ],
)
def test_bad_names(tmp_path: Path, name: str, problem: str) -> None:
    """A name that cannot be one is refused with the reason, before anything is written."""
    with pytest.raises(InvalidStreamError, match=re.escape(problem)) as raised:
        made(tmp_path / "new", name)
    assert "--name" in str(raised.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["counts", "word-count", "word_count", "c2-3", LONGEST])
def test_good_names(name: str) -> None:
    """Names of words, with digits, are names."""
    require_name(name)


def test_brokers(tmp_path: Path) -> None:
    """They stand in code, so that they are checked; the one of this machine needs no name."""
    for bad in ('a"b:9092', "$x:9092", "a b:9092", "b" * 76 + ":9092"):
        with pytest.raises(InvalidStreamError, match="one or two of a cluster are enough; got"):
            made(tmp_path / "new", "clicks", bad)
    assert not (tmp_path / "new").exists()
    assert main(["new", str(tmp_path / "new"), "--kafka"]) == 0
    code = (tmp_path / "new" / "src" / "new" / "stream.py").read_text()
    assert 'BROKERS = "localhost:9092"\n' in code


def test_names_of_directories(tmp_path: Path) -> None:
    """A directory gives a name where it can, and none is made up where it cannot."""
    assert name_for(tmp_path / "My Clicks.v2") == "my-clicks-v2"
    assert name_for(tmp_path / "__clicks__") == "clicks"
    with pytest.raises(InvalidStreamError, match="got 'zähler'"):
        require_name(name_for(tmp_path / "Zähler"))


@pytest.mark.parametrize("brokers", [None, "localhost:9092", "b" * 75 + ":9092"])
@pytest.mark.parametrize("name", ["c", "word-count", LONGEST])
def test_code(tmp_path: Path, name: str, brokers: str | None) -> None:
    """Its files pass its own linter, whatever it is called, and no placeholder is left."""
    project = made(tmp_path / "app", name, brokers)
    for file in project.rglob("*"):
        if file.is_file():
            assert "$" not in file.read_text(encoding="utf-8"), file
            assert file.read_text(encoding="utf-8").endswith("\n")
    assert ("dstreams[kafka]>=0.1.0" in (project / "pyproject.toml").read_text()) is (
        brokers is not None
    )
    for file in project.rglob("*.py"):
        compile(file.read_text(encoding="utf-8"), file, "exec")
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("comes with the extra 'dev'")
    run(project, ruff, "check", "--no-cache", ".")
    run(project, ruff, "format", "--no-cache", "--diff", ".")


@pytest.mark.parametrize("brokers", [None, "localhost:9092", "b" * 75 + ":9092"])
def test_unit(tmp_path: Path, brokers: str | None) -> None:
    """systemd takes the unit, where its command exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    project = made(tmp_path / "app", "word-count", brokers)
    unit = project / "word-count.service"
    text = unit.read_text()
    assert text.count("/opt/word-count/.venv/bin/word-count /var/lib/word-count\n") == 1
    unit.write_text(text.replace("/opt/word-count/.venv/bin/word-count", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "word-count.service" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


def test_image(tmp_path: Path) -> None:
    """The Dockerfile has instructions that there are, and copies files that there are."""
    project = made(tmp_path / "app", "word-count")
    text = (project / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("FROM python:3.")
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((project / name).exists() for name in copied if name != "*.whl")
    assert lines[-1] == 'ENTRYPOINT ["word-count", "/data"]'


@pytest.mark.spark
def test_its_own_test_passes(tmp_path: Path) -> None:
    """It is run as the project's README says."""
    project = made(tmp_path / "app", "word-count")
    said = run(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in said


@pytest.mark.spark
def test_what_is_drilled_is_right(tmp_path: Path) -> None:
    """Input of the drill goes through the stream, and its check sees counts that are wrong."""
    project = made(tmp_path / "app", "word-count")
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


@pytest.mark.spark
def test_topic(tmp_path: Path) -> None:
    """With Kafka the values of a topic are counted; one without a value has no words."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    project = made(tmp_path / "app", "clicks", "localhost:9092")
    (tmp_path / "run").mkdir()
    said = run(
        project,
        sys.executable,
        "-c",
        f"""
import os, sys
sys.path.append({str(project)!r})
import drill
from clicks import stream
from confluent_kafka import Producer
from dstreams.demo.mock_cluster import MockCluster
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
def test_drill(tmp_path: Path) -> None:
    """The drill that the project's README names passes."""
    project = made(tmp_path / "app", "word-count")
    drill = (sys.executable, "-m", "dstreams", "drill", "--app", "drill.py", "--kills", "1")
    assert "all promises held" in run(project, *drill, limit_s=500)

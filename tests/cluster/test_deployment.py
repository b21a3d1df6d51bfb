"""The commands of docs/pages/how-to/deploy.md, on clusters on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, SPARK_HOME, StandaloneCluster
from tests.support.documentation import commands_of, read_page
from tests.support.hdfs import Hdfs, running_hdfs
from tests.support.jvms import ENVIRONMENT, SHORT_LIVED
from tests.support.packed import packed_environment
from tests.support.waiting import wait_for
from tests.support.yarn import Yarn, descendants, end, running_yarn

pytestmark = [pytest.mark.spark, pytest.mark.deep]

PAGE = read_page((ROOT / "docs/pages/how-to/deploy.md").read_text(encoding="utf-8"))
BATCHES = 3
LIMIT_S = 300
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.default.parallelism": "2",
    "spark.locality.wait": "0s",
    "spark.ui.enabled": "false",
    "spark.dstreams.ui.enabled": "false",
}
BATCH = re.compile(r"^-+\nTime: (.+)\n-+\n((?:\(.+\)\n)*)\n", re.MULTILINE)
PAIR = re.compile(r"\((\d+), (\d+)\)")


def commands(word: str, changes: Mapping[str, str]) -> str:
    """Return the commands of the page's block with *word*, with what is different here."""
    (block,) = (one for one in PAGE.blocks if one.language == "console" and word in one.text)
    text = "\n".join(each.line for each in commands_of(block))
    for there, here in changes.items():
        assert there in text, there
        text = text.replace(there, here)
    before, _, last = text.rpartition("\n")
    return f"{before}\nexec {last}"  # the process that is signalled is that of the last command


class Driver:
    """A process of a reader who ran commands, in a directory with the archive and the program.

    Args:
        process: the last command.
        directory: where it runs.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.process = process
        self._directory = directory

    def printed(self) -> str:
        return (self._directory / "out.txt").read_text()

    def log(self) -> str:
        return (self._directory / "log.txt").read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the process runs."""
        wait_for(lambda: condition() or self.process.poll() is not None, LIMIT_S)
        assert self.process.poll() is None, self.log()

    def stop(self) -> int:
        """Stop it as a service manager would; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)


@contextmanager
def running(text: str, directory: Path, settings: Mapping[str, str]) -> Iterator[Driver]:
    """Run commands in *directory*, where the environment that was packed is installed."""
    archive = packed_environment()
    directory.mkdir()
    (directory / archive.name).symlink_to(archive)
    (program,) = (block for block in PAGE.blocks if block.title == "app.py")
    (directory / "app.py").write_text(program.text)
    defaults = directory / "spark-defaults.conf"
    defaults.write_text(
        "".join(f"{key} {text}\n" for key, text in {**SETTINGS, **settings}.items())
    )
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    environment = {
        **inherited,
        **ENVIRONMENT,
        "PATH": f"{archive.parent / 'environment' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SPARK_CONF_DIR": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYTHONUNBUFFERED": "1",
    }
    with (directory / "out.txt").open("wb") as out, (directory / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", text],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Driver(process, directory)
    finally:
        family = descendants(process.pid)
        process.kill()
        process.wait()
        end(family)


def batches_in(text: str) -> list[tuple[str, dict[int, int]]]:
    """Return the times and counts of the batches that the program has printed."""
    return [
        (time, {int(key): int(count) for key, count in PAIR.findall(rows)})
        for time, rows in BATCH.findall(text)
    ]


def require_exact(batches: list[tuple[str, dict[int, int]]]) -> None:
    """Require that each batch has counted the numbers 0 to n, and n never decreases."""
    totals: dict[str, int] = {}
    for time, counts in batches:
        total = sum(counts.values())
        expected = {key: len(range(key, total, 3)) for key in range(min(total, 3))}
        assert (time, counts) == (time, expected)
        assert totals.setdefault(time, total) == total  # a batch that ran again
    assert [total for _, total in sorted(totals.items())] == sorted(totals.values())
    assert max(totals.values()) > 0


def has_batches(text: str, count: int = BATCHES) -> bool:
    return len(batches_in(text)) >= count


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster whose hosts have a Spark, and no dstreams."""
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), modules=()) as cluster:
        yield cluster


def changes_of(cluster: StandaloneCluster, checkpoint: Path) -> dict[str, str]:
    return {
        "spark://master.example.org:7077": cluster.url,
        "spark.executor.memory=4g": "spark.executor.memory=512m",
        "/mnt/shared/clicks/checkpoint": str(checkpoint),
    }


def test_standalone_hosts_without_dstreams(standalone: StandaloneCluster, tmp_path: Path) -> None:
    """The first start names host, interpreter, what is missing, and the three remedies."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    changes = changes_of(standalone, tmp_path / "checkpoint")
    changes["PYSPARK_PYTHON=environment"] = f"PYSPARK_PYTHON={bare}"
    changes["--conf spark.archives=environment.tar.gz#environment"] = ""
    with running(commands("--master spark://", changes), tmp_path / "here", {}) as driver:
        assert driver.process.wait(LIMIT_S) != 0
    said = driver.log()
    assert re.search(rf"{bare}/bin/python on host \S+ lacks dstreams, checkpoint, ", said), said
    for remedy in ("install dstreams there", "set PYSPARK_PYTHON", "dstreams pack environment"):
        assert remedy in said
    assert [*(tmp_path / "checkpoint").iterdir()] == []


def test_standalone(standalone: StandaloneCluster, tmp_path: Path) -> None:
    """The stream runs from the archive, and the log names a later host that lacks a module."""
    checkpoint = tmp_path / "checkpoint"
    text = commands("--master spark://", changes_of(standalone, checkpoint))
    empty = tmp_path / "empty" / "dstreams"  # comes before that of the archive
    empty.mkdir(parents=True)
    (empty / "__init__.py").touch()
    retries = {"spark.task.maxFailures": "100"}  # that host may get one task again and again
    with running(text, tmp_path / "here", retries) as driver:
        driver.wait_for(lambda: has_batches(driver.printed()))
        assert "ModuleNotFoundError" not in driver.log()
        standalone.start_worker("127.0.0.4", modules=(empty.parent,))
        driver.wait_for(lambda: "ModuleNotFoundError" in driver.log())
        before = len(batches_in(driver.printed()))
        driver.wait_for(lambda: has_batches(driver.printed(), before + BATCHES))
        assert driver.stop() == 0
    line = r"Lost task \S+ in stage \S+ \(TID \d+\) \(127\.0\.0\.4 executor \d+\): "
    line += r"ModuleNotFoundError: No module named 'dstreams\.\w+'; install it there for the Python"
    assert re.search(line, driver.log()), driver.log()
    require_exact(batches_in(driver.printed()))


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """An HDFS for checkpoints, of one DataNode."""
    with running_hdfs(tmp_path_factory.mktemp("hdfs"), data_nodes=1) as running:
        yield running


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A YARN of one host."""
    with running_yarn(tmp_path_factory.mktemp("yarn")) as running:
        yield running


def on_yarn(tmp_path: Path) -> dict[str, str]:
    """Return the settings of a small YARN whose hosts have the jars of Spark."""
    return {
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        "spark.yarn.stagingDir": (tmp_path / "staging").as_uri(),
        "spark.yarn.am.memory": "384m",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "128m",
        "spark.driver.memoryOverhead": "128m",
        "spark.executor.instances": "1",
    }


def test_yarn_client_mode(yarn: Yarn, hdfs: Hdfs, tmp_path: Path) -> None:
    """The driver runs here, and executors run from the archive."""
    changes = {
        "/etc/hadoop/conf": str(yarn.configuration),
        "spark.executor.instances=4": "spark.executor.instances=1",
        "spark.executor.cores=4": "spark.executor.cores=1",
        "s3://bucket/clicks": hdfs.new_url(),
    }
    text = commands("dstreams run --master yarn", changes)
    with running(text, tmp_path / "here", on_yarn(tmp_path)) as driver:
        driver.wait_for(lambda: has_batches(driver.printed()))
        assert driver.stop() == 0
    require_exact(batches_in(driver.printed()))


def test_yarn_cluster_mode(yarn: Yarn, hdfs: Hdfs, tmp_path: Path) -> None:
    """YARN restarts a driver that was killed, and it counts on from its checkpoint."""
    changes = {
        "/etc/hadoop/conf": str(yarn.configuration),
        "/opt/spark": str(SPARK_HOME),
        "s3://bucket/clicks": hdfs.new_url(),
    }
    settings = {**on_yarn(tmp_path), "spark.dynamicAllocation.enabled": "false"}

    def drivers() -> list[str]:
        return [text for text in yarn.printed() if batches_in(text)]

    text = commands("--deploy-mode cluster", changes)
    with running(text, tmp_path / "here", settings) as client:
        client.wait_for(lambda: len(drivers()) == 1 and has_batches(drivers()[0]))
        (master,) = yarn.application_masters()
        end([*descendants(master.pid), master])
        client.wait_for(lambda: len(drivers()) == 2 and has_batches(drivers()[1]))
    first, second = map(batches_in, drivers())
    require_exact(first + second)
    assert sum(second[0][1].values()) >= sum(first[-1][1].values())

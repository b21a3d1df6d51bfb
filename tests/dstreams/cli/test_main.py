"""The command ``dstreams``, in processes of its own where Spark is started."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import psutil
import pyspark
import pytest

from checkpoint.cli.command_parser import CommandParser
from checkpoint.cli.common import time_ms
from dstreams.cli.main import main, parser
from tests.support.jvms import ENVIRONMENT
from tests.support.terminal import TerminalProgram
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.kafka_cluster import KafkaCluster

ROOT = Path(__file__).parents[3]
LIMIT_S = 600


def environment(**changes: str) -> Mapping[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_"))
    }
    return {**inherited, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **changes}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dstreams", *arguments]


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(**changes),
    )


@contextmanager
def started(*arguments: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a session of its own, so that signals meet what a terminal would hit."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


PAGE = re.compile(r"dstreams: live page: http://127\.0\.0\.1:40\d\d")


def own_errors(errors: str) -> list[str]:
    """Return the lines of errors, without the page's address and output of PySpark's daemon."""
    return [
        line
        for line in errors.splitlines()
        if "pyspark/daemon.py" not in line
        and not PAGE.fullmatch(line)
        and line
        not in ("Traceback (most recent call last):", "BrokenPipeError: [Errno 32] Broken pipe")
    ]


def first_line_with(text: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"no line has {text!r}")


@pytest.mark.deep
@pytest.mark.spark
def test_demo(tmp_path: Path) -> None:
    """The demo streams the standard library, finds its counts right and leaves nothing behind."""
    done = run("demo", "--megabytes", "0.3", "--cores", "2", TMPDIR=str(tmp_path))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_errors(done.stderr) == []
    assert [line for line in done.stderr.splitlines() if PAGE.fullmatch(line)]
    assert lines[0].startswith("counting the words of 0.3 MB of Python sources, received from 127.")
    assert re.match(r"\d\d:\d\d:\d\d batch_words=\d+ processing_ms=\d+ words=[1-9]", lines[-5])
    assert re.fullmatch(r"streamed: {4}[\d,]+ words, [\d,]+ distinct", lines[-3])
    assert lines[-2] == lines[-3].replace("streamed:   ", "independent:")
    assert lines[-1] == "the counts are equal, word by word"
    assert list(tmp_path.glob("dstreams-demo-*")) == []


@pytest.mark.deep
@pytest.mark.spark
def test_a_demo_that_stays(tmp_path: Path) -> None:
    """The page is there behind the result, until Ctrl-C; the exit status is that of the result."""
    words = ("demo", "--megabytes", "0.1", "--cores", "2", "--stay")
    with TerminalProgram(*command(*words), **environment(TMPDIR=str(tmp_path))) as demo:
        demo.wait_for("serving the live page until Ctrl-C")
        shown = PAGE.search(demo.text)  # its line may be above the screen
        assert shown is not None
        page = shown[0].split()[-1]
        with urlopen(f"{page}/status.json", timeout=300) as answer:  # noqa: S310
            (stream,) = json.load(answer)["streams"]
        demo.type("\x03")
        assert demo.end() == 0
    assert stream["recent"]
    assert "the counts are equal, word by word" in demo.shown


@pytest.mark.deep
@pytest.mark.spark
def test_a_quiet_demo(tmp_path: Path) -> None:
    """With --quiet only the result is printed."""
    words = ("demo", "--megabytes", "0.2", "--cores", "2", "--quiet")
    done = run(*words, TMPDIR=str(tmp_path))
    assert (done.returncode, own_errors(done.stderr)) == (0, [])
    assert not PAGE.search(done.stderr)
    assert len(done.stdout.splitlines()) == 3
    assert done.stdout.endswith("the counts are equal, word by word\n")


@pytest.mark.deep
@pytest.mark.spark
def test_demo_through_kafka(tmp_path: Path) -> None:
    """With --kafka the text goes through a mock cluster, and each line shows the lag."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    done = run("demo", "--kafka", "--megabytes", "0.3", "--cores", "2", TMPDIR=str(tmp_path))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_errors(done.stderr) == []
    assert re.fullmatch(r".*from topic dstreams-demo-\w+ of a mock Kafka cluster", lines[0])
    assert re.search(r" words=[1-9]\d* distinct=\d+ lag=0", lines[-5])
    assert lines[-1] == "the counts are equal, word by word"
    assert list(tmp_path.glob("dstreams-demo-*")) == []


@pytest.mark.deep
@pytest.mark.spark
def test_demo_on_a_broker(tmp_path: Path, kafka: KafkaCluster) -> None:
    """A file may name the brokers; no topic is left behind."""
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={kafka.bootstrap}\n")
    words = ("--config", str(config), "--megabytes", "0.3", "--cores", "2")
    done = run("demo", *words, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_errors(done.stderr) == []
    topic = re.search(r"from topic (dstreams-demo-\w+) of", done.stdout)
    assert topic is not None
    assert topic[1] not in kafka.admin.list_topics(timeout=300).topics


def test_demo_without_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are not named, or do not answer, are reported before Spark is started."""
    pytest.importorskip("confluent_kafka", reason="pip install -e '.[dev]'")
    monkeypatch.setattr("dstreams.cli.demo._ANSWER_S", 1.0)
    config = tmp_path / "client.properties"
    config.write_text("")
    assert main(["demo", "--config", str(config)]) == 2
    assert "needs bootstrap.servers, for example" in capsys.readouterr().err
    assert main(["demo", "--bootstrap-server", "127.0.0.1:9"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("dstreams demo: brokers 127.0.0.1:9: cannot create topic ")
    assert "give host and port of a running broker" in error


def test_demo_without_the_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra, the error says what to install, before Spark starts."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert main(["demo", "--kafka"]) == 3
    assert "pip install 'dstreams[kafka]'" in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM end the running demo with a word, a status of its own and no trace."""
    with started("demo", "--megabytes", "9", TMPDIR=str(tmp_path)) as process:
        first_line_with("batch_words=", process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
        assert own_errors(errors) == ["dstreams demo: interrupted"]
    assert list(tmp_path.glob("dstreams-demo-*")) == []


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("child", ["java", "pyspark-shell"])
def test_interrupted_before_spark_is_there(child: str) -> None:
    """Ctrl-C while Java is looked at, or started, ends both: Java would hold the output open."""
    with started("demo", "--megabytes", "9") as process:
        demo = psutil.Process(process.pid)
        wait_for(lambda: any(child in line for line in commands_below(demo)))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, errors
        assert own_errors(errors) == ["dstreams demo: interrupted"]


def commands_below(process: psutil.Process) -> list[str]:
    commands = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            commands.append(" ".join(child.cmdline()))
    return commands


@pytest.mark.deep
def test_closed_output() -> None:
    """When its output is closed, the demo ends silently."""
    with started("demo", "--megabytes", "9") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("counting")
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
        assert own_errors(errors) == []


def test_run_without_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a program, the error shows how the command is called."""
    assert main(["run"]) == 2
    assert capsys.readouterr().err == "dstreams run: which program? dstreams run app.py\n"


def test_the_version_loads_no_command() -> None:
    """No command, Spark or store is imported for --version and --help."""
    code = (
        "import sys; from dstreams.cli.main import parser; parser(()).format_help();"
        "unneeded = {'pyspark', 'dstreams.cli.commands', 'lmdb', 'msgspec'};"
        "sys.exit(bool(unneeded & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.deep
def test_no_java(tmp_path: Path) -> None:
    """Without Java the error says what is needed and how to install it, and no traceback."""
    done = run("demo", JAVA_HOME=str(tmp_path))
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dstreams demo: PySpark {pyspark.__version__} needs Java ")
    assert "apt-get install openjdk-17" in line
    assert done.stdout == ""


@pytest.mark.deep
def test_jvm_that_does_not_start() -> None:
    """A JVM that cannot start is a problem of the machine, without a traceback."""
    done = run("demo", PYSPARK_SUBMIT_ARGS="--no-such-option pyspark-shell")
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dstreams demo: Spark could not be started on this machine: ")
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_no_place_for_files(tmp_path: Path) -> None:
    """A missing directory for temporary files is not a failed stream."""
    source = (
        "import sys, tempfile\n"
        f"tempfile.tempdir = {str(tmp_path / 'missing')!r}\n"
        "from dstreams.cli.main import main\n"
        "sys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode == 3
    assert re.fullmatch(r"dstreams demo: .*No such file or directory: .*missing.*\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "unknown command 'dance'; the commands are run, "),
        (["chekpoint"], "unknown command 'chekpoint'; did you mean 'checkpoint'?"),
        (["demo", "--megabytes", "much"], "'much' must be a number of megabytes, at least 0.01"),
        (["demo", "--megabytes", "0"], "'0' must be a number of megabytes, at least 0.01"),
        (["demo", "--megabytes", "nan"], "'nan' must be a number of megabytes, at least 0.01"),
        (["demo", "--megabytes", "inf"], "'inf' must be a number of megabytes, at least 0.01"),
        (["demo", "--timeout", "-1"], "'-1' must be a number of seconds, at least 1"),
        (["demo", "--cores", "0"], "'0' must be a whole number of cores, at least 1"),
        (["demo", "--cores", "two"], "'two' must be a whole number of cores, at least 1"),
        (["demo", "--bootstrap-server", "broker"], "'broker' must be HOST:PORT, or several "),
        (["demo", "--bootstrap-server", "b:0"], "'b:0' must be HOST:PORT, or several "),
        (["demo", "--fast"], "unknown option '--fast'; see dstreams demo --help"),
        (["demo", "--megabites", "9"], "unknown option '--megabites'; did you mean '--megabytes'?"),
        (["demo", "twice"], "unexpected argument 'twice'; see dstreams demo --help"),
        (["drill", "--kils=3"], "unknown option '--kils'; did you mean '--kills'"),
        (
            ["run", "--masterr", "x", "app.py"],
            "unknown option '--masterr'; did you mean '--master'",
        ),
        (
            ["checkpoint", "rewind", "x", "--too", "1"],
            "unknown option '--too'; did you mean '--to'?",
        ),
    ],
)
def test_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error has status 2 and the usage, and starts nothing."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("usage: dstreams")
    assert message in errors


def test_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tools of checkpoint, with their own help and exit status."""
    assert main(["checkpoint", "list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} has no streams\n"
    assert main(["checkpoint", "show", str(tmp_path / "missing")]) == 2
    with pytest.raises(SystemExit) as stopped:
        main(["checkpoint", "verify", "--help"])
    assert stopped.value.code == 0
    assert "usage: dstreams checkpoint verify" in capsys.readouterr().out


def parsers_below(one: argparse.ArgumentParser) -> Iterator[CommandParser]:
    assert isinstance(one, CommandParser)
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers_below(below)


PARSERS = {one.prog: one for one in parsers_below(parser())}


@pytest.mark.parametrize("command", PARSERS)
def test_every_help_page(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A help page fits 80 columns, describes the command, and wraps no example."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = PARSERS[command].format_help().splitlines()
    assert [line for line in lines if len(line) > 80 or "`" in line] == []
    assert PARSERS[command].description
    for example in PARSERS[command].examples:
        assert f"  {command} {example}" in lines


@pytest.mark.parametrize("command", PARSERS)
def test_examples(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command has an example, which is a way to call it."""
    monkeypatch.chdir(tmp_path)
    for name in ("app.py", "old.py"):
        (tmp_path / name).touch()
    words = command.split()[1:]
    assert PARSERS[command].examples
    for example in PARSERS[command].examples:
        options = parser().parse_args([*words, *example.split()])
        assert callable(options.run)


def test_one_word_for_one_thing() -> None:
    """An option takes the same in every command that has it."""
    taken: dict[str, set[str | None]] = {}
    for one in PARSERS.values():
        for action in one._actions:
            for name in action.option_strings:
                shown = action.metavar if isinstance(action.metavar, str) else None
                taken.setdefault(name, set()).add(shown)
    assert {name: shown for name, shown in taken.items() if len(shown) > 1} == {}
    options = [action for one in PARSERS.values() for action in one._actions]
    assert {one.metavar for one in options if one.dest == "url"} == {"CHECKPOINT"}
    assert {one.metavar for one in options if one.type is time_ms} == {"TIME"}


@pytest.mark.parametrize("words", [[], ["checkpoint"]])
def test_a_command_alone(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without more words a command shows what there is."""
    assert main(words) == 0
    shown = capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert shown == capsys.readouterr()
    assert "  run " in shown.out or "  rewind " in shown.out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is that of the package, with those of what it runs on."""
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert re.match(r"dstreams (\d+\.\d+\.\d+|\(not installed\)), PySpark \d", said)
    assert f"PySpark {pyspark.__version__}, Python {sys.version_info.major}." in said


@pytest.mark.parametrize("command", ["demo", "drill"])
def test_help_lists_the_exit_status(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command documents each exit status."""
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    listed = text.partition("exit status:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == ["0", "1", "2", "3", "130"]

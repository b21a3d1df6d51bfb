"""Progress of long work: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from checkpoint.cli import progress_bar
from checkpoint.cli.progress_bar import SILENT, ProgressLines, StageProgress, painted, progress_on
from tests.checkpoint.cli.conftest import Run
from tests.support.terminal import COLOURS, ESCAPES, HIDDEN_CURSOR, ROOT, on_terminal

# Each step waits for a line, so that the test decides when it continues.
STEPS = """
import sys
from checkpoint.cli.progress_bar import progress_on
with progress_on(sys.stderr, "checkpoint") as progress:
    out = progress.above(sys.stdout)
    for number in progress.over(range(2000), "reading files"):
        if number in (500, 1000, 1500):
            word = input()
            if word:
                print(word, file=out)
print("all is done")
"""


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    """Text in memory that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_lines_come_now_and_then() -> None:
    """The first line comes after five seconds, with the stage, the count and the time."""
    clock, lines = Clock(), []
    shown = ProgressLines(lambda stage: lines.append((clock.now_s, str(stage))), clock)
    for number in shown.over(range(4000), "reading files"):
        clock.now_s = (number + 1) / 400
    assert [line for _, line in lines] == [
        "reading files: 2,000 of 4,000, 5 s",
        "reading files: 4,000 of 4,000, 10 s",
    ]


def test_a_day_has_few_lines() -> None:
    """The number of lines is bounded, however long the work takes."""
    clock, times = Clock(), []
    shown = ProgressLines(lambda stage: times.append(clock.now_s), clock)
    shown.begin("reading files", 864_000)
    for number in range(864_000):
        clock.now_s = number / 10
        shown.advance()
    assert 100 < len(times) < 160
    assert all(later - earlier >= 5 for earlier, later in pairwise(times))


def test_a_stage_without_a_number() -> None:
    """Without a total, the line has the count or the time."""
    clock = Clock()
    stage = StageProgress(clock)
    stage.begin("starting Spark")
    clock.now_s = 7
    assert str(stage) == "starting Spark: 7 s"
    stage.advance(1200)
    assert str(stage) == "starting Spark: 1,200, 7 s"


def test_lines_for_programs() -> None:
    """With JSON, each line is one object."""
    clock, out = Clock(), io.StringIO()
    with progress_on(out, "checkpoint", as_json=True, now_s=clock) as shown:
        for _ in shown.over("ab", "reading files"):
            clock.now_s += 5.25
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"progress": "reading files", "done": 1, "total": 2, "seconds": 5.2},
        {"progress": "reading files", "done": 2, "total": 2, "seconds": 10.5},
    ]


def test_lines_for_people() -> None:
    """A line begins with the name of its command."""
    clock, out = Clock(), io.StringIO()
    with progress_on(out, "checkpoint", now_s=clock) as shown:
        shown.begin("reading files", 2)
        clock.now_s = 5
        shown.advance()
    assert out.getvalue() == "checkpoint: reading files: 1 of 2, 5 s\n"


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()])
def test_quiet(out: io.StringIO) -> None:
    """With --quiet nothing is shown, on a terminal as well."""
    assert progress_on(out, "checkpoint", is_quiet=True) is SILENT
    assert list(SILENT.over("ab", "reading files")) == ["a", "b"]
    assert SILENT.above(out) is out


@pytest.mark.parametrize("error", [BrokenPipeError, OSError, ValueError])
def test_nobody_reads(error: type[Exception]) -> None:
    """Work continues if its progress cannot be written, and nothing more is written."""
    clock = Clock()
    writes: list[str] = []

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            raise error("nobody")

    done = []
    with progress_on(Closed(), "checkpoint", now_s=clock) as shown:
        for item in shown.over("abc", "reading files"):
            done.append(item)
            clock.now_s += 5
    assert (done, len(writes)) == (["a", "b", "c"], 1)


COLOUR_RULES = [
    {},
    {"NO_COLOR": "1"},
    {"NO_COLOR": ""},
    {"FORCE_COLOR": "1"},
    {"FORCE_COLOR": ""},
    {"FORCE_COLOR": "1", "NO_COLOR": "1"},
    {"TERM": "dumb"},
    {"TERM": "dumb", "FORCE_COLOR": "1"},
    {"TERM": "unknown"},
]


@pytest.mark.parametrize("out", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
@pytest.mark.parametrize("rules", COLOUR_RULES, ids=str)
def test_colours(rules: dict[str, str], out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is coloured when rich would colour it."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **rules}.items():
        monkeypatch.setenv(name, value)
    console = Console(file=out)
    is_coloured = console.color_system is not None and not console.no_color
    text = painted("good", "green", out)
    assert text == ("\033[32mgood\033[0m" if is_coloured else "good")


@pytest.mark.deep
@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_bar(columns: int) -> None:
    """The bar fits the terminal, advances, and is removed; the cursor stays visible."""
    with on_terminal(STEPS, columns=columns) as program:
        program.wait_for("25 %" if columns < 40 else "500 of 2,000")
        program.type("\n\n")
        program.wait_for("75 %" if columns < 40 else "1,500 of 2,000")
        program.type("\n")
        assert program.end() == 0
    assert program.shown == ["all is done"]
    assert max(map(len, program.drawn)) < columns
    assert columns < 80 or any("━" in line for line in program.drawn)
    assert HIDDEN_CURSOR not in program.text
    assert program.screen.cursor.x == 0


def test_lines_above_a_bar() -> None:
    """Text printed in the meantime is above the bar, complete."""
    with on_terminal(STEPS) as program:
        program.wait_for("500 of 2,000")
        program.type("first\n")
        program.wait_for("1,000 of 2,000")
        assert program.shown[-2:][0] == "first"
        program.type("second\n\n")
        assert program.end() == 0
    assert [line for line in program.shown if line] == ["first", "second", "all is done"]


def test_standard_streams_come_back() -> None:
    """The standard streams are restored, unless the program has replaced them."""
    code = """
import sys
from checkpoint.cli.progress_bar import progress_on
before, own = sys.stdout, open("/dev/null", "w")
with progress_on(sys.stderr, "checkpoint") as progress:
    progress.begin("reading files")
    assert sys.stdout is not before
    sys.stderr = own
    print("not", end=" ")
    input()
    print("in parts")
    input()
sys.exit(sys.stdout is before and sys.stderr is own)
"""
    with on_terminal(code) as program:
        program.wait_for("not")
        program.type("\n")
        program.wait_for("reading files")
        assert program.shown[0] == "not in parts"
        program.type("\n")
        assert program.end() == 1
    assert program.shown == ["not in parts"]


def test_a_terminal_gets_narrow() -> None:
    """The bar adapts to a new width."""
    with on_terminal(STEPS, columns=120) as program:
        program.wait_for("500 of 2,000")
        program.resize(30)
        program.wait_for("25 %  0:")
        known = len(program.text)
        program.type("\n")
        program.wait_until(lambda: "50 %" in program.text[known:])
        program.type("\n\n")
        assert program.end() == 0
        lines = ESCAPES.sub("", program.text[known:]).replace("\n", "\r").split("\r")
        assert max(map(len, lines)) < 30


def test_interrupted() -> None:
    """After Ctrl-C the bar is gone, and the line is empty."""
    with on_terminal(STEPS) as program:
        program.wait_for("500 of 2,000")
        program.type("\x03")
        assert program.end() != 0
    assert not any("reading files" in line for line in program.shown)
    assert "KeyboardInterrupt" in program.shown
    assert program.screen.cursor.x == 0


@pytest.mark.parametrize(
    ("name", "value", "is_drawn"), [("NO_COLOR", "1", True), ("TERM", "dumb", False)]
)
def test_without_colours(name: str, value: str, is_drawn: bool) -> None:
    """NO_COLOR draws the bar without colours; a dumb terminal has no bar."""
    with on_terminal(STEPS, **{name: value}) as program:
        if is_drawn:
            program.wait_for("500 of 2,000")
        program.type("\n\n\n")
        assert program.end() == 0
    assert not COLOURS.search(program.text)
    assert is_drawn == bool(ESCAPES.search(program.text))
    assert program.shown[-1] == "all is done"


def test_an_encoding_without_bars() -> None:
    """On an ASCII terminal the bar is ASCII, too."""
    with on_terminal(STEPS, PYTHONIOENCODING="ascii") as program:
        program.wait_for("500 of 2,000")
        program.type("\n\n\n")
        assert program.end() == 0
    assert program.text.isascii()


def test_a_terminal_that_goes_away(tmp_path: Path) -> None:
    """Work continues to its end if the terminal is closed, as under nohup."""
    done = tmp_path / "done"
    code = f"""
import pathlib, signal, sys
from checkpoint.cli.progress_bar import progress_on
from tests.support.waiting import wait_for
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with progress_on(sys.stderr, "checkpoint") as progress:
    progress.begin("reading files", 2000)
    try:
        input()
    except EOFError:
        pass
    wait_for(lambda: progress._live.console.file._out is None)  # drawing has failed
    progress.advance()
pathlib.Path({str(done)!r}).touch()
"""
    with on_terminal(code) as program:
        program.wait_for("0 of 2,000")
        program.hang_up()
        program.end()
    assert done.exists()


def test_rich_is_imported_on_use() -> None:
    """Short commands do not import rich."""
    code = "import sys, checkpoint.cli; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# The command, with a file that is read when somebody says so.
SLOW_VERIFY = """
import sys
from checkpoint.cli.main import main
from checkpoint.cli import verify
read_whole = verify._read_whole
def slowly(files, name, findings):
    if findings.checked == 5:
        input()
    return read_whole(files, name, findings)
verify._read_whole = slowly
sys.exit(main(sys.argv[1:]))
"""


def test_verify_on_a_terminal(url: Path) -> None:
    """The bar counts files; the summary remains as the last line, in green."""
    with on_terminal(SLOW_VERIFY, "verify", str(url)) as program:
        program.wait_for("reading files")
        assert any(" 4 of " in line for line in program.shown)
        program.type("\n")
        assert program.end() == 0
    (verdict,) = program.shown
    assert verdict.endswith(" files verified, no problems")
    assert f"\x1b[32m{verdict}\x1b[0m" in program.text


def test_verify_interrupted(url: Path) -> None:
    """Ctrl-C ends the command with a message, status 130, and without a trace of the bar."""
    with on_terminal(SLOW_VERIFY, "verify", str(url)) as program:
        program.wait_for("reading files")
        program.type("\x03")
        assert program.end() == 130
    assert program.shown == ["python -m checkpoint verify: interrupted"]


def test_verify_quietly_on_a_terminal(url: Path) -> None:
    """With --quiet only the result is shown."""
    with on_terminal(SLOW_VERIFY, "verify", str(url), "--quiet", NO_COLOR="1") as program:
        program.type("\n")
        assert program.end() == 0
    assert program.text.endswith(" files verified, no problems\r\n")
    assert program.text.count("\n") == 1


def test_commands_tell_programs(
    url: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json each stage is an object on standard error; the result is unchanged."""
    monkeypatch.setattr(progress_bar, "_FIRST_S", 0)
    monkeypatch.setattr(progress_bar, "_SHARE", 10**9)
    file, copy = tmp_path / "stream", tmp_path / "copy"
    seen = {}
    for command in (
        ("verify", url),
        ("export", url, file),
        ("import", file, copy),
        ("gc", copy),
    ):
        if command[0] == "gc":
            (next(copy.iterdir()) / ".0123456789abcdef.tmp").touch()
        status, data, errors = run(*command)
        assert status == 0
        assert "progress" not in data
        told = [json.loads(line) for line in errors.splitlines()]
        assert all(one["done"] <= one["total"] for one in told)
        seen[command[0]] = list(dict.fromkeys(one["progress"] for one in told))
    reading = ["reading files", "reading commit records", "following records"]
    assert seen["verify"][:3] == reading
    first = ["reading commit records", "writing the export"]
    assert seen["export"] == list(dict.fromkeys([*first, *seen["verify"]]))
    assert seen["import"] == [*seen["verify"], "writing files"]
    assert seen["gc"] == ["reading commit records", "deleting files"]
    assert run("verify", url, "--quiet")[2] == ""


def test_commands_in_a_pipe(url: Path, run: Run) -> None:
    """Short work reports no progress."""
    status, lines, errors = run("verify", url, as_json=False)
    assert (status, errors) == (0, "")
    assert lines[-1].endswith(" files verified, no problems")

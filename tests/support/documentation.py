"""The examples of a page of the documentation, and what they print.

What a page says of a block stands in comments on the lines before it, and its title in the fence:
CONTRIBUTING.md has the words.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 600
BROKER = "localhost:9092"

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<info>.*?)\s*$")
_TITLE = re.compile(r'title="([^"]+)"')
_COMMENT = re.compile(r"^<!--\s*(?P<word>not run|status|raises|needs)\b:?\s*(?P<rest>.*?)\s*-->$")
_BACKGROUND = re.compile(r"(?<![&>])&(?![&>])")
_WRITTEN_TO = re.compile(r">\s*([^\s&;|<>()]+)")
# What librdkafka says of its own threads, in one run of many, and the progress of slow commands.
_CHATTER = re.compile(r"^(?:%[67]\||dstreams [\w ]+: [\w ]+: \d+ of \d+, ).*\n?", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class ExampleError(AssertionError):
    """An example of a page is not what it says, at a line of it."""

    def __init__(self, block: Block, problem: str) -> None:
        super().__init__(f"line {block.line}: {problem}")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        line: number of the line of its fence, from 1.
        language: first word behind the fence, or nothing.
        text: what is in it, ends with a newline unless it is empty.
        title: file that it is, or None.
        comments: what the comments before it say, by their first word.
        is_output: whether it is a text that stands right behind a block of Python.
    """

    line: int
    language: str
    text: str
    title: str | None = None
    comments: Mapping[str, str] = field(default_factory=dict)
    is_output: bool = False

    @property
    def is_run(self) -> bool:
        """Whether nothing says that it cannot be run."""
        return "not run" not in self.comments

    @property
    def is_code(self) -> bool:
        """Whether it is run in the namespace of its page."""
        return self.language == "python" and self.title is None and self.is_run

    @property
    def is_console(self) -> bool:
        """Whether its commands are run."""
        return self.language == "console" and self.is_run


@dataclass(frozen=True)
class Command:
    """A command of a console, with the lines that it prints."""

    line: str
    output: list[str]


@dataclass(frozen=True)
class Page:
    """A page of the documentation.

    Attributes:
        blocks: all that are fenced, in order.
        needs_kafka: whether it says that a broker belongs to it.
    """

    blocks: list[Block]
    needs_kafka: bool = False

    @property
    def has_code(self) -> bool:
        """Whether a SparkContext belongs to it."""
        return any(block.is_code for block in self.blocks)

    @property
    def has_console(self) -> bool:
        """Whether it has commands to be run."""
        return any(block.is_console for block in self.blocks)


def read_page(text: str) -> Page:
    """Return the blocks of a page in Markdown."""
    blocks: list[Block] = []
    comments: dict[str, str] = {}
    needs_kafka = False
    after_code: Block | None = None
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opened = _FENCE.match(line)
        if opened is None:
            if comment := _COMMENT.match(line.strip()):
                if comment["word"] == "needs":
                    needs_kafka = needs_kafka or comment["rest"] == "kafka"
                else:
                    comments[comment["word"]] = comment["rest"]
            elif line.strip():
                comments, after_code = {}, None
            continue
        content = _content(lines, opened, number)
        words = opened["info"].replace("{", " ").split() or [""]
        title = _TITLE.search(opened["info"])
        block = Block(
            number,
            words[0].strip(".}"),
            content,
            title[1] if title else None,
            comments,
            is_output=words[0] == "text" and after_code is not None,
        )
        blocks.append(block)
        after_code = block if block.is_code else None
        comments = {}
    return Page(blocks, needs_kafka)


def _content(lines: Iterator[tuple[int, str]], opened: re.Match[str], number: int) -> str:
    indent = len(opened["indent"])
    found = []
    for _, line in lines:
        if line.strip().startswith(opened["fence"]) and not line.strip().strip("`~"):
            return "".join(f"{each}\n" for each in found)
        found.append(line[indent:] if not line[:indent].strip() else line)
    raise AssertionError(f"line {number}: the block is not closed")


def commands_of(block: Block) -> list[Command]:
    """Return what a console runs; a command goes on behind a backslash at the end of a line."""
    commands: list[Command] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = f"{command[:-1]}{next(lines).removeprefix('> ').lstrip()}"
            commands.append(Command(command, []))
        elif not commands:
            raise ExampleError(block, "a console begins with a command, in a line with `$ `")
        else:
            commands[-1].output.append(line)
    return commands


def matches(expected: Sequence[str], found: Sequence[str]) -> bool:
    """Whether lines are those that are expected, where three dots stand for any text or lines."""
    wanted, lines = _trimmed(expected), _trimmed(found)
    reached = {0}  # how many lines are used up by what is wanted so far
    for pattern in wanted:
        if pattern.strip() == "...":
            reached = set(range(min(reached), len(lines) + 1))
            continue
        text = re.compile(".*".join(re.escape(part) for part in pattern.split("...")))
        reached = {at + 1 for at in reached if at < len(lines) and text.fullmatch(lines[at])}
        if not reached:
            return False
    return len(lines) in reached


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Return lines without colours, blanks at their ends and empty lines at the end of all."""
    kept = [_COLOUR.sub("", line).rsplit("\r", 1)[-1].rstrip() for line in lines]
    while kept and not kept[-1]:
        kept.pop()
    return kept


def check_output(block: Block, what: str, expected: Sequence[str], found: str) -> None:
    """Fail, with both, where what was printed is not what the page shows."""
    if not matches(expected, found.splitlines()):
        raise ExampleError(
            block,
            f"{what} printed\n\n{found}\nwhere the page shows\n\n" + "\n".join(expected),
        )


def check_data(block: Block) -> None:
    """Fail where a block of YAML, JSON, TOML or INI is none, or a file of Python does not parse."""
    try:
        _parse(block)
    except Exception as error:
        raise ExampleError(block, f"this is no {block.language}: {error}") from error


def _parse(block: Block) -> None:
    text = block.text
    if block.language in ("yaml", "yml"):
        import yaml  # noqa: PLC0415 - comes with the extra 'docs'

        list(yaml.safe_load_all(text))
    elif block.language == "json":
        json.loads(text)
    elif block.language == "toml" and sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415

        tomllib.loads(text)
    elif block.language == "ini":
        configparser.RawConfigParser(strict=False, allow_no_value=True).read_string(text)
    elif block.language == "python":
        compile(text, block.title or "page", "exec")


class Shell:
    """Runs the commands of a page in its directory, one after another as a reader would.

    A command finds the directory, the variables and the background programs of those before it.

    Args:
        directory: where to.
        variables: of the environment.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self._directory = directory
        self._kept = directory.parent / f"{directory.name}.shell"
        self._kept.mkdir()
        home = self._kept / "home"
        home.mkdir()
        unset = ("PYTHONPATH", "FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE")
        self._environment = {
            **{key: value for key, value in os.environ.items() if key not in unset},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",  # the lines come in their order
            **variables,
        }
        self._groups: list[int] = []
        self._commands = 0

    def run(self, command: str) -> tuple[int, str]:
        """Return the exit status of a command, and what it printed."""
        state = shlex.quote(str(self._kept / "state"))
        # What is left in the background has its files when the next command looks for them.
        files = _WRITTEN_TO.findall(command) if _BACKGROUND.search(command) else []
        waits = (
            f"for _ in {{1..1800}}; do [ -e {file} ] && break; sleep 0.1; done" for file in files
        )
        script = (
            f"[ -e {state} ] && . {state}\n"
            f"{command}\n"
            "code=$?\n"
            + "".join(f"{wait}\n" for wait in waits)
            + f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}\nexit $code\n"
        )
        printed = self._kept / f"printed-{self._commands}"
        with open(printed, "wb") as out, open(os.devnull, "rb") as nothing:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self._directory,
                env=self._environment,
                stdin=nothing,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._commands += 1
            try:
                status = process.wait(LIMIT_S)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 0)
                    # Something is left of it: else its number may be that of others by the end.
                    self._groups.append(process.pid)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise AssertionError(
                    f"`{command}` runs after {LIMIT_S} s; so far it printed\n\n"
                    + printed.read_text(encoding="utf-8", errors="replace")
                ) from None
        text = printed.read_text(encoding="utf-8", errors="replace")
        return status, _CHATTER.sub("", text)

    def close(self) -> None:
        """End what still runs in the background."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


class Namespace:
    """Runs the Python of a page, block by block, as a program of its own would be run.

    Args:
        sc: a SparkContext under this name, or None for a page that needs none.
    """

    def __init__(self, sc: Any = None) -> None:
        # What Spark sends to its workers by value is what is of the main program.
        self._module = types.ModuleType("__main__")
        if sc is not None:
            vars(self._module)["sc"] = sc

    def run(self, block: Block) -> str:
        """Return what a block printed; an error that the page shows is the last line of it."""
        code = compile("\n" * block.line + block.text, "page", "exec")
        printed = io.StringIO()
        main = sys.modules["__main__"]
        sys.modules["__main__"] = self._module
        try:
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("default")
                exec(code, vars(self._module))  # noqa: S102 - that is what examples are for
        except Exception as error:
            if "raises" not in block.comments:
                raise
            print(f"{type(error).__name__}: {error}", file=printed)
        else:
            if "raises" in block.comments:
                raise ExampleError(block, "the page says that it raises an error, and it does not")
        finally:
            sys.modules["__main__"] = main
        return printed.getvalue()


def run_page(
    page: Page, directory: Path, sc: Any = None, variables: Mapping[str, str] | None = None
) -> None:
    """Run the examples of a page in its directory, which is there and empty."""
    namespace = Namespace(sc)
    shell = Shell(directory, variables or {})
    kafka = (variables or {}).get("KAFKA", BROKER)
    output: str | None = None
    try:
        for given in page.blocks:
            block = Block(**{**vars(given), "text": given.text.replace(BROKER, kafka)})
            if block.is_output:
                code, output = output, None
                if code is not None:
                    check_output(block, "the block before", block.text.splitlines(), code)
                continue
            output = None
            if not block.is_run:
                continue
            if block.title is not None:
                _write(directory, block)
            if block.is_code:
                output = namespace.run(block)
            elif block.is_console:
                _run_console(shell, block)
            else:
                check_data(block)
    finally:
        shell.close()


def _write(directory: Path, block: Block) -> None:
    path = (directory / (block.title or "")).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise ExampleError(block, f"{block.title} is outside of the directory of the page")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


def _run_console(shell: Shell, block: Block) -> None:
    commands = commands_of(block)
    for number, command in enumerate(commands, 1):
        status, printed = shell.run(command.line)
        is_last = number == len(commands)
        expected = int(block.comments.get("status", 0)) if is_last else 0
        if status != expected:
            raise ExampleError(
                block, f"`{command.line}` ended with {status}, not {expected}:\n\n{printed}"
            )
        if not command.line.rstrip().endswith("&"):  # what runs on prints when it likes
            check_output(block, f"`{command.line}`", command.output, printed)

"""Argument parsers: examples in the help, and errors with suggestions."""

from __future__ import annotations

import argparse

import pytest

from checkpoint.cli.command_parser import CommandParser, closest


@pytest.fixture
def parser() -> CommandParser:
    parser = CommandParser(prog="tool")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    make = commands.add_parser("make", help="m", examples=["--size 3", "here"], epilog="More.")
    make.add_argument("--size", type=int)
    make.add_argument("--speed")
    make.add_argument("--kind", choices=["round", "square"])
    make.add_argument("--where", required=True)
    run = commands.add_parser("run", examples=["it"])
    run.add_argument("--quiet", action="store_true")
    run.add_argument("program")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def test_examples(parser: CommandParser) -> None:
    """Examples name the command as it was called, and precede the epilog."""
    help_pages = parser._subparsers._group_actions[0].choices  # type: ignore[union-attr, index]
    make, run = help_pages["make"].format_help(), help_pages["run"].format_help()  # type: ignore[index]
    assert make.endswith("examples:\n  tool make --size 3\n  tool make here\n\nMore.\n")
    assert run.endswith("example:\n  tool run it\n")


def test_arguments_of_a_program() -> None:
    """They follow two dashes, wherever the options of the command are."""
    parser = CommandParser(prog="tool")
    parser.add_argument("--app")
    parser.add_argument("url")
    parser.add_argument("arguments", nargs="*")
    found = parser.parse_args(["here", "--app", "a.py", "--", "--app", "b"])
    assert (found.url, found.app, found.arguments) == ("here", "a.py", ["--app", "b"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("mak", "tool: error: unknown command 'mak'; did you mean 'make'?"),
        ("dance", "tool: error: unknown command 'dance'; the commands are make, run"),
        ("--versoin", "tool: error: unknown option '--versoin'; see tool --help"),
        ("make --sise 3", "tool make: error: unknown option '--sise'; did you mean '--size'?"),
        ("make --sp=3", "tool make: error: unknown option '--sp'; did you mean '--speed'?"),
        ("make --where a b", "tool make: error: unexpected argument 'b'; see tool make --help"),
        ("make -w a", "tool make: error: the following arguments are required: --where"),
        (
            "make --where a --kind sqare",
            "tool make: error: argument --kind: 'sqare' must be one of round, square; "
            "did you mean 'square'?",
        ),
        (
            "make --where a --kind x",
            "tool make: error: argument --kind: 'x' must be one of round, square",
        ),
        (
            "run --quite it",
            "tool run: error: unknown option '--quite'; did you mean '--quiet'?",
        ),
    ],
)
def test_what_was_meant(
    words: str, error: str, parser: CommandParser, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown word is reported with similar ones, before missing arguments are."""
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words.split())
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == error


def test_options_of_a_program(parser: CommandParser) -> None:
    """Options after a program belong to the program."""
    options = parser.parse_args(["run", "--quiet", "it", "--quite", "--", "-x"])
    assert (options.quiet, options.arguments) == (True, ["--quite", "--", "-x"])


def test_after_two_dashes(parser: CommandParser) -> None:
    """After ``--`` no word is an option."""
    assert parser.parse_args(["run", "--", "--it"]).program == "--it"


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("verfy", ["verify"]),
        ("stat", ["state"]),
        ("ex", ["export", "extend"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_closest(word: str, near: list[str]) -> None:
    """Words that begin with the text come first, then similar ones, at most two."""
    assert closest(word, ["verify", "export", "state", "extend", "exit"]) == near

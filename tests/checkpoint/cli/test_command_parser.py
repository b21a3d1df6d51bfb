"""Parsers of commands: examples in their help, and errors that say what may have been meant."""

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
    """Examples name the command as it was called, and stand before what is told besides."""
    help_pages = parser._subparsers._group_actions[0].choices  # type: ignore[union-attr, index]
    make, run = help_pages["make"].format_help(), help_pages["run"].format_help()  # type: ignore[index]
    assert make.endswith("examples:\n  tool make --size 3\n  tool make here\n\nMore.\n")
    assert run.endswith("example:\n  tool run it\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("mak", "tool: error: there is no command 'mak'; did you mean 'make'?"),
        ("dance", "tool: error: there is no command 'dance'; there are make, run"),
        ("--versoin", "tool: error: there is no option '--versoin'; see tool --help"),
        ("make --sise 3", "tool make: error: there is no option '--sise'; did you mean '--size'?"),
        ("make --sp=3", "tool make: error: there is no option '--sp'; did you mean '--speed'?"),
        ("make --where a b", "tool make: error: 'b' is an argument too many; see tool make --help"),
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
            "tool run: error: there is no option '--quite'; did you mean '--quiet'?",
        ),
    ],
)
def test_what_was_meant(
    words: str, error: str, parser: CommandParser, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that nobody knows is named, with those that are near, before what is missing."""
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words.split())
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == error


def test_options_of_a_program(parser: CommandParser) -> None:
    """What follows a program is its own, whatever it looks like."""
    options = parser.parse_args(["run", "--quiet", "it", "--quite", "--", "-x"])
    assert (options.quiet, options.arguments) == (True, ["--quite", "--", "-x"])


def test_after_two_dashes(parser: CommandParser) -> None:
    """After ``--`` a word is no option."""
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
    """What a word begins comes first, then what differs by a letter; not more than two."""
    assert closest(word, ["verify", "export", "state", "extend", "exit"]) == near

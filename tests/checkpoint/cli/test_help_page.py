"""Help pages fit the terminal, and keep paragraphs and rows."""

from __future__ import annotations

import argparse

import pytest

from checkpoint.cli.command_parser import HelpPage
from checkpoint.cli.main import _COMMANDS, main

TEXT = """``gc``: deletes what no record names, and on demand what does not count.

exit status:
    0  done, and there is nothing more to say of it
  130  interrupted by Ctrl-C, or by a signal, while it was about to
       delete something

examples:
  python -m checkpoint gc /data/checkpoint
"""

COMMANDS = [add.__name__.removeprefix("add_") for add in _COMMANDS]


@pytest.mark.parametrize(
    ("columns", "page"),
    [
        (
            "80",
            [
                "gc: deletes what no record names, and on demand what does not count.",
                "",
                "exit status:",
                "    0  done, and there is nothing more to say of it",
                "  130  interrupted by Ctrl-C, or by a signal, while it was about to delete",
                "       something",
                "",
                "examples:",
                "  python -m checkpoint gc /data/checkpoint",
            ],
        ),
        (
            "40",
            [
                "gc: deletes what no record names, and",
                "on demand what does not count.",
                "",
                "exit status:",
                "    0  done, and there is nothing more",
                "       to say of it",
                "  130  interrupted by Ctrl-C, or by a",
                "       signal, while it was about to",
                "       delete something",
                "",
                "examples:",
                "  python -m checkpoint gc",
                "    /data/checkpoint",
            ],
        ),
    ],
)
def test_texts(columns: str, page: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Paragraphs are wrapped, and rows continue below their text."""
    monkeypatch.setenv("COLUMNS", columns)
    parser = argparse.ArgumentParser("x", epilog=TEXT, formatter_class=HelpPage)
    assert parser.format_help().partition("gc:")[2].splitlines() == [
        page[0].removeprefix("gc:"),
        *page[1:],
    ]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_page_fits(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line of a help page is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"], prog="dstreams checkpoint")
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 or "`" in line] == []

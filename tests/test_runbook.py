"""The runbook names what there is: exit statuses, alerts, and what verify says. No Spark."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from checkpoint.cli.verify import Note
from checkpoint.errors import Damage
from dstreams import errors
from dstreams.cli.main import parser
from dstreams.engine.signals import STATUSES

DOCS = Path(__file__).parents[1] / "docs"
PAGES = DOCS / "pages" / "operations"
STATUS = re.compile(r"^  +(\d+)  +\S", re.MULTILINE)
ROW = re.compile(r"^\| (.+?) \| (.+) \| (.+) \|$", re.MULTILINE)


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def sections(name: str, level: str) -> dict[str, str]:
    """Return what stands below each heading of a level."""
    _, *parts = re.split(rf"^{level} (.+)$", page(name), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def statuses_of(section: str) -> list[int]:
    """Return the exit statuses in the table of a section."""
    return [int(row[0]) for row in ROW.findall(section) if row[0].isdecimal()]


def commands() -> Iterator[tuple[str, list[int]]]:
    """Give each command with the exit statuses that its help names."""
    found = {}
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    for name, command in found.items():
        _, said, statuses = (command.epilog or "").partition("exit status:")
        if said:
            yield f"dstreams {name}", list(map(int, STATUS.findall(statuses)))


def test_exit_statuses_of_commands() -> None:
    """Each status that the help of a command names has its row, and no other has."""
    there = sections("exit-statuses.md", "##")
    wanted = dict(commands())
    assert wanted["dstreams checkpoint"][-1] == 130
    assert {name: statuses_of(text) for name, text in there.items() if name in wanted} == wanted
    assert there.keys() == {"A driver", *wanted}


def test_exit_statuses_of_a_driver() -> None:
    """So has each status of a driver, and each kind of error that it can end with."""
    section, errors_of_driver = sections("exit-statuses.md", "##")["A driver"].split("### ", 1)
    assert statuses_of(section) == list(STATUSES)
    named = set(re.findall(r"`(\w+Error)`", errors_of_driver))
    own = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    kinds = {kind.__name__ for kind in own if kind.__base__ in (errors.StreamError, *own)}
    assert kinds - SAID_BY_OTHERS <= named
    assert named - kinds == {
        "CorruptCheckpointError",
        "UntrustedFileError",
        "ConcurrentWriterError",
        "StorageRefusedError",
        "ConnectionRefusedError",
    }


SAID_BY_OTHERS = {"MissingInputError", "DecodeError", "InvalidStateCallError", "NoStateError"}
"""Kinds of SourceError, which is named, and errors of functions, which are causes of others."""


def alerts() -> list[dict[str, object]]:
    rules = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_alerts() -> None:
    """Each alert has its section, with its meaning, where to look and how to fix it."""
    there = sections("alerts.md", "##")
    named = [rule["alert"] for rule in alerts()]
    assert [name for name in there if name.startswith("DStreams")] == named
    for name in named:
        text = there[str(name)]
        for part in ("**Means**", "**Look**", "**Fix**"):
            assert part in text, f"{name}: {part}"
        assert "```console" in text or "`dstreams " in text, name


def test_alerts_lead_to_the_runbook() -> None:
    """By a path below the documentation, as the host of its site is not known here."""
    for rule in alerts():
        annotations = rule["annotations"]
        assert isinstance(annotations, dict)
        anchor = str(rule["alert"]).lower()
        assert annotations["runbook"] == f"operations/alerts.html#{anchor}"


def test_kinds_of_damage() -> None:
    """Each kind of problem that verify names has its section, and no other kind has."""
    kinds = sections("verify-errors.md", "##")["Kinds"]
    assert re.findall(r"^### (.+)$", kinds, re.MULTILINE) == [damage.value for damage in Damage]
    for text in re.split(r"^### .+$", kinds, flags=re.MULTILINE)[1:]:
        assert re.search(r"^Fix: ", text, re.MULTILINE), text


def test_notes() -> None:
    """Each note of verify has its row."""
    said = [re.sub(r"\{\w+\}", "...", note.value) for note in Note]
    rows = ROW.findall(sections("verify-errors.md", "##")["Notes"])
    assert [row[0].strip("`") for row in rows if row[0].startswith("`")] == said


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("*.md")))
def test_what_the_runbook_types(name: str) -> None:
    """Each command and option of dstreams on its pages is one that there is."""
    known = parser()
    for line in re.findall(r"(?:dstreams|python -m checkpoint) [a-z].*", page(name)):
        words = re.split(r"[`;|&)]", line)[0].split()
        words = words[3:] if words[0] == "python" else words[1:]
        words = ["checkpoint", *words] if line.startswith("python") else words
        at: argparse.ArgumentParser = known
        while words and (below := below_of(at)) is not None and words[0] in below:
            at = below[words.pop(0)]
        options = {option for action in at._actions for option in action.option_strings}
        unknown = {word for word in words if word.startswith("--")} - options
        assert not unknown, f"{line}: {at.prog} has no {', '.join(unknown)}"


def below_of(at: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser] | None:
    for action in at._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return None

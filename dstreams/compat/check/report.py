"""What ``dstreams check`` prints: a text of 80 columns, or JSON."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dstreams.compat.check.answers import Answer, Kind
from dstreams.compat.check.check import Checked
from dstreams.compat.check.findings import Finding, Place
from dstreams.compat.check.table import PACKAGE

_COLUMNS = 80
_MOST_PLACES = 5
_TITLES = {
    Kind.CHANGE: "To change: this does not run on dstreams",
    Kind.SET: "To set: this runs when it is told",
    Kind.DIFFERS: "Differs: this runs, look whether the case is yours",
    Kind.SAME: "Same: this runs as it did",
}


def report(checked: Checked, paths: Iterable[str]) -> str:
    """Return the text, by what there is to do.

    Args:
        checked: what is known.
        paths: what was asked for, as it was written.
    """
    lines = [*_wrapped(_verdict(checked)), ""] if checked.findings or checked.unreadable else []
    for path, why in checked.unreadable:
        lines += [*_wrapped(f"{_plain(path)}: cannot be read: {_plain(why)}"), ""]
    for kind, title in _TITLES.items():
        groups = _groups(checked.findings, kind)
        if not groups:
            continue
        lines.append(f"{title} ({len(groups)})")
        lines += _names(groups) if kind is Kind.SAME else _answers(groups)
        lines.append("")
    if not checked.findings and checked.files:
        lines += [*_wrapped(f"{_count(checked)}: nothing of {PACKAGE} is used."), ""]
    lines += _next(checked, tuple(paths))
    return "\n".join(map(_plain, lines)).rstrip("\n") + "\n"


def _verdict(checked: Checked) -> str:
    """Return in a line whether the programs run, and how much there is to do."""
    change, to_set, notes = (
        len(_groups(checked.findings, kind)) for kind in (Kind.CHANGE, Kind.SET, Kind.DIFFERS)
    )
    if checked.unreadable:
        count = len(checked.unreadable)
        return f"Cannot tell: {count} of {count + checked.files} files cannot be read."
    if not change and not to_set:
        rest = f"{_counted(notes, 'note')}, none needs a change." if notes else "No notes."
        return f"Runs as it is. {rest}"
    todo = [
        f"{number} to {what}" for number, what in ((change, "change"), (to_set, "set")) if number
    ]
    verdict = "Does not run as it is" if change else "Runs once it is configured"
    return f"{verdict}: {', '.join(todo)}. {_counted(notes, 'note')}."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _plain(text: object) -> str:
    """Return a line in which nothing commands a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def as_json(checked: Checked, paths: Iterable[str]) -> str:
    """Return the same for programs."""
    said: dict[str, Any] = {
        "status": checked.status,
        "files": checked.files,
        "unreadable": [
            {"path": str(path), "reason": reason} for path, reason in checked.unreadable
        ],
        "findings": [
            {
                "kind": one.answer.kind.value,
                "name": one.name,
                "path": str(one.place.path),
                "line": one.place.line,
                "code": one.place.code,
                "what": one.answer.what,
                "instead": one.answer.instead,
            }
            for one in checked.findings
        ],
        "extras": list(checked.extras()),
        "imports": [
            {"path": str(path), "line": line, "instead": text}
            for path, line, text in checked.by_hand
        ],
        "next": _commands(checked, tuple(paths)),
    }
    return json.dumps(said, indent=2) + "\n"


_Groups = dict[tuple[str, Answer], list[Place]]


def _groups(findings: Iterable[Finding], kind: Kind) -> _Groups:
    groups: _Groups = {}
    for one in findings:
        if one.answer.kind is kind:
            groups.setdefault((one.name, one.answer), []).append(one.place)
    return groups


def _names(groups: _Groups) -> Iterator[str]:
    names = sorted({f"{name} ({len(places)})" for (name, _), places in groups.items()})
    yield from _wrapped(", ".join(names), 2)


def _answers(groups: _Groups) -> Iterator[str]:
    said: dict[Answer, tuple[list[str], list[Place]]] = {}
    for (name, answer), places in groups.items():
        names, all_places = said.setdefault(answer, ([], []))
        names.append(name)
        all_places += places
    for answer, (names, places) in said.items():
        yield from _wrapped(", ".join(dict.fromkeys(names)), 2)
        yield from _wrapped(f"{answer.what} {answer.instead}".strip(), 4)
        for place in sorted(set(places))[:_MOST_PLACES]:
            yield from _shown(place)
        if len(set(places)) > _MOST_PLACES:
            yield f"    and {len(set(places)) - _MOST_PLACES} lines more: --json has all"


def _next(checked: Checked, paths: tuple[str, ...]) -> Iterator[str]:
    if checked.unreadable:
        yield from _wrapped("Next: correct what cannot be read, and check again.")
        return
    steps = list(_steps(checked, paths))
    if steps:
        yield "Next"
        yield from steps


def _steps(checked: Checked, paths: tuple[str, ...]) -> Iterator[str]:
    if any(one.answer.kind is Kind.CHANGE for one in checked.findings):
        yield from _wrapped("Change the lines above, and check again.", 2)
    for extra in checked.extras():
        yield f"  pip install 'dstreams[{extra}]'"
    commands = _commands(checked, paths)
    if not commands:
        return
    for command in commands["run"]:
        yield f"  {command}"
    yield from _wrapped("or replace the name in imports, once and for all:", 2)
    for command in commands["replace"]:
        yield f"  {command}"
    for path, line, text in checked.by_hand:
        yield from _wrapped(f"and in {path}:{line} {text}", 2)


def _commands(checked: Checked, paths: tuple[str, ...]) -> dict[str, list[str]]:
    """Return what to type: for running programs as they are, and for replacing the name."""
    if not checked.importing:
        return {}
    main = checked.main or (checked.importing if len(checked.importing) == 1 else ())
    run = [f"dstreams run {shlex.quote(str(path))}" for path in main] or ["dstreams run app.py"]
    replace = r"sed -i.bak 's/pyspark\.streaming/dstreams/g'"
    if any(Path(path).is_dir() for path in paths):
        where = shlex.join(paths)
        replace = rf"grep -rl --include='*.py' 'pyspark\.streaming' {where} | xargs {replace}"
    else:
        replace = f"{replace} {shlex.join(map(str, checked.importing))}"
    return {"run": run, "replace": [replace]}


def _count(checked: Checked) -> str:
    return "1 file" if checked.files == 1 else f"{checked.files} files"


def _wrapped(text: str, indent: int = 0) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shown(place: Place) -> Iterator[str]:
    where, code = f"    {_plain(place.path)}:{place.line}", _plain(place.code)
    if len(where) + len(code) + 2 <= _COLUMNS:
        yield f"{where}: {code}"
        return
    yield where
    most = _COLUMNS - 8
    yield f"        {code if len(code) <= most else code[: most - 3] + '...'}"

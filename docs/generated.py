"""Generate parts of pages from the code: settings, the command line, the names of the API."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dstreams
from dstreams.cli import main as cli
from dstreams.common.settings import COUNT, FLAG, Configuration, Kind, Settings
from dstreams.structured.api import reader, writer
from dstreams.structured.conf import QueryConf
from dstreams.structured.sources import kafka_options

ROOT = Path(__file__).resolve().parents[1]

COMMENT = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)

_ARGUMENT = re.compile(r"^        (\w+): (.*(?:\n {9,}.*)*)", re.MULTILINE)
_RULES = {COUNT.rule: "whole number, at least 1", FLAG.rule: "`true`, `false`"}
_KEY = re.compile(r"\s*\(``spark[\w.]+``(?:, (?:where|separated) [^)]*)?\)")
_KEY_AND_MORE = re.compile(r"\(``spark[\w.]+``, ")


def filled(markdown: str) -> str:
    """Return a page with its ``generated`` comments replaced."""
    return COMMENT.sub(lambda found: _part(found[1]), markdown)


def _part(words: str) -> str:
    if words.startswith("picture "):
        return picture(words.removeprefix("picture "))
    return _PARTS[words]()


def picture(name: str) -> str:
    """Return a picture as inline SVG, which takes the colours of the page."""
    path = ROOT / "docs" / "pages" / "images" / f"{name}.svg"
    return f'<div class="picture" markdown="0">\n{path.read_text(encoding="utf-8")}</div>'


def settings_table(conf: type[Configuration], own: Callable[[str], bool]) -> str:
    """Return the table of the settings of *conf* whose keys *own* accepts."""
    effects = {}
    for cls in reversed(conf.__mro__):
        effects.update(_effects(cls.__doc__ or ""))
    rows = ["| setting | default | unit or values | effect |", "| --- | --- | --- | --- |"]
    for name, declared in sorted(conf.declared().items(), key=lambda each: each[1]["key"]):
        key, default = declared["key"], declared["default"]
        if not own(key):
            continue
        shown = f"`{default}`" if default else "none"
        unit = _values(declared["kind"], declared["unit"])
        # Lines break behind dots alone; the id takes links to a setting.
        code = f'<code class="key" id="{key}">{key.replace(".", ".<wbr>")}</code>'
        rows.append(f"| {code} | {shown} | {unit} | {effects[name]} |")
    return "\n".join(rows)


def _values(kind: Kind, unit: str) -> str:
    if kind.rule.startswith("a duration"):
        bare = f"a bare number is {unit}" if unit else "with its unit"
        more = ", or `unlimited`" if "unlimited" in kind.rule else ""
        return f"duration; {bare}{more}"
    if kind.rule.startswith("one of ") and kind is not FLAG:
        words = kind.rule.removeprefix("one of ").partition(":")[0].split(", ")
        return ", ".join(f"`{word}`" for word in words)
    rule = _RULES.get(kind.rule, kind.rule).removeprefix("a ")
    return unit or rule


def _effects(docstring: str) -> dict[str, str]:
    return {name: _effect(text) for name, text in _ARGUMENT.findall(docstring)}


def _effect(text: str) -> str:
    joined = _KEY.sub("", re.sub(r"\s+", " ", text)).strip()
    joined = _KEY_AND_MORE.sub("(", joined)
    joined = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", joined).replace("``", "`")
    joined = re.sub(r"\bNone\b", "none", joined).replace("|", "\\|")
    return joined[:1].upper() + joined[1:]


def options_table(*kinds: dict[str, Kind]) -> str:
    """Return the table of the options of a source or a sink."""
    rows = ["| option | values |", "| --- | --- |"]
    for name, kind in {name: kind for each in kinds for name, kind in each.items()}.items():
        rows.append(f"| `{name}` | {_values(kind, kind.unit)} |".replace("||", "|"))
    return "\n".join(rows)


def command_line() -> str:
    """Return the help of each command, at 80 columns, under a heading of its own."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        parts = []
        for parser in _parsers(cli.parser()):
            level = min(1 + len(parser.prog.split()), 4)
            parts.append(f"{'#' * level} {parser.prog}")
            parts.append(f"```text\n{parser.format_help().rstrip()}\n```")
        return "\n\n".join(parts)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


_STATUS = re.compile(r"^ +(\d+) {2,}(.*(?:\n {5,}(?!\d+  ).*)*)", re.MULTILINE)


def exit_statuses() -> str:
    """Return the table of the exit statuses in the help of each command."""
    rows = ["| command | status | meaning |", "| --- | --- | --- |"]
    for parser in _parsers(cli.parser()):
        _, _, told = (parser.epilog or "").partition("exit status:\n")
        for status, text in _STATUS.findall(told):
            plain = " ".join(text.split()).replace("|", "\\|")
            rows.append(f"| `{parser.prog}` | {status} | {plain} |")
    return "\n".join(rows)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            seen = set()
            for below in action.choices.values():
                if id(below) not in seen:  # not an alias
                    seen.add(id(below))
                    yield from _parsers(below)


def names_of(package: str, *wanted: str) -> str:
    """Return directives for public names of a package, by the modules that define them."""
    module = importlib.import_module(package)
    homes = getattr(module, "_HOMES", {})
    lines = []
    for name in wanted or sorted(module.__all__):
        value = getattr(module, name)
        home = homes.get(name) or getattr(value, "__module__", package)
        lines.append(f"::: {home}.{name}")
    return "\n\n".join(lines)


def _errors() -> str:
    public = importlib.import_module("dstreams")
    errors = [
        name
        for name in sorted(public.__all__)
        if isinstance(value := getattr(public, name), type) and issubclass(value, Exception)
    ]
    return names_of("dstreams", *errors)


def _others(package: str, *, without: set[str]) -> str:
    module = importlib.import_module(package)
    names: list[str] = []
    for name in sorted(module.__all__):
        value: Any = getattr(module, name)
        is_error = isinstance(value, type) and issubclass(value, Exception)
        if name not in without and not (is_error and package == "dstreams"):
            names.append(name)
    return names_of(package, *names)


def glossary() -> str:
    """Return the glossary of ARCHITECTURE.md without its column of modules."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    part = text.partition("## Glossary\n")[2].partition("\n## ")[0]
    lines = []
    for line in part.splitlines():
        if line.startswith("###"):
            lines += ["", line[1:], ""]
        elif line.startswith("|"):
            lines.append("|".join(line.split("|")[:3]) + "|")
    return "\n".join(lines)


_MAIN = {"StreamingContext", "DStream"}

_PARTS: dict[str, Callable[[], str]] = {
    "settings of streams": lambda: settings_table(Settings, lambda _: True),
    "settings of queries": lambda: settings_table(
        QueryConf, lambda key: key not in Settings.defaults()
    ),
    "options of text and json": lambda: options_table(reader._OPTIONS["json"]),
    "options of rate": lambda: options_table(reader._OPTIONS["rate"]),
    "options of socket": lambda: options_table(reader._OPTIONS["socket"]),
    "options of kafka": lambda: options_table(
        kafka_options._COMMON, kafka_options._OF_STREAMS, kafka_options._OF_BATCHES
    ),
    "options of sinks": lambda: options_table(writer._SINK_OPTIONS, writer._KAFKA_OPTIONS),
    "command line": command_line,
    "exit statuses": exit_statuses,
    "glossary": glossary,
    "StreamingContext and DStream": lambda: names_of("dstreams", "StreamingContext", "DStream"),
    "other names of dstreams": lambda: _others("dstreams", without=_MAIN),
    "errors": _errors,
    "names of dstreams.structured": lambda: _others(
        "dstreams.structured",
        without=set(dstreams.__all__),
    ),
    "names of dstreams.kafka": lambda: names_of("dstreams.kafka"),
    "names of dstreams.testing": lambda: names_of(
        "dstreams.testing",
        "run_batches",
        "BatchDriver",
        "StreamTester",
        "ManualClock",
        "replay",
        "Replay",
        "ReplayedBatch",
        "MapWithStateTester",
        "FlatMapGroupsWithStateTester",
        "MapGroupsWithStateTester",
        "TransformWithStateTester",
    ),
}
"""The generators, by the text of the comment."""

"""The documentation: its site builds without a warning, and what its pages show is what happens."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkContext

from dstreams.common.settings import Settings
from dstreams.monitoring.notebook import Table
from dstreams.structured.conf import QueryConf
from tests.support.documentation import (
    Block,
    ExampleError,
    Namespace,
    Shell,
    commands_of,
    matches,
    read_page,
    run_page,
)
from tests.support.jvms import ENVIRONMENT
from tests.support.shared_spark import forget_all
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"

READ = {
    path.relative_to(PAGES).as_posix(): read_page(path.read_text(encoding="utf-8"))
    for path in sorted(PAGES.rglob("*.md"))
}


def with_examples() -> Iterator[Any]:
    """Give each page that has blocks, marked where it starts Spark."""
    for name, page in READ.items():
        if page.blocks:
            marks = [pytest.mark.spark] if page.has_code or page.has_console else []
            yield pytest.param(name, id=name, marks=marks)


@pytest.mark.deep
@pytest.mark.parametrize("name", list(with_examples()))
def test_examples(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files, commands and programs of a page do what the page shows."""
    page = READ[name]
    directory = tmp_path / "page"
    directory.mkdir()
    variables = dict(ENVIRONMENT)
    sc = None
    if page.has_code:
        # Before the directory changes: the workers of Spark keep the one that Spark starts in.
        sc = request.getfixturevalue("sc")
        monkeypatch.setattr(SparkContext, "stop", refused_stop)
        request.getfixturevalue("active_stopped")
        forget_all(sc)  # what the page before has set
    monkeypatch.chdir(directory)
    if not page.needs_kafka:
        run_page(page, directory, sc, variables)
        return
    cluster = request.getfixturevalue("kafka")
    variables["KAFKA"] = cluster.bootstrap
    monkeypatch.setenv("KAFKA", cluster.bootstrap)
    before = set(cluster.admin.list_topics(timeout=300).topics)
    try:
        run_page(page, directory, sc, variables)
    finally:
        text = (PAGES / name).read_text(encoding="utf-8")
        for topic in set(cluster.admin.list_topics(timeout=300).topics) - before:
            if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w-])", text):
                cluster.delete_topic(topic)


def refused_stop(_: SparkContext) -> None:
    raise AssertionError("a page leaves sc running: ssc.stop(stopSparkContext=False)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: no link, anchor or page of the navigation is missing."""
    pytest.importorskip("mkdocs", reason="pip install -e '.[dev]'")
    directory = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-s", "-f", "docs/mkdocs.yml"]
    built = subprocess.run(
        [*command, "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert (built.returncode, built.stderr) == (0, "")
    return directory


@pytest.mark.deep
def test_site_builds(site: Path) -> None:
    """The site builds without a warning, and its pages load nothing from another host."""
    assert {
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        for address in loaded_from_elsewhere(page.read_text(encoding="utf-8"))
    } == set()


@pytest.mark.deep
def test_site_is_searched(site: Path) -> None:
    """The search finds a setting, from a server and from the disk, and asks no other host."""
    from tests.support.browser import Tab, running_browser  # noqa: PLC0415 - skips

    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, running_browser() as browser:
        executor = ThreadPoolExecutor(1)
        executor.submit(server.serve_forever)
        try:
            for base in (f"http://127.0.0.1:{server.server_port}", site.as_uri()):
                tab = Tab(browser, viewport={"width": 390, "height": 800}, color_scheme="dark")
                search(tab, f"{base}/reference/settings.html")
                assert tab.complaints == []
                tab.close()
        finally:
            server.shutdown()
            executor.shutdown()


def search(tab: Any, url: str) -> None:
    from tests.support.browser import sync_api  # noqa: PLC0415 - skips

    page = tab.open(url)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.set_viewport_size({"width": 1300, "height": 800})
    page.locator(".md-search__input").press_sequentially("onFailure")
    found = page.locator(".md-search-result__link").first
    sync_api.expect(found).to_contain_text("Settings")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def loaded_from_elsewhere(html: str) -> list[str]:
    """Return what a page loads from another host; a link to it is no harm."""
    tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", html)
    tags = [tag for tag in tags if 'rel="canonical"' not in tag]
    return [
        found for tag in tags for found in re.findall(r'(?:src|href)="((?:https?:)?//[^"]*)', tag)
    ]


def test_settings_are_told() -> None:
    """Each setting of streams and queries has a row, with its default, unit and what it does."""
    generated = load("generated")
    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for part in ("settings of streams", "settings of queries")
        for row in generated.filled(f"<!-- generated: {part} -->").splitlines()[2:]
    ]
    keys = [re.findall('id="([^"]+)"', row[0])[0] for row in rows]
    defaults = {**QueryConf.defaults(), **Settings.defaults()}
    assert sorted(keys) == sorted(defaults)
    for key, (_, default, unit, effect) in zip(keys, rows, strict=True):
        assert default == (f"`{defaults[key]}`" if defaults[key] else "none"), key
        assert unit, key
        assert len(effect.split()) > 3, key
        assert "``" not in effect, key


def test_every_command_is_shown() -> None:
    """The page of the command line has the help of each command, in 80 columns."""
    text = load("generated").filled("<!-- generated: command line -->")
    assert {"## dstreams", "### dstreams run", "#### dstreams checkpoint verify"} <= set(
        text.splitlines()
    )
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_docstrings_become_markdown() -> None:
    """Roles are code, examples and tables are fenced, and all else stays."""
    pytest.importorskip("griffe", reason="pip install -e '.[dev]'")
    text = "Do as :meth:`DStream.map`::\n\n    x\n\n>>> 1 + 1\n2\n\n== ==\na  b\n== =="
    assert load("docstrings").shown(text) == (
        "Do as `DStream.map`:\n\n    x\n\n\n```pycon\n>>> 1 + 1\n2\n```\n\n\n"
        "```text\n== ==\na  b\n== ==\n```"
    )


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_table_of_a_notebook_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The theme frames tables without a class, and its frame is wider than the picture."""
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(ROOT / "docs")
    html = Table(["n"], [["1"]]).html()
    output = load("hooks")._cell_output({"data": {"text/html": [html]}})
    assert re.search(r"<table (?!class=)", output) is None
    assert output.count('<table class="of-notebook" style=') == 1


def test_a_page_is_read() -> None:
    """Blocks have their language, title, lines and comments, also where they are indented."""
    page = read_page(
        "<!-- needs: kafka -->\n\n"
        '```python title="app.py"\nx = 1\n```\n'
        "<!-- status: 3 -->\n\n```console\n$ false\n```\n"
        "1. A list\n\n    ```python\n    if x:\n        y\n    ```\n\n    ```text\n    2\n    ```\n"
        "<!-- not run: needs a cluster -->\n````\n```\n````\n"
    )
    assert page.needs_kafka
    assert page.blocks == [
        Block(3, "python", "x = 1\n", "app.py"),
        Block(8, "console", "$ false\n", comments={"status": "3"}),
        Block(13, "python", "if x:\n    y\n"),
        Block(18, "text", "2\n", is_output=True),
        Block(22, "", "```\n", comments={"not run": "needs a cluster"}),
    ]
    assert [block.is_run for block in page.blocks] == [True, True, True, True, False]


def test_a_comment_is_of_the_block_behind_it() -> None:
    """Prose between a comment and a block ends what the comment says."""
    (block,) = read_page("<!-- not run: no -->\nBut this is:\n```console\n$ true\n```\n").blocks
    assert block.is_console


def test_a_block_that_is_not_closed() -> None:
    """A fence that is not closed is named by its line."""
    with pytest.raises(AssertionError, match="line 2: the block is not closed"):
        read_page("text\n```python\nx\n")


@pytest.mark.parametrize(
    ("expected", "found", "is_match"),
    [
        ("a\nb", "a\nb\n\n", True),
        ("a", "a\nb", False),
        ("", "", True),
        ("", "a", False),
        ("...", "", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...\nd", "a\nb", False),
        ("...\nb\n...", "b\nb\nc", True),
        ("took ... ms (...)", "took 12 ms (3 (4))", True),
        ("took ... ms", "took 12 s", False),
        ("a.c", "abc", False),
        ("green", "\x1b[32mgreen\x1b[0m", True),
        ("done", "10 %\r20 %\rdone", True),
    ],
)
def test_dots_stand_for_anything(expected: str, found: str, is_match: bool) -> None:
    """Three dots stand for text in a line and for lines where they are one, nothing else does."""
    assert matches(expected.split("\n"), found.split("\n")) is is_match


def test_commands_of_a_console() -> None:
    """A line with a dollar is a command, which a backslash continues; the others are output."""
    block = Block(1, "console", "$ echo a \\\n> b\na b\n$ true\n")
    assert [(each.line, each.output) for each in commands_of(block)] == [
        ("echo a b", ["a b"]),
        ("true", []),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```console\nls\n```", "line 1: a console begins with a command"),
        ("```console\n$ false\n```", "line 1: `false` ended with 1, not 0"),
        ("<!-- status: 2 -->\n```console\n$ exit 3\n```", "line 2: `exit 3` ended with 3, not 2"),
        ("```console\n$ echo a\nb\n```", "line 1: `echo a` printed\n\na\n\nwhere the page shows"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", "line 5: the block before printed"),
        ("<!-- raises -->\n```python\nx = 1\n```", "line 2: the page says that it raises"),
        ("```json\n{,}\n```", "line 1: this is no json"),
        ("```yaml\na: b: c\n```", "line 1: this is no yaml"),
        ("```ini\na = 1\n```", "line 1: this is no ini"),
        ('```python title="../a.py"\n```', "line 1: ../a.py is outside of the directory"),
        ('```python title="a.py"\nif\n```', "line 1: this is no python"),
    ],
)
def test_what_does_not_hold_is_named(text: str, problem: str, tmp_path: Path) -> None:
    """An example that does something else fails with its line and what it did."""
    directory = tmp_path / "page"
    directory.mkdir()
    with pytest.raises(ExampleError) as caught:
        run_page(read_page(text), directory)
    assert str(caught.value).startswith(problem)


def test_a_page_runs_in_order(tmp_path: Path) -> None:
    """Files, commands and programs of a page see what those before them did."""
    directory = tmp_path / "page"
    directory.mkdir()
    text = """
```python title="src/app.py"
import os, sys
print("localhost:9092", os.environ["WHO"], file=sys.stderr)
```

```console
$ cd src
$ export WHO=me
$ python app.py
broker:1 me
$ (trap "touch ended; exit" EXIT; while :; do sleep 0.1; done) &
```

```python
def twice(x):
    return 2 * x
```

```python
print(twice(2), twice.__module__)
```

```text
4 __main__
```

<!-- raises -->
```python
print("before")
twice(None)
```

```text
before
TypeError: unsupported operand ...
```

<!-- not run: it would fail -->
```console
$ false
```
"""
    run_page(read_page(text), directory, variables={"KAFKA": "broker:1"})
    assert (directory / "src" / "app.py").is_file()


def test_files_of_background_programs(tmp_path: Path) -> None:
    """A file that a program in the background writes to is there for the next command."""
    directory = tmp_path / "page"
    directory.mkdir()
    shell = Shell(directory, {})
    try:
        assert shell.run("(sleep 0.3; echo late > late.txt; sleep 1000) & true")[0] == 0
        assert (directory / "late.txt").exists()
    finally:
        shell.close()


def test_background_programs_end(tmp_path: Path) -> None:
    """What a command leaves in the background ends with the page."""
    directory = tmp_path / "page"
    directory.mkdir()
    shell = Shell(directory, {})
    status, printed = shell.run("sleep 1000 & echo $!")
    shell.close()
    assert status == 0
    wait_for(lambda: has_ended(int(printed)))


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_classes_are_of_the_main_program() -> None:
    """What a page defines is of the main program while it runs, and the tests are afterwards."""
    main = sys.modules["__main__"]
    namespace = Namespace()
    block = Block(1, "python", "import sys\nx = 3\nprint(sys.modules['__main__'].x)\n")
    assert namespace.run(block) == "3\n"
    assert sys.modules["__main__"] is main

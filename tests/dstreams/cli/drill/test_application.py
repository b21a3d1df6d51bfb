"""Applications that can be drilled."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstreams import InvalidStreamError
from dstreams.cli.drill import job, kafka_job, query_job
from dstreams.cli.drill.application import KAFKA, load
from dstreams.cli.drill.results import OutputFindings

APP = """
def setup(directory): ...
def feed(directory, number): ...
def is_done(directory): return True
def check(directory): return ["it is not right"]
"""


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / f"{name}.py"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the path and modules after a test."""
    monkeypatch.syspath_prepend("/nowhere")


def test_the_own_job() -> None:
    """It is an application like any other."""
    assert load(None).setup is job.setup


def test_the_own_query() -> None:
    """Each driver starts it, without setup."""
    application = load(None, query=True)
    assert (application.start, application.setup) == (query_job.start, None)


def test_the_own_job_with_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers select it, in the drill and in its drivers."""
    monkeypatch.setenv(KAFKA, "one:9092")
    assert load(None).setup is kafka_job.setup


def test_problems_that_an_application_finds(tmp_path: Path) -> None:
    """Texts are findings too."""
    application = load(write(tmp_path, "drilled_app_1", APP))
    assert application.findings("d") == OutputFindings(problems=("it is not right",))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "def is_done",
            "def was_done",
            r"cannot be drilled: no function is_done",
        ),
        ("feed(directory, number)", "feed(directory)", r"a drill of .* calls feed\(directory, num"),
        ("def check(directory): return", "check =", r"needs a function check\(directory\)"),
    ],
)
def test_files_that_are_no_application(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    """The message names the function that is missing or wrong."""
    name = f"drilled_app_{2 + len(before) % 7}"
    with pytest.raises(InvalidStreamError, match=message):
        load(write(tmp_path, name, APP.replace(before, after)))


@pytest.mark.parametrize("found", ["None", "'all is well'", "3"])
def test_a_check_that_returns_no_texts(tmp_path: Path, found: str) -> None:
    """A missing ``return`` is an error."""
    text = APP.replace('["it is not right"]', found)
    application = load(write(tmp_path, f"drilled_app_c{len(found)}", text))
    problem = rf"must return a list of problems as texts, got {found}$"
    with pytest.raises(InvalidStreamError, match=problem):
        application.findings("d")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nimport no_such_module_of_mine", r"ModuleNotFoundError: .*_mine', at .*app_i1\.py:2$"),
        ("def setup(:", r"SyntaxError: .*\(drilled_app_i0\.py, line 1\)$"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, text: str, message: str) -> None:
    """The message names the line."""
    file = write(tmp_path, f"drilled_app_i{text.count('import')}", text)
    with pytest.raises(InvalidStreamError, match=rf"cannot be drilled: {message}"):
        load(file)

"""Imports of our packages: user files that hide them, and public names loaded on first use."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstreams.cli.drill.application import load
from dstreams.common.imports import require_own_checkpoint, shadow_in
from dstreams.compat.run import run_program
from dstreams.errors import InvalidStreamError

ROOT = Path(__file__).parents[3]

PROGRAM = "import dstreams, sys; print('pyspark' in sys.modules, 'checkpoint' in sys.modules)"


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory, like a user with an installed dstreams."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A program that imports dstreams."""
    file = tmp_path / "app.py"
    file.write_text(PROGRAM)
    return file


def test_nothing_in_the_way(app: Path) -> None:
    """The check imports neither Spark nor the package that it checks."""
    done = run(app.parent, "app.py")
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr


@pytest.mark.parametrize(
    ("other", "named"),
    [("checkpoint.py", "checkpoint.py"), ("checkpoint/__init__.py", "checkpoint")],
)
def test_another_checkpoint(app: Path, other: str, named: str) -> None:
    """The error names a module or package next to the program and the remedy; it does not run."""
    file = app.parent / other
    file.parent.mkdir(exist_ok=True)
    file.write_text("print('has run')")
    done = run(app.parent, "app.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {app.parent / named} is imported instead of the package 'checkpoint' of "
        f"dstreams, because Python searches {app.parent} first; rename it, and its imports"
    )


def test_it_is_imported_before(app: Path) -> None:
    """A program that imported its own module first gets the same error."""
    (app.parent / "checkpoint.py").write_text("TIMES = 3")
    app.write_text(f"import checkpoint\n{PROGRAM}")
    done = run(app.parent, "app.py")
    assert f"ImportError: {app.parent / 'checkpoint.py'} is imported in" in done.stderr


def test_as_a_module(tmp_path: Path) -> None:
    """``python -m`` in that directory fails with the error."""
    (tmp_path / "checkpoint.py").touch()
    done = run(tmp_path, "-m", "dstreams", "demo")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"ImportError: {tmp_path / 'checkpoint.py'} is imported instead of the pack" in last


def test_a_checkpoint_in_a_directory_of_that_name(app: Path) -> None:
    """A directory without Python files, such as one with a checkpoint, hides nothing."""
    (app.parent / "checkpoint" / "streams").mkdir(parents=True)
    done = run(app.parent, "app.py")
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr
    assert shadow_in(str(app.parent)) is None


def test_before_an_installation_for_editing(app: Path) -> None:
    """An editable installation is found last, so that even a directory without files hides it."""
    (app.parent / "checkpoint").mkdir()
    app.write_text(
        f"""
import sys
from importlib.util import spec_from_file_location

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("checkpoint", "dstreams"):
            return spec_from_file_location(name, f"{ROOT}/{{name}}/__init__.py")

sys.path.remove({str(ROOT)!r})
sys.path = [entry for entry in sys.path if "site-packages" not in entry]
sys.meta_path = [one for one in sys.meta_path if "Editable" not in repr(one)] + [Editable]
import dstreams
"""
    )
    done = run(app.parent, "app.py")
    assert f"ImportError: {app.parent / 'checkpoint'} is imported instead of the p" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("rename it, or install dstreams without -e")


def test_ours_by_another_path(tmp_path: Path) -> None:
    """A link to our files, or a copy elsewhere, is accepted."""
    (tmp_path / "checkpoint").symlink_to(ROOT / "checkpoint")
    (tmp_path / "dstreams").symlink_to(ROOT / "dstreams")
    assert shadow_in(str(tmp_path)) is None
    done = run(tmp_path, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {PROGRAM}")
    assert (done.returncode, done.stdout) == (0, "False False\n"), done.stderr
    require_own_checkpoint()


@pytest.mark.parametrize("name", ["checkpoint", "dstreams"])
def test_programs_that_are_run_and_drilled(
    app: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the program is checked first, even if our packages are already loaded."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    other = app.with_name(f"{name}.py")
    other.touch()
    problem = f"^{other} is imported instead of the package '{name}' of dstreams, because"
    with pytest.raises(InvalidStreamError, match=problem):
        run_program(app, [], {})
    with pytest.raises(InvalidStreamError, match=problem):
        load(app)
    assert shadow_in(str(ROOT)) is None


def test_workers_would_find_it(tmp_path: Path) -> None:
    """A context does not start if its workers would import another dstreams."""
    (tmp_path / "dstreams.py").touch()
    program = "from dstreams import tuned_context; tuned_context('x', 'local[1]')"
    done = run(tmp_path, "-c", f"import sys; sys.path.remove(''); sys.path.append('.'); {program}")
    assert done.stderr.splitlines()[-1].startswith(
        f"dstreams.errors.EnvironmentNotReadyError: Python workers would not start: "
        f"{tmp_path / 'dstreams.py'} is imported instead of the package 'dstreams'"
    ), done.stderr


PACKAGES = ("dstreams", "dstreams.structured")


def homes_for_checkers(package: str) -> dict[str, str | None]:
    """Return the names of a package and their modules as type checkers see them."""
    tree = ast.parse(inspect.getsource(importlib.import_module(package)))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_names(package: str) -> None:
    """Each name comes from the module that type checkers see, and is listed."""
    module = importlib.import_module(package)
    assert vars(module)["_HOMES"] == homes_for_checkers(package)
    for name, home in homes_for_checkers(package).items():
        assert getattr(module, name) is getattr(sys.modules[str(home)], name)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_there_is_not(package: str) -> None:
    """The error is that of any module."""
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        importlib.import_module(package).Nothing  # noqa: B018 - asked for


@pytest.mark.deep
@pytest.mark.parametrize(
    "module",
    [
        "dstreams.structured.operators.aggregation",
        "dstreams.structured.operators.flat_map_groups_with_state",
        "dstreams.spark.cogroup",
    ],
)
def test_a_worker_loads_no_front(module: str) -> None:
    """Modules of tasks load neither contexts, nor schedulers, nor queries."""
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module in loaded
    front = (
        "dstreams.dstream",
        "dstreams.engine",
        "dstreams.graph",
        "dstreams.structured.api.query",
    )
    assert [name for name in loaded if name.startswith(front)] == []

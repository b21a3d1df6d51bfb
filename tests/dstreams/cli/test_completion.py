"""A shell completes commands, options, choices and files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dstreams.cli.main import main


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "dstreams"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["completion", "bash"]) == 0
    return path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dr", ["drill"]),
        ("checkpoint re", ["read", "rewind"]),
        ("checkpoint rewind --dr", ["--driver-gone", "--dry-run"]),
        ("drill --worker", ["--worker-kills"]),
        ("pa", ["pack"]),
        ("pack --e", ["--exclude"]),
        ("completion ", ["bash", "zsh"]),
        ("checkpoint verify chec", ["checkpoint"]),  # a directory, and no file
        ("demo --config chec", ["checkpoint", "checks.properties"]),
        ("pack chec", ["checkpoint", "checks.properties"]),
    ],
)
def test_bash(line: str, words: list[str], bash_script: Path, tmp_path: Path) -> None:
    """Bash offers these words after Tab."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checks.properties").touch()
    asked = (
        'source "$0"; COMP_WORDS=(dstreams $1); [[ $1 == *" " ]] && COMP_WORDS+=("");'
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1));"
        '_shtab_dstreams; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", asked, bash_script, line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert sorted(done.stdout.split()) == words


def test_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    """The script for zsh has a line for each command, and what it is for."""
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef dstreams\n")
    assert "rewind:'return to an earlier batch, or undo that'" in script
    assert '"--stream[id of the stream\\; the newest one by default]:ID:"' in script

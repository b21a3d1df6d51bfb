"""The checklist of a release: what its steps find."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from release import check


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> check.Release:
    """A release of 1.2.0 whose repository is an empty directory."""
    found = check.Release(tmp_path / "dist", tmp_path)
    found.version = "1.2.0"
    monkeypatch.setattr(check, "ROOT", tmp_path)
    return found


@pytest.mark.parametrize(
    ("heading", "problem"),
    [
        ("Unreleased (1.2.0)", "begins with '## Unreleased (1.2.0)'; write '## 1.2.0 - YYYY"),
        ("1.1.0 - 2026-01-02", "begins with '## 1.1.0 - 2026-01-02'; write '## 1.2.0 - YYYY"),
        ("1.2.0 - 2026-02-30", "day is out of range for month"),
        ("1.2.0 - 9999-01-01", "9999-01-01 is in the future"),
    ],
)
def test_heading_of_the_changelog(release: check.Release, heading: str, problem: str) -> None:
    """It is of this version, with a day that there was."""
    Path(check.ROOT, "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n- A line.\n")
    with pytest.raises(check.StepFailedError) as raised:
        check.changelog(release)
    assert problem in str(raised.value)


def test_changelog_has_lines(release: check.Release) -> None:
    """Under the heading it says something, which is not what an earlier version says."""
    changelog = Path(check.ROOT, "CHANGELOG.md")
    earlier = "## 1.1.0 - 2026-01-01\n\n- Earlier.\n"
    changelog.write_text(f"# Changelog\n\n## 1.2.0 - 2026-01-02\n\n{earlier}")
    with pytest.raises(check.StepFailedError, match="has no entries under"):
        check.changelog(release)
    changelog.write_text(f"# Changelog\n\n## 1.2.0 - 2026-01-02\n\n- New.\n- Newer.\n\n{earlier}")
    assert check.changelog(release) == "2 lines, 2026-01-02"


@pytest.mark.parametrize("version", ["1.2", "1.2.0rc1"])
def test_version(release: check.Release, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is not tagged passes."""
    release.version = version
    monkeypatch.setattr(check, "run", lambda *_: "")
    assert check.version(release) == version


@pytest.mark.parametrize(
    ("version", "tags", "problem"),
    [
        ("1.2.0.dev3", "", "1.2.0.dev3 is not a release version"),
        ("1.2.0+local", "", "is not a release version"),
        ("1.02", "", "write 1.02 as 1.2"),
        ("one", "", "Invalid version: 'one'"),
        ("1.2.0", "v1.2.0\n", "v1.2.0 is released: setup.cfg needs the next version"),
    ],
)
def test_no_version(
    release: check.Release, version: str, tags: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be released is named, with what to write."""
    release.version = version
    monkeypatch.setattr(check, "run", lambda *_: tags)
    with pytest.raises(check.StepFailedError) as raised:
        check.version(release)
    assert problem in str(raised.value)


def test_archives_are_compared() -> None:
    """A file that is missing, or is not of the repository, is named."""
    check.compare({"a", "b"}, {"a", "b"}, "x.whl")
    with pytest.raises(check.StepFailedError, match=r"x\.whl lacks b: see MANIFEST\.in"):
        check.compare({"a"}, {"a", "b"}, "x.whl")
    with pytest.raises(check.StepFailedError, match=r"x\.whl has b, which git does not track"):
        check.compare({"a", "b"}, {"a"}, "x.whl")


def test_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is named with what it says or why it fails; one that fails is the status."""
    assert check.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{listed}" for name in check.STEPS)

    def good(_: check.Release) -> str:
        """It is good."""
        return "so it is"

    def bad(_: check.Release) -> str:
        """It is bad."""
        raise check.StepFailedError("mend it")

    monkeypatch.setattr(check, "STEPS", {"good": good, "bad": bad})
    assert check.main(["--only", "good"]) == 0
    assert "all 1 steps passed" in capsys.readouterr().out
    assert check.main([]) == 1
    said = capsys.readouterr().out
    assert "good: It is good.\n  passed in " in said
    assert "bad: It is bad.\n  FAILED: mend it\n\n1 of 2 steps failed: bad\n" in said


def test_steps_need_what_was_built(release: check.Release) -> None:
    """A step that needs the wheel says which one makes it."""
    with pytest.raises(check.StepFailedError, match="run the step build first"):
        check.install(release)


@pytest.mark.deep
def test_sbom() -> None:
    """It is of dstreams, has what dstreams requires and uPlot, and names no directory."""
    pytest.importorskip("cyclonedx", reason="pip install -e '.[dev]'")
    from release import sbom  # noqa: PLC0415

    bom: dict[str, Any] = sbom.about_dstreams(sbom.described(sys.executable))
    subject = bom["metadata"]["component"]
    assert subject["purl"].startswith("pkg:pypi/dstreams@")
    names = {part["name"] for part in bom["components"]}
    assert {"pyspark", "lmdb", "uplot"} <= names
    assert "dstreams" not in names
    (own,) = (one for one in bom["dependencies"] if one["ref"] == subject["bom-ref"])
    assert {ref.partition("=")[0] for ref in own["dependsOn"]} >= {"pyspark", "uplot"}
    assert "file:" not in json.dumps(bom)

"""Where parts of the broker are missing, tests say what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.maven_jars import KAFKA, class_path, java


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java or Maven a test is skipped, with the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt install openjdk-17-jre-headless"):
        java()
    with pytest.raises(pytest.skip.Exception, match="apt install maven"):
        class_path(KAFKA, "broker")


def test_a_fetch_that_failed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Maven left unfinished is no cache: the next one who asks has it fetched again."""
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no repository\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match="said: no repository"):
            class_path(KAFKA, "broker")
    assert not [path for path in (tmp_path / "dstreams-tests").iterdir() if path.is_dir()]

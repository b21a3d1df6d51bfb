"""Jars that a pom below tests/ names: fetched once by Maven, kept in a cache.

Where Java, Maven or its repository is missing, the test is skipped and says what to install.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

KAFKA = Path(__file__).parents[1] / "kafka" / "pom.xml"
HADOOP = Path(__file__).parents[1] / "hadoop" / "pom.xml"
S3 = Path(__file__).parents[1] / "s3" / "pom.xml"
_FETCH_S = 600


def java() -> str:
    """Return the program that runs jars."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=Path(home, "bin")) if home else shutil.which("java")
    if found is None:
        pytest.skip(
            "this test needs Java, and neither JAVA_HOME nor PATH has a java; "
            "install a Java 17 (Debian: apt install openjdk-17-jre-headless)"
        )
    return found


def class_path(pom: Path, profile: str) -> str:
    """Return the class path with the jars of a *profile* of a pom.

    The first caller fetches them; several processes may call at once. They are kept in
    ``~/.cache/dstreams-tests``, under another name once the pom has changed.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dstreams-tests"
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    jars = root / f"{pom.parent.name}-{profile}-{digest}"
    if not jars.exists():
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{jars.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not jars.exists():
                _fetch(pom, profile, jars)
    return str(jars / "*")


def _fetch(pom: Path, profile: str, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(
            f"{jars} does not exist, and PATH has no mvn to fetch the jars that {pom} names; "
            "install Maven (Debian: apt install maven)"
        )
    partial = Path(tempfile.mkdtemp(prefix=f"{jars.name}.", dir=jars.parent))
    try:
        command = [
            *(maven, "--batch-mode", "--quiet", "--file", str(pom), "--activate-profiles"),
            *(profile, "dependency:copy-dependencies", "-DincludeScope=runtime"),
            f"-DoutputDirectory={partial}",
        ]
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_S,
        )
        if done.returncode != 0 or not any(partial.iterdir()):
            pytest.skip(
                f"Maven did not fetch the jars that {pom} names; it needs Maven Central or a "
                f"mirror of it in ~/.m2/settings.xml, and said: {done.stdout[-2000:]}"
            )
        partial.rename(jars)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise

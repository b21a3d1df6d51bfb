"""The jars of Kafka, as tests/kafka/pom.xml names them: fetched once by Maven, kept in a cache.

Where Java, Maven or its repository is missing, the test that asks is skipped with what to install.
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

_POM = Path(__file__).parents[1] / "kafka" / "pom.xml"
_FETCH_S = 600


def java() -> str:
    """Return the program that runs jars."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=Path(home, "bin")) if home else shutil.which("java")
    if found is None:
        pytest.skip(
            "a Kafka broker needs Java, and neither JAVA_HOME nor PATH has a java; "
            "install a Java 17 (Debian: apt install openjdk-17-jre-headless)"
        )
    return found


def class_path(profile: str) -> str:
    """Return the class path with the jars of a *profile* of the pom: ``broker`` or ``peers``.

    Whoever asks first has them fetched; several processes may ask at once. They are kept in
    ``~/.cache/dstreams-tests``, under another name once the pom is another one.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dstreams-tests"
    digest = hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]
    jars = root / f"kafka-{profile}-{digest}"
    if not jars.exists():
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{jars.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not jars.exists():
                _fetch(profile, jars)
    return str(jars / "*")


def _fetch(profile: str, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(
            f"the jars of Kafka are not in {jars}, and PATH has no mvn to fetch them by "
            f"{_POM}; install Maven (Debian: apt install maven)"
        )
    partial = Path(tempfile.mkdtemp(prefix=f"{jars.name}.", dir=jars.parent))
    try:
        command = [
            *(maven, "--batch-mode", "--quiet", "--file", str(_POM), "--activate-profiles"),
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
                f"Maven did not fetch the jars of Kafka by {_POM}; it needs Maven Central or a "
                f"mirror of it in ~/.m2/settings.xml, and said: {done.stdout[-2000:]}"
            )
        partial.rename(jars)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise

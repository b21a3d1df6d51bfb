"""Temporary files of a run of the tests: in a directory of its own, which goes with it.

Copies of state are there too, where a test does not say where they are to be: gigabytes by the end.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from tests.support.jvms import PREFIX


def use_own_directory(config: pytest.Config) -> None:
    """Let this process and its children have their temporary files there.

    What tests get as ``tmp_path`` stays where it is, for a look at what failed.
    """
    before = tempfile.gettempdir()
    if os.path.basename(before).startswith(PREFIX):
        return  # it is that of the process which started this one
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)
    own = tempfile.mkdtemp(prefix=PREFIX)
    # Servers that tests start as another user have directories of theirs in it.
    os.chmod(own, 0o711)  # noqa: S103 - nobody else can list it
    os.environ["TMPDIR"] = tempfile.tempdir = own
    config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))

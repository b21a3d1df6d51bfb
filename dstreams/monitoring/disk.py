"""How full the disks are that a stream writes to."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class DiskSpace:
    """The file system that a directory is on.

    Args:
        free_bytes: what this user may still write.
        size_bytes: all of it.
    """

    free_bytes: int
    size_bytes: int


def disk_space(directory: str | None) -> DiskSpace | None:
    """Return the space where *directory*, a path or ``file:`` URL, is.

    None for another kind of URL, for a directory that is not there, and for none.
    """
    path = (directory or "").removeprefix("file://")
    if not path.startswith("/"):
        return None
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

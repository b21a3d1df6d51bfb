"""Ownership: whether somebody else than this user, or root, could have written a file."""

from __future__ import annotations

import os
import stat

from checkpoint.errors import Damage, UntrustedFileError

ALLOW_VARIABLE = "CHECKPOINT_ALLOW_WRITABLE"
"""Set to 1 in the environment: who else can write a checkpoint is trusted with running code."""

KEY_FILE_VARIABLE = "CHECKPOINT_KEY_FILE"
"""In the environment: path of the file that holds the key by which checkpoints are signed."""

_OTHERS_WRITE = 0o022


def require_own(path: str, status: os.stat_result, is_above: bool = False) -> None:
    """Raise UntrustedFileError if others can write a file or directory, or its owner is another."""
    mode = stat.S_IMODE(status.st_mode)
    is_link = stat.S_ISLNK(status.st_mode)
    is_sticky = is_above and bool(mode & stat.S_ISVTX)
    remedy = "chmod go-w"
    if status.st_uid not in (0, os.geteuid()):
        found = f"{'is a symbolic link of' if is_link else 'belongs to'} user id {status.st_uid}"
        remedy = "give the path it leads to" if is_link else f"chown {os.geteuid()}"
    elif mode & _OTHERS_WRITE and not is_sticky and not is_link:
        found = f"can be written by others (mode {mode:04o})"
    else:
        return
    raise UntrustedFileError(
        path,
        found,
        f"that only user id {os.geteuid()} can write it, as nothing is unpickled otherwise",
        f"{remedy}, sign the checkpoint with a key ({KEY_FILE_VARIABLE}), or, if all who can "
        f"write there are trusted with running code, set {ALLOW_VARIABLE}=1",
        Damage.WRITABLE,
    )

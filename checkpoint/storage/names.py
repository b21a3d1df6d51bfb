"""Names of files: relative posix paths from one small alphabet, safe on every file system.

A part of a name begins with a letter, a digit or ``_``. That rules out ``..`` and absolute names,
and keeps hidden names (``.x``) free for temporary files: no listing can mistake one for a file.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec

Names = list[str]
"""A sorted list of names. (A class with a method ``list`` cannot write ``list[str]``.)"""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}")
_NAME = rf"^{_PART.pattern}(?:/{_PART.pattern})*\Z"
_PLAIN_UID = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
_RULE = (
    "must be parts joined by '/', each 1 to 200 of A-Z a-z 0-9 . _ = - "
    "and beginning with a letter, a digit or '_'"
)

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
"""The name of a file, in a record."""


def is_name(name: str) -> bool:
    """Whether *name* can be the name of a file."""
    return all(_PART.fullmatch(part) for part in name.split("/"))


def require_name(name: str) -> str:
    """Return *name* if it can be the name of a file. Raises ValueError."""
    if is_name(name):
        return name
    raise ValueError(f"file name {name!r} {_RULE}")


def require_prefix(prefix: str) -> str:
    """Return *prefix* if names can begin with it; ``""`` begins them all.

    Raises ValueError.
    """
    if prefix == "" or is_name(prefix.removesuffix("/")):
        return prefix
    raise ValueError(f"prefix {prefix!r} of file names {_RULE}")


def uid_part(uid: str) -> str:
    """Return the part of a file name that stands for *uid*, another one for each uid.

    Short lower-case uids stand for themselves. Any other is a readable beginning, a dot (which no
    plain one has) and a 128 bit digest, so that case-insensitive file systems, odd characters and
    uids of any length cannot make two of them one.

    >>> uid_part("counts"), uid_part("Counts per user")
    ('counts', 'counts-per-user.6b00e3a4569c9ba0939681a72e71c24a')
    """
    if _PLAIN_UID.fullmatch(uid):
        return uid
    readable = re.sub(r"[^a-z0-9_]+", "-", uid.lower()).strip("-")[:40] or "_"
    digest = hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{readable}.{digest}"

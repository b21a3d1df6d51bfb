"""Signing: files that nobody can change, forge or move without the key.

With a key, every file is written in segments, each with an HMAC-SHA256 over the name of the file,
the place of the segment and the bytes (:mod:`checkpoint.storage.segments`); a segment is known to
be genuine before it is handed out.

Signing hides nothing, and does not notice that a whole checkpoint, or its newest epochs, were taken
back to an earlier copy. The key is never written to the checkpoint, and bytes that hold it are
refused, such as a function that captured it. Workers get only the place of the key, and read it.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import stat
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from checkpoint.errors import COMMAND, Damage, StorageRefusedError, UntrustedFileError
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, location
from checkpoint.storage.names import Names
from checkpoint.storage.ownership import KEY_FILE_VARIABLE
from checkpoint.storage.segments import (
    PLAIN,
    SEGMENT_BYTES,
    SIGNED_MAGIC,
    Segment,
    SignedHead,
    read_head,
    read_segments,
    without_signatures,
    write_segment,
)

KEY_VARIABLE = "CHECKPOINT_KEY"
OLD_KEY_VARIABLE, OLD_KEY_FILE_VARIABLE = "CHECKPOINT_OLD_KEY", "CHECKPOINT_OLD_KEY_FILE"
"""In the environment: the key that a checkpoint has, where it is to have another one."""

LEAST_KEY_BYTES = 16
_Sizes = list[int]
_PLACE = struct.Struct("<IQ?")
_REMEDY = (
    "find out who writes there; restore the file from a copy you trust, or give the key it was "
    f"signed with in {KEY_FILE_VARIABLE} or {KEY_VARIABLE}"
)

_SIGN = f"{_REMEDY}; {COMMAND} sign signs a checkpoint that is not signed"


@dataclass(frozen=True)
class SigningKey:
    """Where a key is; never the key itself. Can be pickled.

    Args:
        variable: the variable of the environment that holds it; empty for none.
        file: the file that holds it, kept from others (:func:`require_kept`); empty for none.
    """

    variable: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if bool(self.variable) == bool(self.file):
            raise ValueError("a key is in a variable or in a file, one of them; name one")

    @classmethod
    def from_environment(
        cls, file_variable: str = KEY_FILE_VARIABLE, variable: str = KEY_VARIABLE
    ) -> SigningKey | None:
        """Return the key that the environment names, None where it names none."""
        if os.environ.get(file_variable):
            return cls(file=os.path.abspath(os.environ[file_variable]))
        return cls(variable=variable) if os.environ.get(variable) else None

    @property
    def key_id(self) -> str:
        """What may be told of the key to anybody: the same for the same key."""
        return _key_id(self.load()).hex()

    def load(self) -> bytes:
        """Read the key.

        Raises:
            StorageRefusedError: it is not there, too short, or others can read it.
        """
        if self.variable:
            text = os.environ.get(self.variable, "")
            return _long_enough(text.encode(), f"the variable {self.variable}")
        return _key_in(self.file)


class SignedFiles:
    """Files that are signed when they are created, and verified when they are read.

    Args:
        inner: the files that do the work.
        key: where the key is.
        signed_name: what is signed in the place of each file's name; None for the name itself.
    """

    def __init__(self, inner: Files, key: SigningKey, signed_name: str | None = None) -> None:
        self.inner = inner
        self.key = key
        self.signed_name = signed_name

    @property
    def url(self) -> str:
        """Where these files are."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"SignedFiles({self.inner!r})"

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        sizes_bytes: _Sizes = []
        self.inner.create(name, self._signed(name, chunks, sizes_bytes))
        return sum(sizes_bytes)

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        for payload in self._verified(name):
            for start in range(0, len(payload), chunk_bytes):
                yield payload[start : start + chunk_bytes]

    def read(self, name: str) -> bytes:
        return b"".join(self._verified(name))

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def list(self, prefix: str) -> Names:
        return self.inner.list(prefix)

    def directories(self, directory: str = "") -> Names:
        return self.inner.directories(directory)

    def delete(self, name: str) -> None:
        self.inner.delete(name)

    def _signed(
        self, name: str, chunks: Iterable[bytes | memoryview], sizes_bytes: _Sizes
    ) -> Iterator[bytes]:
        file, signed_name = location(self.inner, name), self.signed_name or name
        return SignedFor((self.key,)).written(signed_name, chunks, file, sizes_bytes)

    def _verified(self, name: str) -> Iterator[bytes]:
        file = location(self.inner, name)
        key = self.key.load()
        signed_name = self.signed_name or name
        head, chunks = read_head(self.inner.read_chunks(name, READ_CHUNK_BYTES))
        if head is PLAIN:
            raise UntrustedFileError(file, "is not signed", "a signature", _SIGN, Damage.UNSIGNED)
        if _key_id(key) not in head.key_ids:
            found = f"is signed with key {' and '.join(one.hex() for one in head.key_ids)}"
            raise UntrustedFileError(
                file, found, f"key {_key_id(key).hex()}", _REMEDY, Damage.OTHER_KEY
            )
        place = head.key_ids.index(_key_id(key))
        for segment in read_segments(head, chunks, file, lambda *_: _forged(file)):
            if not hmac.compare_digest(segment.macs[place], _mac(key, signed_name, segment)):
                raise _forged(file)
            yield segment.payload


@dataclass(frozen=True)
class SignedFor:
    """Who can read a file that is written so.

    Args:
        keys: with which keys it is signed: whoever has one of them.
        is_open: who has none.
    """

    keys: tuple[SigningKey, ...]
    is_open: bool = False

    @property
    def head(self) -> SignedHead:
        """The head of such a file."""
        if not self.keys:
            return PLAIN
        return SignedHead(tuple(_key_id(key.load()) for key in self.keys), self.is_open)

    def written(
        self,
        name: str,
        chunks: Iterable[bytes | memoryview],
        file: str,
        sizes_bytes: _Sizes | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of a file that is signed so."""
        keys = [key.load() for key in self.keys]
        if not keys:
            yield from map(bytes, chunks)
            return
        yield self.head.to_bytes()
        for key in keys:
            chunks = _without(key, chunks, file)
        number = 0
        waiting = bytearray()
        for chunk in chunks:
            if sizes_bytes is not None:
                sizes_bytes.append(memoryview(chunk).nbytes)
            waiting += chunk
            while len(waiting) > SEGMENT_BYTES:
                payload = bytes(waiting[:SEGMENT_BYTES])
                del waiting[:SEGMENT_BYTES]
                yield from write_segment(_segment(keys, name, number, False, payload))
                number += 1
        yield from write_segment(_segment(keys, name, number, True, bytes(waiting)))


@dataclass(frozen=True)
class ResignedFiles:
    """Files of a checkpoint that changes its key: each is read with the key that it is signed with.

    Args:
        inner: the files that do the work.
        keys: the keys, the new one first; without a key, None.
        new: how files are created.
    """

    inner: Files
    keys: tuple[SigningKey | None, ...]
    new: SignedFor

    @property
    def url(self) -> str:
        return self.inner.url

    def head(self, name: str) -> SignedHead:
        """Return for whom a file is signed, as it says."""
        return read_head(self.inner.read_chunks(name, READ_CHUNK_BYTES))[0]

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self.inner.create(name, self.new.written(name, chunks, location(self.inner, name)))

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        head = self.head(name)
        for key in self.keys:
            if key is None and head.is_open:
                yield from without_signatures(
                    self.inner.read_chunks(name, chunk_bytes), location(self.inner, name)
                )
                return
            if key is not None and _key_id(key.load()) in head.key_ids:
                yield from SignedFiles(self.inner, key).read_chunks(name, chunk_bytes)
                return
        wanted = next(key for key in self.keys[::-1] if key is not None)
        yield from SignedFiles(self.inner, wanted).read_chunks(name, chunk_bytes)  # which says why

    def read(self, name: str) -> bytes:
        return b"".join(self.read_chunks(name, READ_CHUNK_BYTES))

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def list(self, prefix: str) -> Names:
        return self.inner.list(prefix)

    def directories(self, directory: str = "") -> Names:
        return self.inner.directories(directory)

    def delete(self, name: str) -> None:
        self.inner.delete(name)


def require_no_key(files: Files, name: str, content: bytes) -> None:
    """Raise StorageRefusedError if *content*, of a file to be made, holds the key of *files*.

    Files are looked at as they are written, too; but there content may be in blocks already, and
    the key half in one and half in the next.
    """
    if isinstance(files, SignedFiles):
        for _ in _without(files.key.load(), [content], location(files, name)):
            pass


def _without(
    key: bytes, chunks: Iterable[bytes | memoryview], file: str
) -> Iterator[bytes | memoryview]:
    """Yield *chunks*, and raise before the one with which they hold the key, or its JSON."""
    forms = {key, json.dumps(key.decode("utf-8", "replace"))[1:-1].encode()}
    kept = max(map(len, forms)) - 1
    before = b""
    for chunk in chunks:
        seen = before + bytes(chunk)
        if any(form in seen for form in forms):
            raise StorageRefusedError(
                f"{file} would hold the signing key itself, where everybody finds it who has the "
                "checkpoint, so it is not written; a function has captured the key, or a variable "
                "such as os.environ, or it is among the settings or the data: let it be read where "
                "it is used"
            )
        before = seen[-kept:]
        yield chunk


def renamable(files: Files, kind: str) -> Files:
    """Return *files* as those of a *kind* whose names users choose, and may change."""
    return SignedFiles(files.inner, files.key, kind) if isinstance(files, SignedFiles) else files


def is_signed(files: Files, name: str) -> bool:
    """Whether a file claims to be signed; it may be damaged or forged nevertheless."""
    head = next(unsigned(files).read_chunks(name, len(SIGNED_MAGIC)), b"")
    return head == SIGNED_MAGIC


def unsigned(files: Files) -> Files:
    """Return *files* as other programs are to read them: without a key, also where there is one."""
    return files.inner if isinstance(files, SignedFiles) else files


def _segment(
    keys: Iterable[bytes], name: str, number: int, is_last: bool, payload: bytes
) -> Segment:
    unsigned_segment = Segment(number, is_last, (), payload)
    macs = tuple(_mac(key, name, unsigned_segment) for key in keys)
    return Segment(number, is_last, macs, payload)


def _mac(key: bytes, name: str, segment: Segment) -> bytes:
    encoded = name.encode("ascii")
    place = _PLACE.pack(len(encoded), segment.number, segment.is_last)
    mac = hmac.new(key, place, hashlib.sha256)
    mac.update(encoded)
    mac.update(segment.payload)
    return mac.digest()


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, b"id of a signing key of checkpoint", hashlib.sha256)[:8]


def _forged(file: str) -> UntrustedFileError:
    found = "is damaged, forged, or was moved: its signature is wrong"
    return UntrustedFileError(file, found, "what the key has signed", _REMEDY, Damage.FORGED)


@lru_cache(maxsize=8)
def _key_in(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())  # of what links lead to, as those of a mounted secret
            key = file.read(1 << 16).strip()
    except OSError as error:
        # Who mixes up the two variables has put the key itself where its path should be.
        is_no_path = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
        raise StorageRefusedError(
            f"cannot read the key in {f'the file of {KEY_FILE_VARIABLE}' if is_no_path else path}: "
            f"{error.strerror}; it has to be there on every host"
        ) from (None if is_no_path else error)
    require_kept(path, status, os.geteuid(), os.getegid(), os.getgroups())
    return _long_enough(key, path)


def require_kept(
    path: str, status: os.stat_result, uid: int, gid: int, groups: Collection[int]
) -> None:
    """Raise StorageRefusedError unless the file of a key is kept from others than this process.

    It is that of its user or of root, and readable by its owner only. Root may have given it to a
    group of the process, for reading, as a secret that Kubernetes mounts for an ``fsGroup`` is;
    where the process is root's own, to another one than its first.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, uid):
        raise StorageRefusedError(
            f"the key in {path} belongs to user id {status.st_uid}, and must to user id {uid} or "
            "root; chown it, and make a new key if others have had it"
        )
    is_given = status.st_uid == 0 and status.st_gid in {gid, *groups}
    if uid == 0 and status.st_gid == gid:
        is_given = False  # by nobody: it is what a careless umask leaves
    if mode & (0o037 if is_given else 0o077):
        raise StorageRefusedError(
            f"the key in {path} has mode {mode:04o}, and must be readable by its owner only; "
            "chmod 600, and make a new key if others have had it. A file of root may also be "
            "readable by a group that this process is in (mode 0440 or 0640, as a mounted secret "
            "has with defaultMode 0400 and an fsGroup)"
        )


def _long_enough(key: bytes, where: str) -> bytes:
    if len(key) < LEAST_KEY_BYTES:
        raise StorageRefusedError(
            f"the key in {where} has {len(key)} bytes, and needs {LEAST_KEY_BYTES} at least; it "
            "has to be there in every process, with a cluster on every host"
        )
    return key


def facts_of(files: Files) -> Mapping[str, str]:
    """Return what of the signing of *files* may be told to anybody."""
    if not isinstance(files, SignedFiles):
        return {"signed": "no"}
    return {"signed": "yes", "key": _key_id(files.key.load()).hex()}

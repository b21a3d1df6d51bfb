"""Trust: signatures, and ownership of files that are unpickled.

With a key, every file is a head and segments around the bytes that are signed::

    head       8s magic | H format | 8s id of the key
    segment    I length, highest bit set in the last one | 32s mac | payload

The mac is HMAC-SHA256 over the name of the file, the number of the segment, whether it is the last
one, and the payload. A segment is verified before any of it is returned.

Signing encrypts nothing, and does not detect that a whole checkpoint, or its newest epochs, were
replaced by an earlier copy. The key is never written to the checkpoint: a file that would contain
it is refused, such as a graph with a function that captured it. Workers get only the location of
the key, and read it themselves.

Unpickling runs code. Signed files are genuine, and files in an object store are guarded by its
access control. In a local directory, only this user and root may be able to write the files, the
directories, and every directory and link on the way to them; each file is checked again when it is
opened. On HDFS, the same holds for this user and the superuser, as far as HDFS knows who a client
is: without Kerberos it believes what clients say.
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
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from checkpoint.errors import COMMAND, Damage, StorageRefusedError, UntrustedFileError
from checkpoint.storage.files import READ_CHUNK_BYTES, Files, WrappedFiles, location
from checkpoint.storage.framing import SIGNED_MAGIC, FileBytes
from checkpoint.storage.hdfs_files import HdfsFiles
from checkpoint.storage.local_files import (
    ALLOW_VARIABLE,
    KEY_FILE_VARIABLE,
    LocalFiles,
    require_own,
)

KEY_VARIABLE = "CHECKPOINT_KEY"
LEAST_KEY_BYTES = 16
_SEGMENT_BYTES = 1 << 20
_HEAD = struct.Struct("<8sH8s")
_FORMAT = 1
_SEGMENT = struct.Struct("<I32s")
_LAST = 1 << 31
_PLACE = struct.Struct("<IQ?")
_REMEDY = (
    "find out who writes there; restore the file from a copy you trust, or give the key it was "
    f"signed with in {KEY_FILE_VARIABLE} or {KEY_VARIABLE}"
)
_MOST_LINKS = 40  # as in Linux


@dataclass(frozen=True)
class SigningKey:
    """The location of a key, never the key itself: a variable of the environment, or a file."""

    variable: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if bool(self.variable) == bool(self.file):
            raise ValueError("a key is in a variable or in a file; name one of them")

    @classmethod
    def from_environment(
        cls, file_variable: str = KEY_FILE_VARIABLE, variable: str = KEY_VARIABLE
    ) -> SigningKey | None:
        """Return the key that the environment names, None if it names no key."""
        if os.environ.get(file_variable):
            return cls(file=os.path.abspath(os.environ[file_variable]))
        return cls(variable=variable) if os.environ.get(variable) else None

    @property
    def key_id(self) -> str:
        """The public id of the key: a digest, in hexadecimal."""
        return _key_id(self.load()).hex()

    def load(self) -> bytes:
        """Read the key.

        Raises StorageRefusedError if it is missing, too short, or readable by others.
        """
        if self.variable:
            text = os.environ.get(self.variable, "")
            return _require_length(text.encode(), f"the variable {self.variable}")
        return _read_key(self.file)


@dataclass(frozen=True)
class SignedFiles(WrappedFiles):
    """Files that are signed when they are created, and verified when they are read.

    *signed_name*, if given, is signed instead of the name of the file, which can then be renamed.
    """

    key: SigningKey
    signed_name: str | None = None

    def create(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        sizes_bytes: list[int] = []
        self.inner.create(name, self._signed(name, chunks, sizes_bytes))
        return sum(sizes_bytes)

    def replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        self.inner.replace(name, self._signed(name, chunks, []))

    def read_chunks(self, name: str, chunk_bytes: int) -> Iterator[bytes]:
        for payload in self._verified(name):
            for start in range(0, len(payload), chunk_bytes):
                yield payload[start : start + chunk_bytes]

    def _signed(
        self, name: str, chunks: Iterable[bytes | memoryview], sizes_bytes: list[int]
    ) -> Iterator[bytes]:
        key, signed_name = self.key.load(), self.signed_name or name
        yield _HEAD.pack(SIGNED_MAGIC, _FORMAT, _key_id(key))
        number, buffer = 0, bytearray()
        for chunk in _without_key(key, chunks, location(self.inner, name)):
            sizes_bytes.append(memoryview(chunk).nbytes)
            buffer += chunk
            while len(buffer) > _SEGMENT_BYTES:
                payload = bytes(buffer[:_SEGMENT_BYTES])
                del buffer[:_SEGMENT_BYTES]
                yield _SEGMENT.pack(len(payload), _mac(key, signed_name, number, False, payload))
                yield payload
                number += 1
        mac = _mac(key, signed_name, number, True, bytes(buffer))
        yield _SEGMENT.pack(len(buffer) | _LAST, mac)
        yield bytes(buffer)

    def _verified(self, name: str) -> Iterator[bytes]:
        file, key = location(self.inner, name), self.key.load()
        signed_name = self.signed_name or name

        def forged(*_: str) -> UntrustedFileError:
            found = "is damaged, forged, or was moved: its signature is wrong"
            return UntrustedFileError(file, found, "what the key signed", _REMEDY, Damage.FORGED)

        chunks = self.inner.read_chunks(name, READ_CHUNK_BYTES)
        begin = _take_head(chunks)
        _require_key(_key_id_in(begin), _key_id(key).hex(), file)
        source = FileBytes(chain([begin], chunks), file, forged)
        if source.take(_HEAD.size, "the head") != _HEAD.pack(SIGNED_MAGIC, _FORMAT, _key_id(key)):
            raise forged()
        number, is_last = 0, False
        while not is_last:
            length, mac = _SEGMENT.unpack(source.take(_SEGMENT.size, "a segment"))
            is_last = bool(length & _LAST)
            length &= ~_LAST
            if length > _SEGMENT_BYTES:  # before so many bytes are read
                raise forged()
            payload = source.take(length, "a segment")
            if not hmac.compare_digest(mac, _mac(key, signed_name, number, is_last, payload)):
                raise forged()
            yield payload
            number += 1
        source.require_end()


def signed_with(files: Files, name: str) -> str | None:
    """Return the id of the key that a file claims to be signed with, None if it is not signed.

    Nothing is verified. Raises FileNotFoundError.
    """
    return _key_id_in(_take_head(unsigned(files).read_chunks(name, _HEAD.size)))


def _take_head(chunks: Iterator[bytes]) -> bytes:
    begin = b""
    while len(begin) < _HEAD.size and (more := next(chunks, b"")):
        begin += more
    return begin


def _key_id_in(begin: bytes) -> str | None:
    if len(begin) < _HEAD.size or not begin.startswith(SIGNED_MAGIC):
        return None
    key_id: bytes = _HEAD.unpack_from(begin)[2]
    return key_id.hex()


def _require_key(found: str | None, wanted: str, file: str) -> None:
    if found is None:
        remedy = f"{_REMEDY}; {COMMAND} sign signs a checkpoint that is not signed"
        raise UntrustedFileError(file, "is not signed", "a signature", remedy, Damage.UNSIGNED)
    if found != wanted:
        raise UntrustedFileError(
            file, f"is signed with key {found}", f"key {wanted}", _REMEDY, Damage.OTHER_KEY
        )


def require_no_key(files: Files, name: str, content: bytes) -> None:
    """Raise StorageRefusedError if *content*, of a file to be created, contains the key of *files*.

    For content that is written in blocks, where the key could be split between two of them.
    """
    if isinstance(files, SignedFiles):
        for _ in _without_key(files.key.load(), [content], location(files, name)):
            pass


def _without_key(
    key: bytes, chunks: Iterable[bytes | memoryview], file: str
) -> Iterator[bytes | memoryview]:
    """Yield *chunks*; raise before the chunk that completes the key, or the key as JSON."""
    forms = {key, json.dumps(key.decode("utf-8", "replace"))[1:-1].encode()}
    kept = max(map(len, forms)) - 1
    before = b""
    for chunk in chunks:
        seen = before + bytes(chunk)
        if any(form in seen for form in forms):
            raise StorageRefusedError(
                f"{file} would hold the signing key itself, readable by everybody with access to "
                "the checkpoint, so it is not written; a function captured the key, or a variable "
                "such as os.environ, or it is in the settings or the data: read the key where it "
                "is used"
            )
        before = seen[-kept:]
        yield chunk


def renamable(files: Files, kind: str) -> Files:
    """Return *files* with *kind* signed instead of their names, which users choose and change."""
    return SignedFiles(files.inner, files.key, kind) if isinstance(files, SignedFiles) else files


def unsigned(files: Files) -> Files:
    """Return *files* without signing, for content that other programs read."""
    return files.inner if isinstance(files, SignedFiles) else files


def signing_facts(files: Files) -> Mapping[str, str]:
    """Return public facts about the signing of *files*."""
    if not isinstance(files, SignedFiles):
        return {"signed": "no"}
    return {"signed": "yes", "key": files.key.key_id}


def _mac(key: bytes, name: str, number: int, is_last: bool, payload: bytes) -> bytes:
    encoded = name.encode("ascii")
    mac = hmac.new(key, _PLACE.pack(len(encoded), number, is_last), hashlib.sha256)
    mac.update(encoded)
    mac.update(payload)
    return mac.digest()


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, b"id of a signing key of checkpoint", hashlib.sha256)[:8]


@lru_cache(maxsize=8)
def _read_key(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())  # of the target of links, as in a mounted secret
            key = file.read(1 << 16).strip()
    except OSError as error:
        # A user who mixes up the two variables has put the key itself where its path should be.
        is_no_path = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
        raise StorageRefusedError(
            f"cannot read the key in {f'the file of {KEY_FILE_VARIABLE}' if is_no_path else path}: "
            f"{error.strerror}; every host needs the file"
        ) from (None if is_no_path else error)
    require_private_key(path, status, os.geteuid(), os.getegid(), os.getgroups())
    return _require_length(key, path)


def require_private_key(
    path: str, status: os.stat_result, uid: int, gid: int, groups: Collection[int]
) -> None:
    """Raise StorageRefusedError if others than this process can read the file of a key.

    It must belong to its user or to root, and be readable by its owner only. A file of root may
    also be readable by a group of the process, as a secret that Kubernetes mounts for an
    ``fsGroup``; but not by root's first group, which a careless umask leaves.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, uid):
        raise StorageRefusedError(
            f"the key in {path} belongs to user id {status.st_uid}, and must belong to user id "
            f"{uid} or root; chown it, and make a new key if others had access"
        )
    is_given = status.st_uid == 0 and status.st_gid in {gid, *groups}
    if uid == 0 and status.st_gid == gid:
        is_given = False
    if mode & (0o037 if is_given else 0o077):
        raise StorageRefusedError(
            f"the key in {path} has mode {mode:04o}, and must be readable by its owner only; "
            "chmod 600, and make a new key if others had access. A file of root may also be "
            "readable by a group of this process (mode 0440 or 0640, as a mounted secret has with "
            "defaultMode 0400 and an fsGroup)"
        )


def _require_length(key: bytes, where: str) -> bytes:
    if len(key) < LEAST_KEY_BYTES:
        raise StorageRefusedError(
            f"the key in {where} has {len(key)} bytes, and needs {LEAST_KEY_BYTES} at least; every "
            "process on every host needs the key"
        )
    return key


def require_trusted(files: Files, prefix: str = "", allow_writable: bool = False) -> Files:
    """Return *files* guarded: each file is checked again when it is opened.

    Args:
        files: the directory of a stream.
        prefix: check files whose names begin with it, such as ``graph/``; all by default.
        allow_writable: skip the checks, because all users that can write there are trusted with
            running code. The environment can allow it too: :data:`ALLOW_VARIABLE`.

    Raises:
        UntrustedFileError: others can write a file, its directory, or a directory or link on the
            way there; or there is a link below the directory of the stream.
        StorageRefusedError: the owner or mode of one of them cannot be read.
    """
    if allow_writable or not _is_checked(files):
        return files
    if isinstance(files, HdfsFiles):
        files.require_own(prefix)
        return files
    assert isinstance(files, LocalFiles)
    try:
        *above, (root, status) = _way_to(files.root)
    except FileNotFoundError:
        return replace(files, is_guarded=True)
    for path, status_above in above:
        require_own(path, status_above, is_above=True)
    require_own(root, status)
    for path in _below(root, prefix):
        _require_own_file(path)
    return replace(files, is_guarded=True)


def require_trusted_file(files: Files, name: str) -> Files:
    """Return *files* guarded, if only this user can have written the file *name*.

    Raises UntrustedFileError or StorageRefusedError.
    """
    if not _is_checked(files):
        return files
    if isinstance(files, HdfsFiles):
        files.require_own(name)
        return files
    assert isinstance(files, LocalFiles)
    for path, status in _way_to(files.root):
        require_own(path, status, is_above=True)
    _require_own_file(os.path.join(files.root, name))
    return replace(files, is_guarded=True)


def _is_checked(files: Files) -> bool:
    return isinstance(files, (LocalFiles, HdfsFiles)) and os.environ.get(ALLOW_VARIABLE) != "1"


def _way_to(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each directory and link on the way to an absolute *path*, which comes last."""
    yield os.sep, _status(os.sep)
    at, links = os.sep, 0
    todo = path.split(os.sep)[::-1]
    while todo:
        name = todo.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name)
        status = _status(step)
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            at = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise StorageRefusedError(
                f"cannot follow {path}: it leads over more than {_MOST_LINKS} symbolic links; "
                "give the path they lead to"
            )
        target = os.readlink(step)
        at = os.sep if os.path.isabs(target) else at
        todo += target.split(os.sep)[::-1]


def _below(root: str, prefix: str) -> Iterator[str]:
    for directory, directories, names in os.walk(root):
        inside = os.path.relpath(directory, root).replace(os.sep, "/") + "/"
        inside = "" if inside == "./" else inside
        for name in directories:
            within = f"{inside}{name}/"
            if within.startswith(prefix) or prefix.startswith(within):
                yield os.path.join(directory, name)
        for name in names:
            if f"{inside}{name}".startswith(prefix):
                yield os.path.join(directory, name)


def _require_own_file(path: str) -> None:
    try:
        status = _status(path)
    except FileNotFoundError:
        return  # deleted in the meantime
    if stat.S_ISLNK(status.st_mode):
        remedy = "replace the link by its target"
        raise UntrustedFileError(
            path, "is a symbolic link", "a file or directory", remedy, Damage.NO_FILE
        )
    require_own(path, status)


def _status(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageRefusedError(
            f"cannot read the owner and mode of {path}: {error.strerror}; nothing is unpickled "
            "before they are known, check that file system"
        ) from error

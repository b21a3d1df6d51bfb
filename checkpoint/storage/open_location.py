"""Opening the files of a checkpoint, by path or URL."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from checkpoint.storage.files import Files, is_path
from checkpoint.storage.hdfs_files import PROTOCOLS, HdfsFiles
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.object_files import ObjectFiles
from checkpoint.storage.trust import SignedFiles, SigningKey


def open_files(url: str | os.PathLike[str], **options: Any) -> Files:
    """Open the files at *url*, on the driver, before any task uses them.

    A missing directory on a local disk or HDFS is created (mode 0700); an object store must prove
    that it can create a file exclusively. If the environment names a key (``CHECKPOINT_KEY_FILE``,
    ``CHECKPOINT_KEY``), files are signed, and must be.

    Args:
        url: a path, ``file:/path``, ``file:///path``, a URL of HDFS or of an object store.
        options: of ``hdfs_native.Client`` or the store of obstore.

    Raises:
        ValueError: the URL names another host, or a path has options.
        StorageRefusedError: the location cannot hold a checkpoint.
    """
    return _signed(_ready(_open_unsigned(url, options)))


def open_output(url: str | os.PathLike[str], **options: Any) -> Files:
    """Open files as :func:`open_files` does, for other programs: never signed, modes by umask."""
    files = _open_unsigned(url, options)
    if isinstance(files, LocalFiles):
        files = replace(files, is_private=False)
    elif isinstance(files, HdfsFiles):
        files = HdfsFiles(os.fspath(url), is_private=False, **options)
    return _ready(files)


def open_existing(url: str | os.PathLike[str], **options: Any) -> Files:
    """Open the files at *url* for reading, without creating or testing anything.

    Raises:
        FileNotFoundError: a path that is not a directory.
        ValueError: the URL names another host, or a path has options.
    """
    files = _open_unsigned(url, options)
    if isinstance(files, LocalFiles) and not os.path.isdir(files.root):
        raise FileNotFoundError(f"{url} is not a directory")
    return _signed(files)


def _ready(files: LocalFiles | ObjectFiles | HdfsFiles) -> Files:
    if isinstance(files, LocalFiles):
        files.make_root()
    elif isinstance(files, ObjectFiles):
        files.start_proof()
    else:
        files.require_exclusive_create()
    return files


def _signed(files: Files) -> Files:
    """Return *files* with the key that the environment names, if any."""
    key = SigningKey.from_environment()
    if key is None:
        return files
    _require_outside(key, files)
    key.load()
    return SignedFiles(files, key)


def _open_unsigned(
    url: str | os.PathLike[str], options: dict[str, Any]
) -> LocalFiles | ObjectFiles | HdfsFiles:
    text = os.fspath(url)
    if not text:
        raise ValueError("the location of a checkpoint is empty; give a path or a URL")
    if not is_path(text):
        if "://" not in text:
            raise ValueError(f"{text!r} is neither a path nor a URL; write protocol://host/path")
        kind = HdfsFiles if text.partition(":")[0] in PROTOCOLS else ObjectFiles
        return kind(text, **options)
    if options:
        raise ValueError(f"{text} is a path and takes no storage options, got {sorted(options)}")
    return LocalFiles(_local_path(text))


def _require_outside(key: SigningKey, files: Files) -> None:
    """Raise ValueError if the key is inside the checkpoint, readable with it."""
    if key.file and isinstance(files, LocalFiles):
        inside = os.path.realpath(key.file).startswith(os.path.realpath(files.root) + os.sep)
        if inside:
            raise ValueError(
                f"the key {key.file} is in the checkpoint {files.root} that it signs; keep it "
                "somewhere else"
            )


def _local_path(text: str) -> str:
    if not text.startswith("file:"):
        return text
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError(
            f"{text!r} names the host {parts.netloc!r} or no absolute path; write file:///path"
        )
    return text[len("file:") :].removeprefix(f"//{parts.netloc}")

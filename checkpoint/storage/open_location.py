"""Opening the files of a checkpoint, by path or URL."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from checkpoint.storage.files import Files, is_path
from checkpoint.storage.fsspec_files import FsspecFiles
from checkpoint.storage.local_files import LocalFiles
from checkpoint.storage.signing import SignedFiles, SigningKey


def open_files(url: str | os.PathLike[str], **options: Any) -> Files:
    """Open the files at *url*, on the driver, before any task touches them.

    What can be wrong is found here: a local directory is made if it is missing (0700), an object
    store is asked to prove that it can create exclusively. Where the environment names a key
    (``CHECKPOINT_KEY_FILE``, ``CHECKPOINT_KEY``) files are signed, and must be.

    Args:
        url: a path, ``file:/path``, ``file:///path``, or the URL of an fsspec file system.
        options: storage options of the fsspec file system; none for a path.

    Raises:
        ValueError: the URL names another host, or a path was given options.
        StorageRefusedError: the place cannot hold a checkpoint; the message says why.
    """
    return _signed(_ready(_open_unsigned(url, options)))


def open_output(url: str | os.PathLike[str], **options: Any) -> Files:
    """Open files for other programs to read: never signed, and for whom the umask lets in.

    Args and errors as of :func:`open_files`.
    """
    files = _open_unsigned(url, options)
    return _ready(replace(files, is_private=False) if isinstance(files, LocalFiles) else files)


def open_existing(url: str | os.PathLike[str], **options: Any) -> Files:
    """Open the files at *url* to read them: nothing is made, and nothing is tried out.

    Args:
        url: as in :func:`open_files`.
        options: storage options of the fsspec file system; none for a path.

    Raises:
        FileNotFoundError: a path that is no directory.
        ValueError: the URL names another host, or a path was given options.
    """
    files = _open_unsigned(url, options)
    if isinstance(files, LocalFiles) and not os.path.isdir(files.root):
        raise FileNotFoundError(f"{url} is no directory")
    return _signed(files)


def _ready(files: LocalFiles | FsspecFiles) -> Files:
    if isinstance(files, LocalFiles):
        files.make_root()
    else:
        files.require_exclusive_create()
    return files


def _signed(files: Files) -> Files:
    """Return *files* with the key that the environment names, if it names one."""
    key = SigningKey.from_environment()
    if key is None:
        return files
    _require_outside(key, files)
    key.load()
    return SignedFiles(files, key)


def _open_unsigned(
    url: str | os.PathLike[str], options: dict[str, Any]
) -> LocalFiles | FsspecFiles:
    text = os.fspath(url)
    if not text:
        raise ValueError("the location of a checkpoint is empty; give a path or a URL")
    if not is_path(text):
        if "://" not in text:
            raise ValueError(f"{text!r} is no path and no URL; write protocol://host/path")
        return FsspecFiles(text, **options)
    if options:
        raise ValueError(f"{text} is a path and takes no storage options, got {sorted(options)}")
    return LocalFiles(_local_path(text))


def _require_outside(key: SigningKey, files: Files) -> None:
    """Raise ValueError if the key lies where everybody has it who has the checkpoint."""
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

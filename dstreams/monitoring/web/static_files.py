"""The files of the page: read once, and found by their name alone."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from dstreams.monitoring.web.requests import TEXT, Answer

INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": TEXT,
}


def static_files() -> Mapping[str, Answer]:
    """Return what is answered, by the names of the files."""
    directory = files("dstreams.monitoring.web").joinpath("static")
    there = directory.iterdir() if directory.is_dir() else ()
    return {
        file.name: Answer(200, file.read_bytes(), _TYPES[suffix])
        for file in there
        if (suffix := f".{file.name.rpartition('.')[2]}") in _TYPES
    }

"""MkDocs hooks: generated parts of pages, and pages for files of the repository."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from generated import filled
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FILES = "files"  # the folder of the site for repository files

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}).*?^(?P=indent)(?P=fence) *$", re.M | re.S)
LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml", ".cfg": "ini", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each repository file to which pages link, directly or through such a page."""
    pages = Path(config.docs_dir)
    waiting = [
        target
        for file in files.documentation_pages()
        for target in _repository_files(Path(file.abs_src_path or ""), pages)
    ]
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            waiting += _repository_files(path, pages)
            content = _rewritten(text, path, pages)
        elif path.suffix == ".ipynb":
            content = _notebook(path, text)
            files.append(File.generated(config, f"{FILES}/{path.name}", content=text))
        else:
            name = path.relative_to(ROOT)
            language = LANGUAGES.get(path.suffix, "text")
            content = (
                f"# {name.name}\n\n`{name}` of the repository.\n\n````{language}\n{text}````\n"
            )
        content = f"---\nsearch:\n  exclude: true\n---\n\n{content}"
        files.append(File.generated(config, _site_name(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to repository files so that they lead to their pages."""
    if page.file.generated_by:
        return markdown
    markdown = filled(markdown)
    return _rewritten(markdown, Path(page.file.abs_src_path), Path(config.docs_dir))


def on_post_build(config: MkDocsConfig) -> None:
    """Also write the search index as a script, for pages opened from disk."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text('utf-8')}", "utf-8")


def _notebook(path: Path, text: str) -> str:
    """Return the cells of a notebook with their stored outputs, and a link to the file."""
    name = path.relative_to(ROOT)
    up = "../" * (len(name.parts) - 1)
    parts = [f"`{name}` of the repository, as it ran: [the file itself]({up}{path.name})."]
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"````python\n{source}\n````")
        parts += [_cell_output(output) for output in cell["outputs"]]
    title, _, rest = parts[1].partition("\n")
    return "\n\n".join([title, parts[0], rest, *parts[2:]]) + "\n"


def _cell_output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:  # one line, so that it is not parsed as Markdown
        html = "".join(data["text/html"]).replace("\n", " ")
        # The theme wraps a table without a class in a frame that is wider than the column.
        html = html.replace("<table style=", '<table class="of-notebook" style=')
        return f"<div>{html}</div>"
    said = "".join(output.get("text") or data.get("text/plain", ""))
    return f"````text\n{said.rstrip()}\n````"


def _site_name(path: Path) -> str:
    name = f"{FILES}/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix == ".md" else f"{name}.md"


def _repository_files(path: Path, pages: Path) -> Iterator[Path]:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        if (target := _target(match[2], path, pages)) is not None:
            yield target


def _target(link: str, path: Path, pages: Path) -> Path | None:
    """Return the repository file to which a link in *path* leads, or None for site pages."""
    if ":" in link or link.startswith("/"):
        return None
    target = (path.parent / urldefrag(link).url).resolve()
    if target.is_relative_to(pages) or not target.is_relative_to(ROOT) or not target.is_file():
        return None
    return target


def _rewritten(markdown: str, path: Path, pages: Path) -> str:
    own = path.relative_to(pages) if path.is_relative_to(pages) else Path(_site_name(path))

    def lead(match: re.Match[str]) -> str:
        link = match[2]
        if ":" in link or link.startswith("/"):
            return match[0]
        target = (path.parent / link).resolve()
        if target.is_relative_to(pages):
            name = target.relative_to(pages).as_posix()
        elif (found := _target(link, path, pages)) is not None:
            name = _site_name(found)
        else:
            return match[0]
        return f"{match[1]}{os.path.relpath(name, own.parent)}{match[3]}"

    return "".join(part if is_code else LINK.sub(lead, part) for part, is_code in _parts(markdown))


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Divide a text into prose and fenced code."""
    end = 0
    for match in FENCE.finditer(markdown):
        yield markdown[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield markdown[end:], False

"""Text for HTML and SVG: everything that comes from outside is escaped, and cut to a length."""

from __future__ import annotations

from html import escape

ACCENTS = {
    "input": "#3b82f6",
    "step": "#94a3b8",
    "state": "#d97706",
    "output": "#0d9488",
    "good": "#16a34a",
    "bad": "#dc2626",
    "idle": "#94a3b8",
}
"""Colours that can be told from both a white and a black page."""

FAINT = "opacity:.65"


def text(value: object, most: int = 200) -> str:
    """Return *value* for HTML, in one line of at most *most* characters.

    >>> text("<b onload='x'>\\n")
    '&lt;b onload=&#x27;x&#x27;&gt;'
    """
    return escape(plain(value, most), quote=True)


def plain(value: object, most: int = 200) -> str:
    """Return *value* as one line of characters that can be printed, at most *most* of them.

    >>> plain("a\\x1b[31m\\n  b"), plain("abcdef", 4)
    ('a?[31m b', 'abc…')
    """
    line = " ".join(str(value).split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def bar(share: float, accent: str = "input") -> str:
    """Return a small bar that is *share* of its width full, from 0 to 1."""
    width = round(100 * min(max(share, 0.0), 1.0))
    return (
        '<span style="display:inline-block;width:4em;height:.55em;vertical-align:baseline;'
        'background:rgba(128,128,128,.18);border-radius:2px;margin-left:.5em">'
        f'<span style="display:block;width:{width}%;height:100%;border-radius:2px;'
        f'background:{ACCENTS[accent]}"></span></span>'
    )


def mark(accent: str) -> str:
    """Return a dot of a colour; what it says stands beside it in words."""
    return (
        '<span style="display:inline-block;width:.6em;height:.6em;border-radius:50%;'
        f'margin-right:.4em;background:{ACCENTS[accent]}"></span>'
    )


def frame(*parts: str) -> str:
    """Return parts as one picture, which scrolls by itself where the page is narrower."""
    return (
        '<div style="font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto">'
        f"{''.join(parts)}</div>"
    )


def heading(title: str, *facts: object) -> str:
    """Return a line with a title, and what else is to be said at once."""
    rest = "".join(f'<span style="{FAINT}"> · {text(fact)}</span>' for fact in facts if fact)
    return f'<div style="margin:.2em 0 .5em"><b>{text(title)}</b>{rest}</div>'


def note(message: object, accent: str = "bad") -> str:
    """Return a paragraph that says what is wrong, or what to do."""
    return (
        f'<div style="border-left:3px solid {ACCENTS[accent]};padding:.1em .6em;margin:.4em 0;'
        f'max-width:60em;overflow-wrap:anywhere">{text(message, 600)}</div>'
    )

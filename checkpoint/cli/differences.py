"""Differences between two states, or between the rows of two outputs, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from checkpoint.cli.plain import NotShown, Shower

Difference = dict[str, Any]
"""Its ``change`` is ``+``, ``-``, ``~``, or ``?`` if a value cannot be shown; ``key`` is that of a
state, or of a row that is a pair; then ``old`` and ``new``."""

_MISSING: Any = object()


def state_differences(
    older: Iterable[tuple[Any, Any]], newer: Iterable[tuple[Any, Any]]
) -> Iterator[Difference]:
    """Yield added, removed and changed keys between pairs of key and value."""
    shown = Shower().shown
    before: dict[tuple[str, str], tuple[Any, Any]] = {}
    for key, value in older:
        found = shown(key)
        if isinstance(found, NotShown):
            yield {"change": "?", "key": found, "old": shown(value)}
        else:
            before[_hashable(key, found)] = (found, value)
    for key, value in newer:
        found, new = shown(key), shown(value)
        if isinstance(found, NotShown):
            yield {"change": "?", "key": found, "new": new}
            continue
        _, old_value = before.pop(_hashable(key, found), (found, _MISSING))
        if old_value is _MISSING:
            yield {"change": "+", "key": found, "new": new}
            continue
        old = shown(old_value)
        if isinstance(old, NotShown) or isinstance(new, NotShown):
            yield {"change": "?", "key": found, "old": old, "new": new}
        elif old != new:
            yield {"change": "~", "key": found, "old": old, "new": new}
    for found, value in before.values():
        yield {"change": "-", "key": found, "old": shown(value)}


def shown_rows(rows: Iterable[Any]) -> list[Any]:
    """Return rows as JSON, which :func:`row_differences` compares as the rows themselves."""
    return [*map(Shower().shown, rows)]


def row_differences(older: Iterable[Any], newer: Iterable[Any]) -> list[Difference]:
    """Return the rows that only one side has, in no particular order of rows.

    A pair whose key each side has once among these is changed; other rows are added and removed.
    """
    shown = Shower().shown
    before, after = (Counter(_text(shown(row)) for row in rows) for rows in (older, newer))
    removed = [json.loads(text) for text in (before - after).elements()]
    added = [json.loads(text) for text in (after - before).elements()]
    left: list[Difference] = []
    keys = [Counter(_text(row[0]) for row in rows if _is_pair(row)) for rows in (removed, added)]
    by_key = {_text(row[0]): row[1] for row in added if _is_pair(row)}
    changed = {key for key in by_key if keys[0][key] == keys[1][key] == 1}
    for row in removed:
        if _is_pair(row) and (key := _text(row[0])) in changed:
            left.append({"change": "~", "key": row[0], "old": row[1], "new": by_key[key]})
        else:
            left.append({"change": "-", "old": row})
    left += [
        {"change": "+", "new": row}
        for row in added
        if not (_is_pair(row) and _text(row[0]) in changed)
    ]
    return sorted(left, key=lambda one: (one["change"], _text(one)))


def _is_pair(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2


def _text(shown: Any) -> str:
    return json.dumps(shown, sort_keys=True)


def _hashable(key: Any, found: Any) -> tuple[str, str]:
    """Return an identity of a key, which may be an Instance or Opaque that cannot be hashed."""
    return type(key).__name__, _text(found)

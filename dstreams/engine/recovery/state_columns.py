"""Whether a state in blocks can go on with the columns that a changed program declares.

Columns may be added. What a column is, and which are those of the key, stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_Columns = Sequence[Mapping[str, Any]]


def refused_columns(
    uid: str, operation: str, before: _Columns | None, now: _Columns | None
) -> Iterator[str]:
    """Yield why a state of some columns cannot be one of others, for each column that it is of.

    None: the state is not in columns, or nobody said which.
    """
    if before is None and now is None:
        return
    begin_anew = f"give another uid=, and let this state go (allowRemoved=[{uid!r}])"
    if before is None or now is None:
        was, is_now = ("pairs", "blocks") if before is None else ("blocks", "pairs")
        yield (
            f"the state of {uid!r} is kept in {was}, and {operation} keeps it in {is_now}; "
            f"{begin_anew}"
        )
        return
    are = {column["name"]: column for column in now}
    keys, keys_now = _keys(before), _keys(now)
    if keys != keys_now:
        yield (
            f"the key of {uid!r} was {_listed(keys)}, and is {_listed(keys_now)} in {operation}, "
            f"so no key would be found again; keep the key, or {begin_anew}"
        )
        return
    for column in before:
        name, was = column["name"], column["type"]
        if name not in are:
            yield (
                f"the column {name!r} ({was}) of the state of {uid!r} is not declared in "
                f"{operation} any more; declare it still, if only as unused, or {begin_anew}"
            )
        elif are[name]["type"] != was:
            yield (
                f"the column {name!r} of the state of {uid!r} was {was}, and is "
                f"{are[name]['type']} in {operation}; keep its type and add a column of the new "
                f"one, or {begin_anew}"
            )


def added_columns(before: _Columns | None, now: _Columns | None) -> list[str]:
    """Return the names of the columns that a state gets."""
    if before is None or now is None:
        return []
    were = {column["name"] for column in before}
    return [column["name"] for column in now if column["name"] not in were]


def _keys(columns: _Columns) -> list[tuple[str, str]]:
    return [(column["name"], column["type"]) for column in columns if column["is_key"]]


def _listed(keys: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in keys)

"""Values stepped and encoded, many of them, with as little as can be done for each."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from checkpoint.state_store.encoding import PICKLE, ROWS, SCALARS, Ways, dumped
from checkpoint.state_store.plain_pickles import EXTENSIONS, LINE_END, PROTOCOL, STACK_GLOBAL
from checkpoint.state_store.rows import (
    NUMBER,
    ROW_KINDS,
    TUPLE,
    Layout,
    encode_row,
    layout_of,
    pack_rows,
)
from checkpoint.state_store.shapes import Shape
from checkpoint.state_store.value_codec import Decoder, Encoder, Step, undecodable

_NUMBERS = ROW_KINDS - {tuple}
Pairs = Iterator[tuple[Any, Any]]


def step_alike(pairs: Pairs, step: Step, encode: Encoder, ways: Ways) -> list[bytes | None]:
    """Step values, and encode what comes out by what the first value is that comes out.

    Rows are encoded together, when the last of them is there: their exact types say that no later
    step can change them. All else is encoded before the next step.
    """
    records: list[bytes | None] = []
    for new, value in pairs:
        after = step(new, value)
        if after is not None:
            break
        records.append(None)
    else:
        return records
    records.append(encode(after))
    kinds = tuple(map(type, after)) if type(after) is tuple else (type(after),)
    layout = layout_of(kinds, TUPLE if type(after) is tuple else NUMBER)
    if layout is not None:
        _step_rows(pairs, step, encode, records, after, layout)
        return records
    shape = None if EXTENSIONS else ways.shape(kinds if type(after) is tuple else type(after))
    if shape is not None:
        _step_shapes(pairs, step, encode, records, after, shape)
        return records
    for new, value in pairs:
        after = step(new, value)
        records.append(None if after is None else encode(after))
    return records


def _step_rows(
    pairs: Pairs,
    step: Step,
    encode: Encoder,
    records: list[bytes | None],
    first: Any,
    layout: Layout,
) -> None:
    """Step values that are rows of one layout, mostly."""
    kind = type(first)
    kinds = [*map(type, first)] if kind is tuple else None
    kept: list[Any] = []
    keep = kept.append
    for new, value in pairs:
        after = step(new, value)
        if type(after) is kind and (kinds is None or [*map(type, after)] == kinds):
            keep(after)
        else:
            records += _packed(layout, kept)
            kept.clear()
            records.append(None if after is None else encode(after))
    records += _packed(layout, kept)


def _packed(layout: Layout, values: list[Any]) -> list[bytes]:
    """Return values whose types are those of a layout as records."""
    if not values:
        return []
    columns = [values] if layout.head[0] == NUMBER else zip(*values, strict=True)
    rows = pack_rows(layout, columns)
    return [encode_row(value) or dumped(value) for value in values] if rows is None else rows


def _step_shapes(
    pairs: Pairs,
    step: Step,
    encode: Encoder,
    records: list[bytes | None],
    first: Any,
    shape: Shape,
) -> None:
    """Step values of one shape, mostly."""
    (head, flat), kind, dumps = shape, type(first), pickle.dumps
    try:
        kinds = [*map(type, flat(first))]
    except (LookupError, AttributeError):
        kinds = []
    layout = layout_of(tuple(kinds), TUPLE)
    kept: list[Any] = []
    for new, value in pairs:
        after = step(new, value)
        if type(after) is kind:
            try:
                fields = flat(after)
                if layout is None:
                    raw = dumps(fields, PROTOCOL)
                    if STACK_GLOBAL in raw and not SCALARS.issuperset(map(type, fields)):
                        raw = encode(after)
                    else:
                        raw = head + raw
                    records.append(raw)
                    continue
                if [*map(type, fields)] == kinds:
                    kept.append(fields)
                    continue
            except Exception:  # encode says what is wrong, or finds another way
                pass
        if kept:
            records += [head + raw for raw in _packed(layout, kept)]
            kept.clear()
        records.append(None if after is None else encode(after))
    records += [head + raw for raw in _packed(layout, kept)]


def step_each(
    given: list[Any],
    before: list[bytes | None],
    step: Step,
    decode: Decoder,
    encode: Encoder,
    ways: Ways,
) -> list[bytes | None]:
    """Decode, step and encode one after the other, so that what was read is still near.

    Records and values without a class are read and written as by *decode* and *encode*, without
    calling them.
    """
    loads, dumps = pickle.loads, pickle.dumps
    asked, is_known, row_kinds = ways.asked, not EXTENSIONS, ROW_KINDS
    records: list[bytes | None] = []
    for new, record in zip(given, before, strict=True):
        if record is None:
            value = step(new, None)
        elif (
            record[0] != PICKLE
            or STACK_GLOBAL in record
            or (LINE_END in record and record.count(LINE_END) > 1)
            or EXTENSIONS
        ):
            value = step(new, decode(record))
        else:
            try:
                old = loads(record)
            except Exception as error:
                raise undecodable(record, error) from error
            value = step(new, old)
        if value is None:
            records.append(None)
        elif asked or not is_known or type(value) in row_kinds:
            records.append(raw := encode(value))
            if raw[0] not in ROWS:  # a tuple of other things, as those after it are mostly too
                row_kinds = _NUMBERS
        else:
            try:
                raw = dumps(value, PROTOCOL)
            except Exception:
                raw = encode(value)  # which says what is wrong
            records.append(encode(value) if STACK_GLOBAL in raw else raw)
    return records

"""Values stepped and encoded, many of them, with as little as can be done for each."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from checkpoint.state_store.encoding import PICKLE, ROWS, SCALARS, Ways, dumped
from checkpoint.state_store.plain_pickles import EXTENSIONS, LINE_END, PROTOCOL, STACK_GLOBAL
from checkpoint.state_store.rows import (
    NUMBER,
    ROW_KINDS,
    TUPLE,
    Layout,
    behind,
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
    kind = type(after)
    items = tuple(map(type, after)) if kind is tuple else (kind,)
    layout = layout_of(items, TUPLE if kind is tuple else NUMBER)
    if layout is not None:
        _step_rows(pairs, step, encode, records, _Like(kind, list(items), layout))
        return records
    shape = None if EXTENSIONS else ways.shape(items if kind is tuple else kind)
    if shape is None:
        for new, value in pairs:
            after = step(new, value)
            records.append(None if after is None else encode(after))
        return records
    try:
        fields = list(map(type, shape.flat(after)))
    except (LookupError, AttributeError):
        fields = []
    layout = layout_of(tuple(fields), TUPLE)
    if layout is None:
        _step_shapes(pairs, step, encode, records, kind, shape)
    else:
        _step_shaped_rows(pairs, step, encode, records, _Like(kind, fields, layout), shape)
    return records


class _Like(NamedTuple):
    """What rows have in common that are encoded together.

    Args:
        kind: the class of the values.
        fields: those of what is packed.
        layout: how it is packed.
    """

    kind: type
    fields: list[type]
    layout: Layout

    def packed(self, rows: list[Any], head: bytes = b"") -> list[bytes]:
        """Return records of rows, each behind a head."""
        if not rows:
            return []
        columns = [rows] if self.layout.head[0] == NUMBER else zip(*rows, strict=True)
        records = pack_rows(behind(head, self.layout) if head else self.layout, columns)
        if records is not None:
            return records
        return [head + (encode_row(row) or dumped(row)) for row in rows]


def _step_rows(
    pairs: Pairs, step: Step, encode: Encoder, records: list[bytes | None], like: _Like
) -> None:
    """Step values that are rows of one layout, mostly."""
    kind: Any = like.kind
    fields, is_tuple = like.fields, kind is tuple
    kept: list[Any] = []
    keep = kept.append
    for new, value in pairs:
        after = step(new, value)
        if type(after) is kind and (not is_tuple or [*map(type, after)] == fields):
            keep(after)
        else:
            records += like.packed(kept)
            kept.clear()
            records.append(None if after is None else encode(after))
    records += like.packed(kept)


def _step_shaped_rows(
    pairs: Pairs,
    step: Step,
    encode: Encoder,
    records: list[bytes | None],
    like: _Like,
    shape: Shape,
) -> None:
    """Step values of one shape whose fields are rows of one layout, mostly."""
    (kind, fields, _), (head, flat) = like, shape
    kept: list[Any] = []
    keep = kept.append
    for new, value in pairs:
        after = step(new, value)
        try:
            found = flat(after) if type(after) is kind else None
        except (LookupError, AttributeError):  # it has attributes beside its fields
            found = None
        if found is not None and [*map(type, found)] == fields:
            keep(found)
        else:
            records += like.packed(kept, head)
            kept.clear()
            records.append(None if after is None else encode(after))
    records += like.packed(kept, head)


def _step_shapes(
    pairs: Pairs,
    step: Step,
    encode: Encoder,
    records: list[bytes | None],
    kind: type,
    shape: Shape,
) -> None:
    """Step values of one shape, mostly, whose fields are pickled."""
    (head, flat), dumps = shape, pickle.dumps
    for new, value in pairs:
        after = step(new, value)
        if type(after) is not kind:
            records.append(None if after is None else encode(after))
            continue
        try:
            fields = flat(after)
            raw = dumps(fields, PROTOCOL)
        except Exception:
            records.append(encode(after))  # which finds another way, or says what is wrong
            continue
        is_plain = STACK_GLOBAL not in raw or SCALARS.issuperset(map(type, fields))
        records.append(head + raw if is_plain else encode(after))


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

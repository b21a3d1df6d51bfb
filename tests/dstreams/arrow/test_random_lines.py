"""Random lines: read at once they are what ``json.loads`` and the rows to blocks make of each."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.decode_lines import decoder_of  # noqa: E402 - needs pyarrow
from dstreams.arrow.rows import RowsToBlocks  # noqa: E402

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        ("whole", pa.int32()),
        ("real", pa.float64()),
        ("truth", pa.bool_()),
        ("amount", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("list", pa.list_(pa.int64())),
        ("part", pa.struct([("text", pa.string()), ("whole", pa.int64())])),
    ]
)

TEXTS = st.text(max_size=5) | st.sampled_from(["", "鍵", "ключ", '"', "\\", "}\n{", "\ud800", "😀"])
ZONED = st.datetimes(
    datetime.fromisoformat("1990-01-01"),
    datetime.fromisoformat("2040-01-01"),
    timezones=st.just(timezone.utc),
).map(datetime.isoformat)
AMOUNTS = st.decimals(-1000, 1000, places=2).map(str)
OBJECTS = st.fixed_dictionaries(
    {"key": TEXTS},
    optional={
        "whole": st.none() | st.integers(-(2**31), 2**31 - 1),
        "real": st.none() | st.floats() | st.integers(-9, 9),
        "truth": st.none() | st.booleans(),
        "amount": st.none() | AMOUNTS,
        "at": st.none() | ZONED,
        "day": st.none() | st.dates().map(date.isoformat),
        "list": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "part": st.none()
        | st.fixed_dictionaries({}, optional={"text": TEXTS, "whole": st.integers(-9, 9)}),
        "other": st.recursive(st.none() | TEXTS | st.floats(), st.lists, max_leaves=3),
    },
)
ODD = st.sampled_from(
    [
        {"key": None},
        {},
        {"key": "k", "whole": 2**31},
        {"key": "k", "whole": 1.5},
        {"key": "k", "whole": 1.0},
        {"key": "k", "whole": "1"},
        {"key": "k", "real": 2**53 + 1},
        {"key": "k", "real": 10**400},
        {"key": "k", "amount": "1.234"},
        {"key": "k", "amount": "1234567890"},
        {"key": "k", "list": [[]]},
        {"key": "k", "part": []},
        {"key": 5},
        [],
        5,
    ]
)
LINES = st.builds(
    lambda said, ascii, before, after, cut: (
        before + json.dumps(said, ensure_ascii=ascii)[: -1 if cut else None] + after
    ),
    OBJECTS | OBJECTS | OBJECTS | OBJECTS | ODD,
    st.booleans(),
    st.sampled_from(["", "", "", " "]),
    st.sampled_from(["", "", "", "\r", " ", "}", '{"key":"k"}']),
    st.sampled_from([False] * 9 + [True]),
)
TIMES = {"at": datetime.fromisoformat, "day": date.fromisoformat, "amount": Decimal}


def row_of(line: str, schema: Any) -> Any:
    """The row of one line, as records would become it; None for a malformed one."""
    try:
        line.encode()
        said = json.loads(line)
        row = {name: said.get(name) for name in schema.names}
        for name, of in TIMES.items():
            if row.get(name) is not None:
                row[name] = of(row[name])
        if row.get("part") is not None:
            row["part"] = {name: row["part"].get(name) for name in ("text", "whole")}
        return RowsToBlocks(schema, "toBlocks").block([row]).to_pylist()[0]
    except Exception:
        return None


FEW = [SCHEMA, *(pa.schema([SCHEMA.field(name) for name in names]) for names in (
    ["key"], ["whole", "key"], ["real", "truth"], ["at", "day", "key"], ["amount", "key"],
    ["key", "real", "at", "whole"],
))]  # fmt: skip


@pytest.mark.deep
@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=60), st.booleans(), st.sampled_from(FEW))
def test_lines_are_what_each_is_alone(lines: list[str], in_bytes: bool, schema: Any) -> None:
    """Row for row, and malformed where a row would be refused."""
    given_lines = [line.encode(errors="surrogatepass") for line in lines] if in_bytes else lines
    decoder = decoder_of("json", schema, "toBlocks")
    block, rows, failures = decoder.decode(given_lines)
    expected = {
        place: row_of(line, schema) for place, line in enumerate(lines) if line.strip(" \r")
    }
    places = list(range(len(lines))) if rows is None else rows
    assert sorted([*places, *failures]) == list(expected)
    found = dict(zip(places, block.to_pylist(), strict=True))
    assert repr({place: found.get(place) for place in expected}) == repr(expected)
    assert block.schema == schema
    block.validate(full=True)

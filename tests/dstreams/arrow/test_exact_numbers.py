"""Decimal numbers of strangers: each is exact or refused, and none ends the process."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")

from dstreams.arrow.decode_lines import decoder_of  # noqa: E402
from dstreams.arrow.exact_numbers import may_be_unscalable, scalable  # noqa: E402 - needs pyarrow
from dstreams.arrow.rows import RowsToBlocks  # noqa: E402
from dstreams.spark.failures import UserFunctionError  # noqa: E402

KINDS = [
    pa.decimal128(5, 2),
    pa.decimal128(38, 2),
    pa.decimal128(38, 38),
    pa.decimal128(9, -3),
    pa.decimal256(70, 2),
]
DIGITS = st.text("0", max_size=90) | st.text("0123456789", max_size=50)
EXPONENTS = st.integers(-60, 60) | st.sampled_from([-999999999, -100000000, -(2**31), 2**31, -77])


@st.composite
def numbers(draw: Any) -> str:
    """A number as JSON has it, of any length and exponent."""
    sign = draw(st.sampled_from(["", "-"]))
    whole = draw(st.integers(0, 10**9) | st.integers(0, 10**45))
    fraction = draw(DIGITS)
    text = f"{sign}{whole}" + (f".{fraction}" if fraction else "")
    exponent = draw(st.none() | EXPONENTS)
    return text if exponent is None else f"{text}{draw(st.sampled_from('eE'))}{exponent:02d}"


def exact(text: str, kind: Any) -> bool:
    """Return whether a type has a number."""
    number = Decimal(text)
    if not number or abs(number.adjusted()) > 1000:
        return not number
    scaled = Fraction(text) * Fraction(10) ** kind.scale
    return scaled.denominator == 1 and abs(scaled) < 10**kind.precision


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=50)
@given(text=numbers())
@example("1e-999999999")
@example("0e-999999999")
@example("1e-41")
@example("1." + "0" * 60)
def test_a_number_is_exact_or_refused(kind: Any, text: str) -> None:
    """Lines of JSON, numbers and texts, lines of CSV and rows never have another value."""
    schema = pa.schema([("x", kind)])
    lines: list[tuple[str, str]] = [("json", f'{{"x":{text}}}'), ("json", f'{{"x":"{text}"}}')]
    # Of a number with many zeros behind it Arrow may refuse what would fit.
    is_exact = len(Decimal(text).as_tuple().digits) < 20 and exact(text, kind)
    if not pa.types.is_decimal256(kind):
        lines.append(("csv", text))
    for format, line in lines:
        block, _, failures = decoder_of(format, schema, "toBlocks").decode([line])
        assert bool(failures) != bool(block.num_rows)
        if is_exact and format == "json":  # in CSV, Arrow also counts the zeros at the end
            assert not failures
        if block.num_rows:
            assert block.column(0)[0].as_py() == Decimal(text)
    try:
        made = RowsToBlocks(schema, "toBlocks").block([(Decimal(text),)])
    except UserFunctionError:
        assert not is_exact
        return
    assert made.column(0)[0].as_py() == Decimal(text)


def test_rows_name_the_number() -> None:
    """A row, and a value within a row, with a number that cannot be scaled."""
    kind = pa.decimal128(9, 2)
    tiny = Decimal("1e-999999999")
    columns = [kind, pa.list_(kind), pa.struct([("a", kind)]), pa.map_(pa.string(), kind)]
    values: list[Any] = [tiny, [tiny], {"a": tiny}, {"a": tiny}]
    for column, value in zip(columns, values, strict=True):
        rows = RowsToBlocks(pa.schema([("x", column)]), "toBlocks")
        with pytest.raises(UserFunctionError, match=r"1E-999999999.*more than 2 decimal places"):
            rows.block([(value,)])


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":"8f14e45f-ceea-467e-11d3-9c4e-12ab34cd56ef","x":1.25}',
        b'{"score":1.2345678901234567e-12,"x":-0.5}',
        b'{"x":1e0,"note":"\\u00fc","path":"a.1e-b"}',
    ],
)
def test_what_is_no_reason_to_look_at_lines_one_by_one(text: bytes) -> None:
    """Ids, small real numbers and escapes are read at once."""
    assert not may_be_unscalable(text, pa.schema([("x", pa.decimal128(38, 2))]))


def test_other_values_are_left_to_arrow() -> None:
    """Whole numbers, infinity and null."""
    kind = pa.decimal128(9, 2)
    for value in (None, 5, Decimal("Infinity"), Decimal("12.5"), "x"):
        assert scalable(value, kind) is value

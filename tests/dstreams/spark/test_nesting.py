"""Values that are nested too deep are found without reading them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstreams.spark.nesting import MOST_NESTED, require_shallow


@given(text=st.text(), depth=st.integers(1, 2 * MOST_NESTED))
def test_brackets_of_texts_do_not_count(text: str, depth: int) -> None:
    """The depth is that of lists; what is in a text, escaped in any way, is passed over."""
    line = "[" * depth + json.dumps(text + '\\"' + "[" * MOST_NESTED) + "]" * depth
    for given_as in (line, line.encode()):
        if depth <= MOST_NESTED:
            require_shallow(given_as)
        else:
            with pytest.raises(ValueError, match=f"nested deeper than 200 at character {201}"):
                require_shallow(given_as)


def test_lists_next_to_each_other() -> None:
    """Many brackets are not deep."""
    require_shallow("[" + "[{}]," * 10 * MOST_NESTED + "[]]")


def test_a_text_that_does_not_end() -> None:
    """Each sign is looked at once: escaped quotation marks do not start over."""
    require_shallow("[]" * MOST_NESTED + '"' + '\\"' * 2_000_000 + "\\")

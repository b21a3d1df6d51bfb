"""flatMap of a dataset: results that are not iterables of rows are refused."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

from dstreams.spark.failures import UserFunctionError
from dstreams.structured.operators.execution_context import ExecutionContext
from dstreams.structured.operators.physical_operator import RDDScanExec
from dstreams.structured.operators.stateless import ElementsExec


def rows_of(func: Any, *, are_events: bool) -> list[Any]:
    scan = RDDScanExec(None, events=are_events)
    task = ElementsExec(scan, func, "flatMap").task(ExecutionContext(None))  # type: ignore[arg-type]
    record = {"words": ["a", "b"], "text": "ab"}
    return list(task(0, [(1000, record)] if are_events else [record]))


def whole(record: Any) -> Any:
    return record


@pytest.mark.parametrize("are_events", [False, True])
def test_what_is_no_series_of_rows(*, are_events: bool) -> None:
    """The error names the function, its line, what it returned, and for which record."""
    with pytest.raises(
        UserFunctionError, match=r"flatMap\(.*whole:\d+\) must return an iter"
    ) as one:
        rows_of(whole, are_events=are_events)
    assert "(dict) for record {'words': ['a', 'b']" in str(one.value)
    with pytest.raises(UserFunctionError, match="got 'ab' \\(str\\)"):
        rows_of(itemgetter("text"), are_events=are_events)


def test_rows() -> None:
    """A list goes out row by row, an event's rows with its time."""
    assert rows_of(itemgetter("words"), are_events=False) == ["a", "b"]
    assert rows_of(itemgetter("words"), are_events=True) == [(1000, "a"), (1000, "b")]

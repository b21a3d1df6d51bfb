"""Rows of an aggregation in a store, in both formats, over a dict."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.state.keyed_store import DictStateStore
from dstreams.structured.operators.streaming_aggregation_state_manager import (
    create_aggregation_state_manager,
)


@pytest.mark.parametrize(("version", "value"), [(1, ("a", 4)), (2, (4,))])
def test_rows(version: int, value: Any) -> None:
    """Format 1 stores the whole row, format 2 leaves the key out; both are read back as rows."""
    manager, store = create_aggregation_state_manager(version), DictStateStore()
    assert manager.get(store, "a") is None
    manager.put(store, ("a", 4))
    assert store.rows == {"a": value}
    assert manager.get_key(("a", 4)) == "a"
    assert manager.get(store, "a") == ("a", 4)
    assert list(manager.iterator(store)) == [("a", ("a", 4))]
    assert list(manager.values(store)) == [("a", 4)]
    manager.remove(store, "a")
    manager.remove(store, "a")
    assert store.rows == {}


@pytest.mark.parametrize("version", [0, 3])
def test_unknown_format(version: int) -> None:
    """The error names the setting and the value."""
    message = rf"aggregation\.stateFormatVersion: the state format must be 1 or 2, got {version}"
    with pytest.raises(InvalidStreamError, match=message):
        create_aggregation_state_manager(version)

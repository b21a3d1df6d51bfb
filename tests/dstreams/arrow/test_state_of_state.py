"""A state in blocks that is made of another one."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.testing import run_batches

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("numpy", reason="pip install 'dstreams[arrow]'")


def latest(keys: Any, values: Any, state: Any) -> Any:
    return pa.record_batch({"n": pc.coalesce(values.sum("n"), state.column("n"))})


def test_a_state_by_fewer_columns(sc: SparkContext) -> None:
    """The state by a part of a key has each of its keys once, wherever the whole keys lie."""
    rows = [(f"town {number % 3}", f"shop {number}", 1) for number in range(20)]

    def towns(stream: Any) -> Any:
        blocks = stream.toBlocks({"town": str, "shop": str, "n": int})
        shops = blocks.updateStateByKey(latest, key=["town", "shop"], state={"n": int})
        return shops.updateStateByKey(latest, key="town", state={"n": int}).toRows()

    seen = run_batches(sc, [rows, []], towns)
    expected = [("town 0", 7), ("town 1", 7), ("town 2", 6)]
    assert [sorted(batch or []) for batch in seen] == [expected, expected]
